"""SetRank as a PyTorch module: a permutation-equivariant scorer of one query's documents.

Written plainly, one set at a time and without padding, to be compared with the Rust code.
Letters: n documents of a set, N of a batch, B sets, F_in input width, C hidden width, H heads,
D = C / H, M inducing points, G inner width of the FFN, K rbf centres a feature, R rankings.
"""

import math

import torch
from torch import Tensor, nn

from config import complete_config, input_width

RBF_WIDTH = 0.01  # the denominator in exp(-(x - mu)^2 / 0.01)
EMBEDDING_STD = 0.1


class LinearInput(nn.Linear):
    """[n, F_in] -> [n, C]: ReLU(x W + b)."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(super().forward(x))


class RbfInput(nn.Module):
    """[n, F_in] -> [n, C] through K radial basis functions a feature and two layers."""

    def __init__(self, config: dict):
        super().__init__()
        width, centers = input_width(config), config["rbf_centers"]
        hidden, eps = config["hidden_size"], config["layer_norm_eps"]
        self.centers = nn.Parameter(torch.empty(width, centers))
        self.fc1 = nn.Linear(width * centers, 4 * hidden)
        self.norm1 = nn.LayerNorm(4 * hidden, eps=eps)
        self.fc2 = nn.Linear(4 * hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        distance = x[:, :, None] - self.centers[None, :, :]
        activations = torch.exp(-distance.square() / RBF_WIDTH)
        # column f * K + k is centre k of feature f
        inner = self.norm1(torch.relu(self.fc1(activations.flatten(start_dim=1))))
        return self.norm2(self.fc2(inner))


class Attention(nn.Module):
    """Multi-head attention without an output projection: A [a, C], Z [z, C] -> [a, C]."""

    def __init__(self, config: dict):
        super().__init__()
        hidden = config["hidden_size"]
        self.num_heads = config["num_heads"]
        self.relu = config["qkv_relu"]
        self.q = nn.Linear(hidden, hidden)
        self.k = nn.Linear(hidden, hidden)
        self.v = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(config["dropout"])

    def project(self, layer: nn.Linear, x: Tensor) -> Tensor:
        """[rows, C] -> [H, rows, D]; head h holds the columns h D .. (h + 1) D."""
        y = layer(x)
        if self.relu:
            y = torch.relu(y)
        return y.unflatten(1, (self.num_heads, -1)).transpose(0, 1)

    def forward(self, a: Tensor, z: Tensor) -> Tensor:
        q, k, v = self.project(self.q, a), self.project(self.k, z), self.project(self.v, z)
        logits = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        weights = self.dropout(torch.softmax(logits, dim=-1))
        return (weights @ v).transpose(0, 1).flatten(start_dim=1)


class Ffn(nn.Module):
    """Row-wise [rows, C] -> [rows, G] -> [rows, C]."""

    def __init__(self, config: dict):
        super().__init__()
        self.fc1 = nn.Linear(config["hidden_size"], config["ffn_size"])
        self.fc2 = nn.Linear(config["ffn_size"], config["hidden_size"])

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.relu(self.fc1(x)))


class Mab(nn.Module):
    """Multi-head attention block: A [a, C] attends to Z [z, C]; result [a, C]."""

    def __init__(self, config: dict, ffn: bool = True):
        super().__init__()
        hidden, eps = config["hidden_size"], config["layer_norm_eps"]
        self.attention = Attention(config)
        self.norm1 = nn.LayerNorm(hidden, eps=eps)
        self.ffn = Ffn(config) if ffn else None
        self.norm2 = nn.LayerNorm(hidden, eps=eps) if ffn else None

    def forward(self, a: Tensor, z: Tensor) -> Tensor:
        r = self.norm1(a + self.attention(a, z))
        return r if self.ffn is None else self.norm2(r + self.ffn(r))


class Msab(Mab):
    """Self-attention block, X [n, C] -> [n, C]: MAB(X, X)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x, x)


class Imsab(nn.Module):
    """Induced self-attention block, X [n, C] -> [n, C]: T = MAB(I, X), then MAB(X, T)."""

    def __init__(self, config: dict):
        super().__init__()
        hidden, inner_ffn = config["hidden_size"], config["inner_ffn"]
        self.inducing = nn.Parameter(torch.empty(config["num_inducing"], hidden))
        self.induce = Mab(config, ffn=inner_ffn)
        self.attend = Mab(config, ffn=inner_ffn)
        # without the inner FFNs, one follows the two attentions
        self.ffn = None if inner_ffn else Ffn(config)
        self.norm2 = None if inner_ffn else nn.LayerNorm(hidden, eps=config["layer_norm_eps"])

    def forward(self, x: Tensor) -> Tensor:
        induced = self.induce(self.inducing, x)
        r = self.attend(x, induced)
        return r if self.ffn is None else self.norm2(r + self.ffn(r))


class OrdinalEmbedding(nn.Module):
    """The table of one initial ranking: indices [n], -1 = not in the ranking -> [n, C]."""

    def __init__(self, n_max: int, hidden: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_max, hidden))

    def forward(self, index: Tensor) -> Tensor:
        n_max = self.weight.shape[0]
        ranked = int(index.max()) + 1
        if ranked > n_max:
            raise ValueError(f"an initial ranking of {ranked} documents is over n_max {n_max}")
        present = (index >= 0).to(self.weight.dtype)[:, None]
        return self.weight[index.clamp(min=0)] * present


class SetRank(nn.Module):
    """The whole model; `state_dict()` has the names and shapes of a checkpoint."""

    def __init__(self, config: dict):
        super().__init__()
        config = complete_config(config)
        hidden = config["hidden_size"]
        if config["input"] == "rbf":
            self.input = RbfInput(config)
        else:
            self.input = LinearInput(input_width(config), hidden)
        ordinal = config["ordinal"]
        rankings = ordinal["rankings"] if ordinal else 0
        self.every_block = bool(ordinal) and ordinal["at"] == "every_block"
        self.ordinal = nn.ModuleList(
            OrdinalEmbedding(ordinal["n_max"], hidden) for _ in range(rankings)
        )
        block = Msab if config["encoder"] == "msab" else Imsab
        self.blocks = nn.ModuleList(block(config) for _ in range(config["num_blocks"]))
        self.score = nn.Linear(hidden, 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot-uniform matrices, zero biases, U(-1, 1) centres, N(0, 0.1^2) embeddings."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
            elif isinstance(module, RbfInput):
                nn.init.uniform_(module.centers, -1.0, 1.0)
            elif isinstance(module, OrdinalEmbedding):
                nn.init.normal_(module.weight, std=EMBEDDING_STD)
            elif isinstance(module, Imsab):
                nn.init.normal_(module.inducing, std=EMBEDDING_STD)

    def forward(self, features: Tensor, ordinals: Tensor | None = None) -> Tensor:
        """Scores [n] of one set from normalised features [n, F_in] and ordinals [R, n].

        An ordinal is the document's rank in that ranking, 0 = best, -1 = not in it. For
        training with `start` = sampled the caller adds the set's shift to those >= 0.
        """
        given = 0 if ordinals is None else ordinals.shape[0]
        if given != len(self.ordinal):
            raise ValueError(f"{given} initial rankings for a model with {len(self.ordinal)}")
        x = self.input(features)
        position = 0.0
        for table, index in zip(self.ordinal, ordinals if given else ()):
            position = position + table(index)
        if not self.every_block:
            x = x + position
        for block in self.blocks:
            x = block(x + position) if self.every_block else block(x)
        return self.score(x).squeeze(1)

    def score_sets(
        self, features: Tensor, offsets: list[int], ordinals: Tensor | None = None
    ) -> Tensor:
        """Scores [N] of B sets from features [N, F_in], offsets [B + 1] and ordinals [R, N]."""
        return torch.cat(
            [
                self(features[begin:end], None if ordinals is None else ordinals[:, begin:end])
                for begin, end in zip(offsets[:-1], offsets[1:])
            ]
        )
