"""Compare PyTorch's scores with those of the Rust program, at full size.

Without arguments: draws a full-size model of each kind and a LETOR file, and scores both ways.
With --model and --data: compares on a checkpoint, such as one that the Rust program trained.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from checkpoint import save_checkpoint
from config import complete_config
from score_file import score_file
from setrank_torch import SetRank

TOLERANCE = 1e-4  # on float32 scores of size about 1
SET_SIZES = (1, 2, 17, 40, 100, 360, 500)
MISSING_SHARE = 0.05
MISSING_VALUE = "1.79769313486e+308"

CASES = {
    "msab": {"encoder": "msab", "num_features": 136},
    "imsab": {"encoder": "imsab", "num_features": 220},
    "imsab, rbf": {
        "encoder": "imsab",
        "num_features": 201,
        "input": "rbf",
        "qkv_relu": True,
        "inner_ffn": False,
        "layer_norm_eps": 1e-8,
    },
}


def draw_features(num_features: int, rng: np.random.Generator) -> np.ndarray:
    """Raw rows [N, F] float32 on very different scales, NaN = missing."""
    shape = (sum(SET_SIZES), num_features)
    scale = 10.0 ** rng.uniform(-2, 5, num_features)
    raw = rng.standard_normal(shape) * scale
    raw[rng.random(shape) < MISSING_SHARE] = np.nan
    return raw.astype(np.float32)


def fit_normalize(raw: np.ndarray, kind: str) -> dict:
    """The `normalize` settings of `kind` for rows [N, F], with indicators on a few columns."""
    if kind == "minmax":
        low, high = np.nanmin(raw, axis=0), np.nanmax(raw, axis=0)
        center, scale = low, 1.0 / (high - low)
    else:
        values = np.sign(raw) * np.log1p(np.abs(raw))
        center, scale = np.nanmean(values, axis=0), 1.0 / np.nanstd(values, axis=0)
    num_features = raw.shape[1]
    return {
        "kind": kind,
        "center": center.tolist(),
        "scale": scale.tolist(),
        "fill": [0.0] * num_features,
        "clip": 5.0,
        "indicators": [column % 16 == 0 for column in range(num_features)],
    }


def draw_model(config: dict, rng: np.random.Generator) -> SetRank:
    """An initialised model whose biases and LayerNorms are moved off their trivial values."""
    torch.manual_seed(int(rng.integers(2**31)))
    model = SetRank(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def write_letor(path: Path, raw: np.ndarray, rng: np.random.Generator) -> None:
    """Write rows [N, F]; a missing value is left out or written as Istella writes it."""
    queries = np.repeat(np.arange(len(SET_SIZES)), SET_SIZES)
    with open(path, "w") as file:
        for query, row in zip(queries, raw):
            tokens = [str(rng.integers(5)), f"qid:{query + 1}"]
            for index, value in enumerate(row, start=1):
                if not np.isnan(value):
                    tokens.append(f"{index}:{value}")
                elif rng.random() < 0.5:
                    tokens.append(f"{index}:{MISSING_VALUE}")
            file.write(" ".join(tokens) + "\n")


def rank(setrank: Path, model: Path, data: Path) -> np.ndarray:
    """Scores [N] as the Rust program writes them."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "scores.txt"
        command = [setrank, "rank", "--model", model, "--data", data, "-o", out]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return np.array(out.read_text().split(), dtype=np.float64)


def compare(name: str, setrank: Path, model: Path, data: Path) -> bool:
    """Print the largest differences of one checkpoint on one file; False where over TOLERANCE."""
    rust = rank(setrank, model, data)
    single = score_file(model, data).astype(np.float64)
    double = score_file(model, data, dtype=torch.float64)
    if rust.shape != double.shape:
        print(f"{name}: {len(rust)} scores from Rust, {len(double)} from PyTorch")
        return False
    differences = {
        "Rust - float32": np.abs(rust - single).max(),
        "Rust - float64": np.abs(rust - double).max(),
        "float32 - float64": np.abs(single - double).max(),
    }
    text = ", ".join(f"max |{key}| {value:.2e}" for key, value in differences.items())
    print(f"{name}: {len(rust)} scores in {double.min():.2f} .. {double.max():.2f}, {text}")
    # written so that a NaN fails
    return all(differences[f"Rust - {kind}"] <= TOLERANCE for kind in ("float32", "float64"))


def compare_case(name: str, settings: dict, setrank: Path) -> bool:
    """Draw a model and a file of one kind and compare on them."""
    rng = np.random.default_rng(2020)
    raw = draw_features(settings["num_features"], rng)
    kind = "minmax" if settings.get("input") == "rbf" else "log1p-zscore"
    config = complete_config({**settings, "normalize": fit_normalize(raw, kind)})
    with tempfile.TemporaryDirectory() as folder:
        model, data = Path(folder) / "model", Path(folder) / "data.txt"
        save_checkpoint(model, config, draw_model(config, rng))
        write_letor(data, raw, rng)
        return compare(name, setrank, model, data)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--setrank", type=Path, default=Path("target/release/setrank"))
    parser.add_argument("--model", type=Path, help="checkpoint folder to compare on, with --data")
    parser.add_argument("--data", type=Path, help="LETOR file to compare on, with --model")
    args = parser.parse_args()
    if (args.model is None) != (args.data is None):
        parser.error("--model and --data go together")
    if args.model is not None:
        passed = [compare(str(args.model), args.setrank, args.model, args.data)]
    else:
        passed = [compare_case(*case, args.setrank) for case in CASES.items()]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
