"""NDCG with the conventions of `setrank eval`'s defaults, per query."""

import numpy as np


def ndcg_per_query(
    labels: np.ndarray, scores: np.ndarray, offsets: list[int], cutoffs: tuple[int, ...]
) -> np.ndarray:
    """NDCG [Q, K] of every query at each of the K cutoffs; NaN for one without a relevant document.

    `labels` [N] and `scores` [N] are by document, `offsets` [Q + 1] by query. Gain 2^y - 1, discount
    1 / log2(rank + 1), the ideal ranking over all judged documents. Equal scores rank by file order;
    unjudged documents (label < 0) are taken out before ranking.
    """
    rows = [
        _ndcg(labels[begin:end], scores[begin:end], cutoffs)
        for begin, end in zip(offsets[:-1], offsets[1:])
    ]
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(cutoffs))


def _ndcg(labels: np.ndarray, scores: np.ndarray, cutoffs: tuple[int, ...]) -> list[float]:
    judged = labels >= 0
    gains = 2.0 ** labels[judged].astype(np.float64) - 1.0
    if not (gains > 0).any():
        return [np.nan] * len(cutoffs)
    ranked = gains[np.argsort(-scores[judged], kind="stable")]
    ideal = np.sort(gains)[::-1]
    discounts = 1.0 / np.log2(np.arange(2, len(gains) + 2))
    return [float(ranked[:k] @ discounts[:k] / (ideal[:k] @ discounts[:k])) for k in cutoffs]


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Mean of the values [Q] that are not NaN, and its standard error."""
    values = values[~np.isnan(values)]
    if len(values) < 2:
        raise ValueError(f"{len(values)} queries with a relevant document are too few for a mean")
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))
