"""SetRank in PyTorch without padding: all sets' rows in one matrix, attention over sets of any sizes.

On a GPU it is PyTorch's flash attention over offsets; elsewhere a loop over the sets, which is there
to compare scores with. Letters as in setrank_torch.py; N = documents of the batch, B = its sets.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from padded_torch import FusedProjection, RowWise
from setrank_torch import SetRank


@dataclass(frozen=True)
class Rows:
    """Rows of all sets, one set after the other."""

    offsets: Tensor  # [B + 1] int32: where each set begins
    longest: int

    @staticmethod
    def of(sizes: list[int], device: str = "cpu") -> "Rows":
        counts = torch.tensor([0, *sizes], device=device)
        return Rows(counts.cumsum(0, dtype=torch.int32), max(sizes))


@dataclass(frozen=True)
class Sets:
    """The sets of a batch."""

    documents: Rows
    points: Rows  # inducing points, as many of each set
    set_of_document: Tensor  # [N]

    @staticmethod
    def of(sizes: list[int], num_inducing: int, device: str = "cpu") -> "Sets":
        counts = torch.tensor(sizes, device=device)
        numbers = torch.arange(len(sizes), device=device)
        points = Rows.of([num_inducing] * len(sizes), device)
        return Sets(Rows.of(sizes, device), points, torch.repeat_interleave(numbers, counts))


def attend(q: Tensor, k: Tensor, v: Tensor, of_q: Rows, of_k: Rows) -> Tensor:
    """[Nq, H, D], [Nk, H, D] twice -> [Nq, C]: each set's queries attend to its own keys."""
    if q.is_cuda:
        heads = torch.ops.aten._flash_attention_forward(
            q, k, v, of_q.offsets, of_k.offsets, of_q.longest, of_k.longest, 0.0, False, False
        )[0]
        return heads.flatten(1)
    heads = []
    for index in range(len(of_q.offsets) - 1):
        queries = slice(int(of_q.offsets[index]), int(of_q.offsets[index + 1]))
        keys = slice(int(of_k.offsets[index]), int(of_k.offsets[index + 1]))
        parts = (q[queries], k[keys], v[keys])
        result = F.scaled_dot_product_attention(*(part.transpose(0, 1) for part in parts))
        heads.append(result.transpose(0, 1).flatten(1))
    return torch.cat(heads)


class Msab(nn.Module):
    """X [N, C] -> [N, C]."""

    def __init__(self, mab: nn.Module):
        super().__init__()
        self.qkv = FusedProjection(mab.attention, "qkv")
        self.row_wise = RowWise(mab)

    def forward(self, x: Tensor, sets: Sets) -> Tensor:
        return self.row_wise(x, attend(*self.qkv(x), sets.documents, sets.documents))


class Imsab(nn.Module):
    """X [N, C] -> [N, C] through inducing points."""

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
        # the FFN that follows the two attentions where neither has its own
        self.ffn, self.norm2 = block.ffn, block.norm2

    def forward(self, x: Tensor, sets: Sets) -> Tensor:
        count = len(sets.points.offsets) - 1
        (q,) = self.induce_q(self.inducing)
        k, v = self.induce_kv(x)
        heads = attend(q.repeat(count, 1, 1), k, v, sets.points, sets.documents)
        induced = self.induce(self.inducing.repeat(count, 1), heads)  # [B M, C]
        (q,) = self.attend_q(x)
        k, v = self.attend_kv(induced)
        r = self.attend(x, attend(q, k, v, sets.documents, sets.points))
        return r if self.ffn is None else self.norm2(r + self.ffn(r))


class VarlenSetRank(nn.Module):
    """The model of `peer`, with its weights; without dropout and initial rankings."""

    def __init__(self, peer: SetRank):
        super().__init__()
        if len(peer.ordinal):
            raise ValueError("a model with initial rankings: this peer takes none")
        self.input, self.score = peer.input, peer.score
        kinds = {"Msab": Msab, "Imsab": Imsab}
        self.blocks = nn.ModuleList(kinds[type(block).__name__](block) for block in peer.blocks)

    def forward(self, features: Tensor, sets: Sets) -> Tensor:
        """Scores [N] of features [N, F_in]."""
        x = self.input(features)
        for block in self.blocks:
            x = block(x, sets)
        return self.score(x).squeeze(1)


def softmax_cross_entropy(scores: Tensor, labels: Tensor, sets: Sets) -> Tensor:
    """The mean [] of -sum a_y log a_s over the sets, from scores and labels [N].

    Every document is judged. A set without a relevant document counts as 0.
    """
    scores = scores.float() if scores.dtype == torch.bfloat16 else scores
    count = len(sets.documents.offsets) - 1
    of_set = sets.set_of_document
    relevant = labels > 0

    def sums(values: Tensor) -> Tensor:
        return values.new_zeros(count).index_add(0, of_set, values)

    def largest(values: Tensor) -> Tensor:
        start = values.new_full((count,), float("-inf"))
        return start.scatter_reduce(0, of_set, values, "amax")

    top = largest(scores.detach())
    log_a_s = scores - top[of_set] - sums((scores - top[of_set]).exp()).log()[of_set]
    weight = torch.where(relevant, (labels - largest(labels)[of_set]).exp(), 0.0)
    # where nothing is relevant, all weights are 0
    a_y = weight / sums(weight).clamp(min=torch.finfo(weight.dtype).tiny)[of_set]
    return -(a_y * log_a_s).sum() / count
