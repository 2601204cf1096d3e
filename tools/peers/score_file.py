"""Score the documents of a LETOR file with a checkpoint: one float32 score a line."""

import argparse
from pathlib import Path

import numpy as np
import torch

from checkpoint import load_checkpoint
from letor import Dataset, read_initial_ranking, read_letor
from normalize import normalize


def score_file(
    folder: str | Path,
    data: str | Path,
    initial: tuple[str | Path, ...] = (),
    dtype: torch.dtype = torch.float32,
) -> np.ndarray:
    """Scores [N] of the documents of `data`, computed in `dtype`; one file a ranking."""
    config, model = load_checkpoint(folder)
    dataset = read_letor(data, config["num_features"], config["index_base"], config["absent"])
    ordinals = read_rankings(initial, dataset, config["top_k"])
    features = normalize(dataset.features, config["normalize"], dataset.offsets)
    features = torch.from_numpy(features).to(dtype)
    with torch.no_grad():
        scores = model.to(dtype).score_sets(features, dataset.offsets, ordinals)
    return scores.numpy()


def read_rankings(
    paths: tuple[str | Path, ...], dataset: Dataset, top_k: int | None
) -> torch.Tensor | None:
    """Ordinals [R, N], one file a ranking; None without any."""
    if not paths:
        return None
    _refuse_cut(top_k, dataset)
    return torch.from_numpy(np.stack([read_initial_ranking(path, dataset) for path in paths]))


def add_init(parser: argparse.ArgumentParser) -> None:
    """The flag of initial rankings."""
    parser.add_argument(
        "--init",
        action="append",
        default=[],
        help="scores of an initial ranking, one a line, NULL = not in it; once a ranking",
    )


def _refuse_cut(top_k: int | None, dataset: Dataset) -> None:
    """A set cut to its top k leaves documents without a score, which one a line cannot say."""
    largest = max(
        int((dataset.labels[begin:end] >= 0).sum())
        for begin, end in zip(dataset.offsets[:-1], dataset.offsets[1:])
    )
    if top_k is not None and largest > top_k:
        raise ValueError(f"a set of {largest} documents would be cut to top_k {top_k}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="checkpoint folder")
    parser.add_argument("--data", required=True, help="LETOR file")
    add_init(parser)
    args = parser.parse_args()
    for score in score_file(args.model, args.data, tuple(args.init)):
        print(score)


if __name__ == "__main__":
    main()
