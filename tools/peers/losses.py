"""The listwise losses, for one set and as a mean over the sets of a batch."""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def label_attention(labels: Tensor) -> Tensor:
    """a_y [n]: softmax of the labels > 0, and 0 elsewhere; at least one must be > 0."""
    gain = torch.where(labels > 0, torch.exp(labels - labels.max()), 0.0)
    return gain / gain.sum()


def log_one_minus_softmax(scores: Tensor) -> Tensor:
    """log(1 - softmax(scores)) [n], n >= 2, exact also where one softmax is close to 1."""
    attention = torch.softmax(scores, dim=0)
    dominant = attention > 0.5  # at most one document
    # the replaced 0 keeps the unused branch, and its gradient, finite
    result = torch.log1p(-attention.masked_fill(dominant, 0.0))
    if dominant.any():
        others = torch.logsumexp(scores[~dominant], dim=0) - torch.logsumexp(scores, dim=0)
        result = torch.where(dominant, others, result)
    return result


def attention_rank(scores: Tensor, labels: Tensor) -> Tensor:
    """-sum [a_y log a_s + (1 - a_y) log(1 - a_s)] over judged scores [n] and labels [n]."""
    a_y = label_attention(labels)
    positive = a_y * torch.log_softmax(scores, dim=0)
    negative = (1.0 - a_y) * log_one_minus_softmax(scores)
    return -(positive + negative).sum()


def softmax_cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """-sum a_y log a_s over judged scores [n] and labels [n]."""
    return -(label_attention(labels) * torch.log_softmax(scores, dim=0)).sum()


def normalised_gains(labels: Tensor) -> Tensor:
    """(2^y - 1) / maxDCG [n], maxDCG over all of the labels [n]."""
    gains = torch.exp2(labels) - 1.0
    ideal = gains.sort(descending=True).values
    ranks = torch.arange(1, len(labels) + 1, dtype=labels.dtype)
    return gains / (ideal / torch.log2(1.0 + ranks)).sum()


def lambda_loss(scores: Tensor, labels: Tensor, mu: float = 10.0) -> Tensor:
    """NDCG-Loss2++ (Wang et al., CIKM 2018) over judged scores [n] and labels [n].

    The pairs' weights are those of the current order, and constants to the gradient.
    """
    with torch.no_grad():
        ranks = torch.empty_like(scores)
        order = scores.argsort(descending=True, stable=True)
        ranks[order] = torch.arange(1, len(scores) + 1, dtype=scores.dtype)
        inverse = 1.0 / torch.log2(1.0 + ranks)
        distance = (ranks[:, None] - ranks[None, :]).abs().clamp(min=1.0)
        delta = (1.0 / torch.log2(1.0 + distance) - 1.0 / torch.log2(2.0 + distance)).abs()
        rho = (inverse[:, None] - inverse[None, :]).abs()
        gains = normalised_gains(labels)
        weights = (mu * delta + rho) * (gains[:, None] - gains[None, :]).abs()
    better = labels[:, None] > labels[None, :]
    margins = scores[None, :] - scores[:, None]
    log2 = torch.logaddexp(torch.zeros_like(margins), margins) / math.log(2.0)
    return (weights * log2)[better].sum()


def approx_ndcg(scores: Tensor, labels: Tensor, alpha: float = 10.0) -> Tensor:
    """1 - ApproxNDCG (Qin et al., 2010) over judged scores [n] and labels [n]."""
    behind = torch.sigmoid(alpha * (scores[None, :] - scores[:, None]))
    ranks = 0.5 + behind.sum(dim=1)  # a document is half behind itself
    return 1.0 - (normalised_gains(labels) / torch.log2(1.0 + ranks)).sum()


LOSSES = {
    "attention_rank": attention_rank,
    "softmax_cross_entropy": softmax_cross_entropy,
    "lambda_loss": lambda_loss,
    "approx_ndcg": approx_ndcg,
}


def set_loss(loss: Callable, scores: Tensor, labels: Tensor) -> Tensor:
    """The loss [] of one set; labels < 0 are left out.

    0 without a relevant document, or with one judged document.
    """
    judged = labels >= 0
    if not (labels > 0).any() or judged.sum() == 1:
        return scores.sum() * 0.0
    return loss(scores[judged], labels[judged])


def mean_loss(loss: Callable, scores: Tensor, labels: Tensor, offsets: list[int]) -> Tensor:
    """The mean [] over all B sets of scores [N], labels [N], offsets [B + 1]."""
    per_set = [
        set_loss(loss, scores[begin:end], labels[begin:end])
        for begin, end in zip(offsets[:-1], offsets[1:])
    ]
    return torch.stack(per_set).mean()
