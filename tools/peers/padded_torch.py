"""SetRank in PyTorch as one would write it for speed: whole batches, padded, with fused attention.

The rows of all sets stand in one matrix, so that everything row-wise is one product. Sets are sorted
by size and cut into buckets; inside a bucket they are padded to its largest, and attention is one
call a bucket. One bucket is the usual padded batch; a bucket a set has no padding at all.
Letters as in setrank_torch.py; R = rows of the padded batch, b = sets of a bucket, w = its width.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from setrank_torch import SetRank


@dataclass(frozen=True)
class Bucket:
    """Rows start .. start + b w of the batch: b sets, padded to w documents each."""

    start: int
    sets: int
    width: int
    real: Tensor | None  # [b, w] bool, or None where nothing is padded

    @property
    def stop(self) -> int:
        return self.start + self.sets * self.width

    def of(self, rows: Tensor) -> Tensor:
        """[R, ...] -> this bucket's [b, w, ...]."""
        return rows[self.start : self.stop].unflatten(0, (self.sets, self.width))

    def key_mask(self) -> Tensor | None:
        """[b, 1, 1, w] bool: which documents may be attended to."""
        return None if self.real is None else self.real[:, None, None, :]


@dataclass(frozen=True)
class Layout:
    """Where the documents of a batch stand among its padded rows."""

    buckets: list[Bucket]
    rows: int
    row_of_document: Tensor  # [N]

    def pad(self, values: Tensor) -> Tensor:
        """[N, ...] -> [R, ...], padding 0."""
        padded = values.new_zeros(self.rows, *values.shape[1:])
        padded[self.row_of_document] = values
        return padded


def make_layout(
    sizes: list[int], num_buckets: int, device: str = "cpu", pad_to: int | None = None
) -> Layout:
    """Sort sets of these sizes [B] and cut them into buckets of about as many sets each.

    Each bucket is padded to its largest set, or to `pad_to` documents, which no set may exceed.
    """
    order = sorted(range(len(sizes)), key=lambda index: sizes[index])
    first_document = [0]
    for size in sizes:
        first_document.append(first_document[-1] + size)
    row_of_document = torch.empty(first_document[-1], dtype=torch.long)
    buckets, start = [], 0
    num_buckets = min(num_buckets, len(sizes))
    cuts = [len(sizes) * cut // num_buckets for cut in range(num_buckets + 1)]
    for begin, end in zip(cuts[:-1], cuts[1:]):
        members = order[begin:end]
        counts = torch.tensor([sizes[index] for index in members])
        width = int(counts.max()) if pad_to is None else pad_to
        if width < int(counts.max()):
            raise ValueError(f"a set of {int(counts.max())} documents does not fit into {width}")
        for position, index in enumerate(members):
            row = start + position * width
            place = torch.arange(row, row + sizes[index])
            row_of_document[first_document[index] : first_document[index + 1]] = place
        real = torch.arange(width)[None, :] < counts[:, None]
        buckets.append(Bucket(start, len(members), width, None if real.all() else real.to(device)))
        start = buckets[-1].stop
    return Layout(buckets, start, row_of_document.to(device))


class FusedProjection(nn.Module):
    """Several projections of one attention, of the same input, as one product."""

    def __init__(self, attention: nn.Module, names: str):
        super().__init__()
        layers = [getattr(attention, name) for name in names]
        self.relu, self.num_heads = attention.relu, attention.num_heads
        self.weight = nn.Parameter(torch.cat([layer.weight.detach() for layer in layers]))
        self.bias = nn.Parameter(torch.cat([layer.bias.detach() for layer in layers]))
        self.parts = len(layers)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """[rows, C] -> `parts` times [rows, H, D]."""
        y = F.linear(x, self.weight, self.bias)
        if self.relu:
            y = torch.relu(y)
        return y.unflatten(1, (self.parts, self.num_heads, -1)).unbind(1)


def attend(
    dropout: nn.Dropout, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None
) -> Tensor:
    """[b, rows, H, D] thrice -> [b, rows, C]."""
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    rate = dropout.p if dropout.training else 0.0
    heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=rate)
    return heads.transpose(1, 2).flatten(2)


class RowWise(nn.Module):
    """What follows the heads: residual, LayerNorm and, if there is an FFN, FFN, residual, LayerNorm."""

    def __init__(self, mab: nn.Module):
        super().__init__()
        self.norm1, self.ffn, self.norm2 = mab.norm1, mab.ffn, mab.norm2

    def forward(self, a: Tensor, heads: Tensor) -> Tensor:
        r = self.norm1(a + heads)
        return r if self.ffn is None else self.norm2(r + self.ffn(r))


class Msab(nn.Module):
    """X [R, C] -> [R, C]."""

    def __init__(self, mab: nn.Module):
        super().__init__()
        self.qkv = FusedProjection(mab.attention, "qkv")
        self.dropout = mab.attention.dropout
        self.row_wise = RowWise(mab)

    def forward(self, x: Tensor, buckets: list[Bucket]) -> Tensor:
        q, k, v = self.qkv(x)
        heads = []
        for bucket in buckets:
            parts = (bucket.of(part) for part in (q, k, v))
            heads.append(attend(self.dropout, *parts, bucket.key_mask()).flatten(0, 1))
        return self.row_wise(x, torch.cat(heads) if len(heads) > 1 else heads[0])


class Imsab(nn.Module):
    """X [R, C] -> [R, C] through inducing points."""

    def __init__(self, block: nn.Module):
        super().__init__()
        induce, attend_to = block.induce.attention, block.attend.attention
        self.inducing = nn.Parameter(block.inducing.detach().clone())
        self.induce_q = FusedProjection(induce, "q")
        self.induce_kv = FusedProjection(induce, "kv")
        self.induce = RowWise(block.induce)
        self.attend_q = FusedProjection(attend_to, "q")
        self.attend_kv = FusedProjection(attend_to, "kv")
        self.attend = RowWise(block.attend)
        self.dropouts = nn.ModuleList([induce.dropout, attend_to.dropout])
        # the FFN that follows the two attentions where neither has its own
        self.ffn, self.norm2 = block.ffn, block.norm2

    def forward(self, x: Tensor, buckets: list[Bucket]) -> Tensor:
        points = self.inducing.shape[0]
        (q,) = self.induce_q(self.inducing)
        k, v = self.induce_kv(x)
        heads = []
        for bucket in buckets:
            parts = (q.expand(bucket.sets, -1, -1, -1), bucket.of(k), bucket.of(v))
            heads.append(attend(self.dropouts[0], *parts, bucket.key_mask()))
        induced = self.induce(self.inducing, torch.cat(heads)).flatten(0, 1)  # [B M, C]
        (q,) = self.attend_q(x)
        k, v = (part.unflatten(0, (-1, points)) for part in self.attend_kv(induced))
        heads, first = [], 0
        for bucket in buckets:
            sets = slice(first, first + bucket.sets)
            parts = (bucket.of(q), k[sets], v[sets])
            heads.append(attend(self.dropouts[1], *parts, None).flatten(0, 1))
            first += bucket.sets
        r = self.attend(x, torch.cat(heads) if len(heads) > 1 else heads[0])
        return r if self.ffn is None else self.norm2(r + self.ffn(r))


class PaddedSetRank(nn.Module):
    """The model of `peer`, with its weights."""

    def __init__(self, peer: SetRank):
        super().__init__()
        self.input, self.score = peer.input, peer.score
        self.ordinal, self.every_block = peer.ordinal, peer.every_block
        kinds = {"Msab": Msab, "Imsab": Imsab}
        self.blocks = nn.ModuleList(kinds[type(block).__name__](block) for block in peer.blocks)

    def forward(
        self, features: Tensor, buckets: list[Bucket], ordinals: Tensor | None = None
    ) -> Tensor:
        """Scores [R] of padded features [R, F_in] and ordinals [R, rankings]; those of padding mean nothing."""
        given = 0 if ordinals is None else ordinals.shape[1]
        if given != len(self.ordinal):
            raise ValueError(f"{given} initial rankings for a model with {len(self.ordinal)}")
        x = self.input(features)
        position = 0.0
        for ranking, table in enumerate(self.ordinal):
            position = position + table(ordinals[:, ranking])
        if not self.every_block:
            x = x + position
        for block in self.blocks:
            x = block(x + position if self.every_block else x, buckets)
        return self.score(x).squeeze(1)


def softmax_cross_entropy(scores: Tensor, labels: Tensor, buckets: list[Bucket]) -> Tensor:
    """The mean [] of -sum a_y log a_s over the sets, from scores and labels [R].

    Every document is judged. A set without a relevant document counts as 0.
    """
    total, sets = scores.new_zeros(()), 0
    for bucket in buckets:
        s, y = bucket.of(scores), bucket.of(labels)
        if bucket.real is not None:
            s = s.masked_fill(~bucket.real, float("-inf"))
        relevant = y > 0  # padding has label 0
        a_y = torch.softmax(y.masked_fill(~relevant, float("-inf")), dim=1).masked_fill(~relevant, 0.0)
        terms = a_y * torch.log_softmax(s, dim=1)
        total = total - terms.masked_fill(~relevant, 0.0).sum()
        sets += bucket.sets
    return total / sets
