"""Raw feature rows to the model's input, as the checkpoint's `normalize` says."""

import numpy as np


def normalize(raw: np.ndarray, settings: dict) -> np.ndarray:
    """Raw rows [N, F], NaN = missing -> float64 [N, F_in], indicator columns last."""
    raw = raw.astype(np.float64)
    missing = np.isnan(raw)
    kind = settings["kind"]
    values = np.where(missing, 0.0, raw)
    fill = 0.0
    if kind != "none":
        if kind.startswith("log1p"):
            values = np.sign(values) * np.log1p(np.abs(values))
        values = (values - np.array(settings["center"])) * np.array(settings["scale"])
        values = _clip(values, kind, settings.get("clip"))
        fill = settings.get("fill") or 0.0
    values = np.where(missing, fill, values)
    indicators = settings.get("indicators")
    if indicators is None:
        return values
    return np.hstack([values, missing[:, np.array(indicators, dtype=bool)]])


def _clip(values: np.ndarray, kind: str, clip: float | None) -> np.ndarray:
    if kind.endswith("minmax"):
        return values.clip(0.0, 1.0)
    return values if clip is None else values.clip(-clip, clip)
