"""Write tests/fixtures/<case>/: tiny checkpoints with scores, losses and gradients in float64.

Each folder is a checkpoint (config.json, model.safetensors) and a batch.safetensors with
  raw       [N, num_features] f32   raw feature rows, NaN = missing
  features  [N, F_in] f32           the same rows normalised, what the scores are computed from
  offsets   [B + 1] i64             labels [N] f32, < 0 = unjudged
  ordinals  [R, N] i32              rank in each initial ranking, -1 = not in it (if R > 0)
  scores    [N] f64
  loss.<loss> [1] f64               mean over the B sets
  grad.<loss>.<parameter> f64       its gradient, in the parameter's shape
losses.safetensors beside them has scores and, for every loss, its sum over the sets and its
gradient by the scores.
Everything is drawn from fixed seeds: the same versions on the same CPU write the same bytes.
"""

import argparse
import os
from pathlib import Path

# one code path and one thread, so that sums are taken in the same order everywhere
os.environ["MKL_CBWR"] = "COMPATIBLE"
os.environ["ATEN_CPU_CAPABILITY"] = "default"

import numpy as np
import torch
from safetensors.torch import save_file

from checkpoint import save_checkpoint
from config import complete_config
from letor import ordinals_from_scores
from losses import LOSSES, mean_loss
from normalize import normalize
from setrank_torch import RbfInput, SetRank

FIXTURES = Path(__file__).resolve().parents[2] / "tests" / "fixtures"

# one set of one document, one with unjudged documents, one without a relevant document,
# one with a single judged document, one with equal labels, one wholly unjudged
SET_LABELS = [
    [2],
    [0, 1],
    [3, 0, -1, 4, 1, 0, -1],
    [0, 0, -1, 0, 0],
    [-1, 3, -1],
    [2, 2, 2, 2],
    [-1, -1],
]

MISSING_SHARE = 0.15
UNRANKED_SHARE = 0.2

TINY = {
    "num_features": 5,
    "hidden_size": 8,
    "num_heads": 2,
    "num_blocks": 2,
    "ffn_size": 12,
    "num_inducing": 3,
    "rbf_centers": 4,
}

# all numbers in a normalisation are exact in float32
MINMAX = {
    "kind": "minmax",
    "center": [0.0, 0.0, 0.0, 0.0, 0.0],
    "scale": [1.0, 1.0, 1.0, 1.0, 1.0],
    "fill": [0.0, 0.0, 0.0, 0.0, 0.0],
    "clip": 1.0,
    "indicators": [False, False, False, False, False],
}
SHIFTED_MINMAX = {
    "kind": "minmax",
    "center": [-1.0, -0.5, 0.0, -2.0, 0.25],
    "scale": [0.5, 0.75, 1.0, 0.25, 0.0],
    "fill": [0.0, 1.0, 0.5, 0.25, 0.0],
    "clip": 1.0,
    "indicators": [False, False, False, False, False],
}
ZSCORE = {
    "kind": "zscore",
    "center": [0.5, -0.25, 0.0, 1.0, 0.125],
    "scale": [1.5, 2.0, 0.0, 0.75, 1.0],
    "fill": [0.0, -0.5, 0.0, 2.0, 0.0],
    "clip": 2.0,
    "indicators": [False, False, False, False, False],
}
LOG1P_ZSCORE = {
    "kind": "log1p-zscore",
    "center": [0.5, -0.25, 0.0, 0.25, 0.125],
    "scale": [1.5, 2.0, 1.0, 0.75, 1.0],
    "fill": [0.0, 0.0, 0.0, 0.5, 0.0],
    "clip": 3.0,
    "indicators": [True, False, False, True, False],
}

QUANTILE_RANK = {
    "kind": "quantile",
    "knots": [
        {"values": [-1.0, 0.0, 1.0], "scores": [-1.5, 0.25, 1.5]},
        {"values": [-2.0, 0.5], "scores": [-2.0, 0.75]},
        {"values": [0.0], "scores": [0.0]},
        {"values": [-0.5, 0.5, 2.0], "scores": [-0.75, -0.75, 2.0]},
        {"values": [0.0, 0.25], "scores": [-0.5, 0.5]},
    ],
    "fill": [-1.5, 0.0, 0.0, 2.0, 0.0],
    "within_set": "rank",
}
WITHIN_SET = {**LOG1P_ZSCORE, "fill": [0.0, -3.0, 3.0, 0.5, 0.0], "within_set": "both"}

CASES = {
    "msab_linear": {"encoder": "msab", "hidden_size": 16, "num_heads": 4, "ffn_size": 24},
    "imsab_linear": {"encoder": "imsab"},
    "msab_rbf": {"encoder": "msab", "input": "rbf", "normalize": MINMAX},
    "imsab_rbf": {"encoder": "imsab", "input": "rbf", "normalize": MINMAX},
    "imsab_authors": {
        "encoder": "imsab",
        "input": "rbf",
        "qkv_relu": True,
        "inner_ffn": False,
        "layer_norm_eps": 1e-8,
        "ordinal": {"rankings": 1, "n_max": 7, "at": "every_block", "start": "zero"},
        "normalize": SHIFTED_MINMAX,
    },
    "msab_two_rankings": {
        "encoder": "msab",
        "qkv_relu": True,
        "ordinal": {"rankings": 2, "n_max": 9, "at": "input", "start": "sampled"},
    },
    "imsab_qkv_relu": {"encoder": "imsab", "qkv_relu": True, "layer_norm_eps": 1e-8},
    "msab_large_eps": {"encoder": "msab", "layer_norm_eps": 1e-2, "normalize": ZSCORE},
    "imsab_three_rankings": {
        "encoder": "imsab",
        "ordinal": {"rankings": 3, "n_max": 7, "at": "every_block", "start": "zero"},
        "normalize": LOG1P_ZSCORE,
    },
    "msab_quantile_rank": {"encoder": "msab", "normalize": QUANTILE_RANK},
    "imsab_within_set": {"encoder": "imsab", "normalize": WITHIN_SET},
}

# losses of which the models' gradients are exported; of the others only those by the scores
MODEL_LOSSES = ("attention_rank", "softmax_cross_entropy")


def draw_model(config: dict, rng: np.random.Generator) -> SetRank:
    """A float64 model whose weights are float32 values, none of them at a trivial one."""
    model = SetRank(config)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            shape = tuple(parameter.shape)
            if isinstance(module, RbfInput):  # the centres, where the features are
                value = rng.uniform(-0.1, 1.1, shape)
            elif isinstance(module, torch.nn.LayerNorm):
                value = (name == "weight") + 0.2 * rng.standard_normal(shape)
            elif name == "bias":
                value = 0.2 * rng.standard_normal(shape)
            elif isinstance(module, torch.nn.Linear):
                value = rng.standard_normal(shape) * np.sqrt(1.5 / shape[1])
            else:  # inducing points and ordinal tables
                value = 0.5 * rng.standard_normal(shape)
            parameter.data = torch.from_numpy(value.astype(np.float32))
    return model.double().eval()


def draw_batch(config: dict, rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """The inputs of a case, by their names in batch.safetensors."""
    labels = np.concatenate(SET_LABELS).astype(np.float32)
    offsets = np.cumsum([0] + [len(labels) for labels in SET_LABELS])
    shape = (len(labels), config["num_features"])
    if config["normalize"]["kind"].endswith("minmax"):
        raw = rng.uniform(-0.25, 1.25, shape)  # some values are clipped
    else:
        raw = 1.5 * rng.standard_normal(shape)
    raw[rng.random(shape) < MISSING_SHARE] = np.nan
    raw = raw.astype(np.float32)
    batch = {
        "raw": raw,
        "features": normalize(raw, config["normalize"], offsets).astype(np.float32),
        "offsets": offsets,
        "labels": labels,
    }
    if config["ordinal"] is not None:
        rankings = []
        for _ in range(config["ordinal"]["rankings"]):
            initial = rng.standard_normal(len(labels))
            initial[rng.random(len(labels)) < UNRANKED_SHARE] = np.nan
            rankings.append(ordinals_from_scores(initial, labels, offsets))
        batch["ordinals"] = np.stack(rankings).astype(np.int32)
    return {name: torch.from_numpy(array) for name, array in batch.items()}


def evaluate(model: SetRank, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Scores, losses and gradients in float64, by their names in batch.safetensors."""
    offsets = batch["offsets"].tolist()
    ordinals = batch["ordinals"].long() if "ordinals" in batch else None
    labels = batch["labels"].double()
    scores = model.score_sets(batch["features"].double(), offsets, ordinals)
    results = {"scores": scores.detach()}
    for loss_name in MODEL_LOSSES:
        value = mean_loss(LOSSES[loss_name], scores, labels, offsets)
        gradients = torch.autograd.grad(value, list(model.parameters()), retain_graph=True)
        results[f"loss.{loss_name}"] = value.detach().reshape(1)
        for (name, _), gradient in zip(model.named_parameters(), gradients):
            results[f"grad.{loss_name}.{name}"] = gradient.contiguous()
    return results


def export_case(folder: Path, config: dict, seed: int) -> None:
    """Write one case's three files."""
    config = complete_config(config)
    rng = np.random.default_rng(seed)
    model = draw_model(config, rng)
    batch = draw_batch(config, rng)
    save_checkpoint(folder, config, model)
    save_file({**batch, **evaluate(model, batch)}, folder / "batch.safetensors")


def export_losses(path: Path, seed: int) -> None:
    """Write the losses of some scores and their gradients, each the sum over the sets."""
    rng = np.random.default_rng(seed)
    labels = torch.from_numpy(np.concatenate(SET_LABELS).astype(np.float64))
    offsets = np.cumsum([0] + [len(labels) for labels in SET_LABELS])
    scores = torch.from_numpy(2.0 * rng.standard_normal(len(labels))).requires_grad_()
    tensors = {"scores": scores.detach(), "labels": labels.float(), "offsets": torch.from_numpy(offsets)}
    for name, loss in LOSSES.items():
        value = mean_loss(loss, scores, labels, offsets.tolist()) * len(SET_LABELS)
        tensors[f"loss.{name}"] = value.detach().reshape(1)
        tensors[f"grad.{name}"] = torch.autograd.grad(value, scores)[0]
    save_file(tensors, path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the fixtures of the Rust tests.")
    parser.add_argument("--out", type=Path, default=FIXTURES, help="default: tests/fixtures")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for seed, (name, settings) in enumerate(CASES.items(), start=2020):
        export_case(args.out / name, {**TINY, **settings}, seed)
    export_losses(args.out / "losses.safetensors", seed=2019)


if __name__ == "__main__":
    main()
