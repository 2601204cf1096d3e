"""Raw feature rows to the model's input, as the checkpoint's `normalize` says."""

import numpy as np


def normalize(raw: np.ndarray, settings: dict, offsets: list[int] | None = None) -> np.ndarray:
    """Raw rows [N, F], NaN = missing -> float64 [N, F_in]: features, indicators, within the set.

    The rows of set b are offsets[b]..offsets[b + 1]; without offsets all are one set.
    """
    raw = raw.astype(np.float64)
    missing = np.isnan(raw)
    kind = settings["kind"]
    values = np.where(missing, 0.0, raw)
    fill = 0.0
    if kind == "quantile":
        columns = zip(values.T, settings["knots"])
        values = np.stack([np.interp(x, k["values"], k["scores"]) for x, k in columns], axis=1)
    elif kind != "none":
        if kind.startswith("log1p"):
            values = np.sign(values) * np.log1p(np.abs(values))
        values = (values - np.array(settings["center"])) * np.array(settings["scale"])
        values = _clip(values, kind, settings.get("clip"))
    if kind != "none":
        fill = settings.get("fill") or 0.0
    values = np.where(missing, fill, values)
    columns = [values]
    indicators = settings.get("indicators")
    if indicators is not None:
        columns.append(missing[:, np.array(indicators, dtype=bool)])
    within_set = settings.get("within_set", "none")
    if within_set != "none":
        # what the model compares are the float32 features
        sets = _split(values.astype(np.float32).astype(np.float64), offsets)
        for compare in WITHIN_SET[within_set]:
            columns.append(np.vstack([compare(rows) for rows in sets]))
    return np.hstack(columns)


def _clip(values: np.ndarray, kind: str, clip: float | None) -> np.ndarray:
    if kind.endswith("minmax"):
        return values.clip(0.0, 1.0)
    return values if clip is None else values.clip(-clip, clip)


def _split(rows: np.ndarray, offsets: list[int] | None) -> list[np.ndarray]:
    return [rows] if offsets is None else np.split(rows, offsets[1:-1])


def _z_scores(rows: np.ndarray) -> np.ndarray:
    """(x - mean) / standard deviation of each column of [n, F]; 0 where all are equal."""
    spread = rows.max(axis=0) > rows.min(axis=0)
    deviation = np.where(spread, rows.std(axis=0), 1.0)
    return np.where(spread, (rows - rows.mean(axis=0)) / deviation, 0.0)


def _mid_ranks(rows: np.ndarray) -> np.ndarray:
    """The middle of each value's places in the ascending column of [n, F], scaled to (-1, 1)."""
    below = (rows[None, :, :] < rows[:, None, :]).sum(axis=1)
    equal = (rows[None, :, :] == rows[:, None, :]).sum(axis=1)
    return 2.0 * (below + 0.5 * equal) / len(rows) - 1.0


WITHIN_SET = {"zscore": [_z_scores], "rank": [_mid_ranks], "both": [_z_scores, _mid_ranks]}
