"""LETOR text and initial rankings, read strictly: what is not understood is an error."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

MISSING_FROM = 1e300  # a value this large, either sign, stands for "missing"


@dataclass
class Dataset:
    """features [N, F] float32, NaN = missing; labels [N] float32; offsets [B + 1]."""

    features: np.ndarray
    labels: np.ndarray
    offsets: list[int]


def read_letor(path: str | Path, num_features: int, index_base: int, absent: str) -> Dataset:
    """Read `label qid:q index:value ... # comment` lines; a change of qid starts a set."""
    rows, labels, offsets, seen = [], [], [], []
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            tokens = line.split("#", maxsplit=1)[0].split()
            if not tokens:
                continue
            try:
                label, qid, row = _parse_line(tokens, num_features, index_base, absent)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
            if not seen or qid != seen[-1]:
                if qid in seen:
                    raise ValueError(f"{path}, line {number}: query {qid} is not contiguous")
                seen.append(qid)
                offsets.append(len(rows))
            labels.append(label)
            rows.append(row)
    if not rows:
        raise ValueError(f"{path} holds no documents")
    offsets.append(len(rows))
    features = np.array(rows, dtype=np.float32).reshape(len(rows), num_features)
    return Dataset(features, np.array(labels, dtype=np.float32), offsets)


def _parse_line(
    tokens: list[str], num_features: int, index_base: int, absent: str
) -> tuple[float, str, np.ndarray]:
    """The label, query id and features [F] float32 of one line."""
    if len(tokens) < 2 or not tokens[1].startswith("qid:"):
        raise ValueError("expected a label and qid:<query>")
    row = np.full(num_features, np.nan if absent == "missing" else 0.0, dtype=np.float32)
    filled = set()
    for token in tokens[2:]:
        index, colon, value = token.partition(":")
        if not colon or not value:
            raise ValueError(f"{token!r} is not index:value")
        column = int(index) - index_base
        if not 0 <= column < num_features:
            raise ValueError(f"index {index} is outside the model's {num_features} features")
        if column in filled:
            raise ValueError(f"index {index} stands twice")
        filled.add(column)
        row[column] = _parse_value(value)
    return float(tokens[0]), tokens[1].removeprefix("qid:"), row


def _parse_value(text: str) -> float:
    """A feature value that float32 holds, or NaN for a missing one."""
    if text.upper() == "NULL":
        return np.nan
    value = float(text)
    if np.isnan(value) or abs(value) >= MISSING_FROM:
        return np.nan
    if abs(value) > np.finfo(np.float32).max:
        raise ValueError(f"{text} is outside float32")
    return value


def read_initial_ranking(path: str | Path, dataset: Dataset) -> np.ndarray:
    """Ordinals [N] from a file with one score a line, NULL = not in the ranking."""
    lines = Path(path).read_text().split()
    if len(lines) != len(dataset.labels):
        raise ValueError(f"{path}: {len(lines)} scores for {len(dataset.labels)} documents")
    scores = np.array([np.nan if text.upper() == "NULL" else float(text) for text in lines])
    return ordinals_from_scores(scores, dataset.labels, dataset.offsets)


def ordinals_from_scores(scores: np.ndarray, labels: np.ndarray, offsets: list[int]) -> np.ndarray:
    """Ranks [N], int64, 0 = highest score of its set, ties by order, from scores [N].

    -1 where the score is NaN (not in the ranking) or the document is unjudged.
    """
    ordinals = np.full(len(scores), -1, dtype=np.int64)
    ranked = ~np.isnan(scores) & (labels >= 0)
    for begin, end in zip(offsets[:-1], offsets[1:]):
        documents = begin + np.flatnonzero(ranked[begin:end])
        order = np.argsort(-scores[documents], kind="stable")
        ordinals[documents[order]] = np.arange(len(documents))
    return ordinals
