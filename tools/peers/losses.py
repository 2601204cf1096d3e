"""The two listwise losses, for one set and as a mean over the sets of a batch."""

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
    if len(scores) == 1:
        return scores.sum() * 0.0
    a_y = label_attention(labels)
    positive = a_y * torch.log_softmax(scores, dim=0)
    negative = (1.0 - a_y) * log_one_minus_softmax(scores)
    return -(positive + negative).sum()


def softmax_cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """-sum a_y log a_s over judged scores [n] and labels [n]."""
    return -(label_attention(labels) * torch.log_softmax(scores, dim=0)).sum()


LOSSES = {
    "attention_rank": attention_rank,
    "softmax_cross_entropy": softmax_cross_entropy,
}


def set_loss(loss: Callable, scores: Tensor, labels: Tensor) -> Tensor:
    """The loss [] of one set; labels < 0 are left out, and 0 without a relevant document."""
    if not (labels > 0).any():
        return scores.sum() * 0.0
    judged = labels >= 0
    return loss(scores[judged], labels[judged])


def mean_loss(loss: Callable, scores: Tensor, labels: Tensor, offsets: list[int]) -> Tensor:
    """The mean [] over all B sets of scores [N], labels [N], offsets [B + 1]."""
    per_set = [
        set_loss(loss, scores[begin:end], labels[begin:end])
        for begin, end in zip(offsets[:-1], offsets[1:])
    ]
    return torch.stack(per_set).mean()
