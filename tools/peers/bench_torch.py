"""Time PyTorch on the same work as `setrank bench`, in the ways an expert would try first.

A variant is `eager`, `compile`, or `graph`, which is compiled and runs as CUDA graphs, and the number
of buckets that the sets are sorted into, as in `eager-4`; or `varlen` or `compile-varlen`, which pad
nothing. On a GPU products are in bf16 by autocast. Cells are
measured in the order given, and for each variant a JSON object is printed as soon as it is known.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import torch

from config import complete_config
import padded_torch
import varlen_torch
from padded_torch import PaddedSetRank, make_layout
from setrank_torch import SetRank
from varlen_torch import Sets, VarlenSetRank

# as `setrank bench` has them: the preset `default`
LEARNING_RATE, CLIP, GRADES = 5e-4, 5.0, 5
PEAK_SIDE, PEAK_TRIES = {"cpu": 4096, "cuda": 8192}, 3
COPIED_BYTES = 1 << 30
# seconds that a card computes before it is timed: one that has idled begins at a low clock
WARM = 0.2
# those worth trying on a CPU
VARIANTS = ("eager-1", "eager-4", "eager-8", "eager-32", "compile-1", "compile-4")

Step = Callable[[], None]


@dataclass(frozen=True)
class Cell:
    """One thing to be measured."""

    mode: str  # "train" or "infer"
    config: dict  # of the model
    sizes: list[int]  # documents of each set
    device: str = "cpu"  # or "cuda"
    pad_to: int | None = None  # documents that padded sets are filled up to; None: as the largest of a bucket


def cpu_name() -> str:
    """The processor's name, or its architecture where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def peak_gflops(device: str = "cpu") -> float:
    """10^9 operations a second of the fastest of a few products of two large matrices."""
    side, dtype = PEAK_SIDE[device], torch.bfloat16 if device == "cuda" else torch.float32
    a, b = (torch.rand(side, side, device=device).to(dtype) for _ in range(2))
    with torch.inference_mode():
        seconds = time_steps(lambda: torch.mm(a, b), PEAK_TRIES, 1, device)
    return 2 * side**3 / min(seconds) / 1e9


def copy_gbytes() -> float:
    """10^9 bytes a second, read and written, of the fastest of a few large copies on the GPU."""
    a = torch.empty(COPIED_BYTES, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    seconds = time_steps(lambda: b.copy_(a), PEAK_TRIES, 1, "cuda")
    return 2 * COPIED_BYTES / min(seconds) / 1e9


def time_steps(step: Step, steps: int, warmup: int, device: str = "cpu") -> list[float]:
    """Seconds of each of `steps` calls after `warmup` others."""
    for _ in range(warmup):
        step()
    if device == "cuda":
        return time_queued_steps(step, steps)
    seconds = []
    for _ in range(steps):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    return seconds


def time_queued_steps(step: Step, steps: int) -> list[float]:
    """As `setrank bench` times a GPU: by events between steps that are queued without waiting."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    while time.perf_counter() - started < WARM:
        step()
        torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    return [first.elapsed_time(second) / 1e3 for first, second in zip(events, events[1:])]


def make_model(cell: Cell, variant: str) -> tuple[torch.nn.Module, Step, Step]:
    """The model of a variant on a batch that is made up once, its forward pass, and its loss besides."""
    num_buckets = variant.partition("-")[2]
    torch.manual_seed(1)
    documents, device = sum(cell.sizes), cell.device
    features = torch.randn(documents, cell.config["num_features"]).to(device)
    labels = torch.randint(GRADES, (documents,)).float().to(device)
    if variant.endswith("varlen"):
        sets = Sets.of(cell.sizes, cell.config["num_inducing"], device)
        model = VarlenSetRank(SetRank(cell.config)).to(device)

        def varlen_loss() -> torch.Tensor:
            return varlen_torch.softmax_cross_entropy(model(features, sets), labels, sets)

        return model, lambda: model(features, sets), varlen_loss
    layout = make_layout(cell.sizes, int(num_buckets), device, cell.pad_to)
    features, labels, buckets = layout.pad(features), layout.pad(labels), layout.buckets
    model = PaddedSetRank(SetRank(cell.config)).to(device)

    def forward() -> torch.Tensor:
        return model(features, buckets)

    def forward_and_loss() -> torch.Tensor:
        return padded_torch.softmax_cross_entropy(model(features, buckets).float(), labels, buckets)

    return model, forward, forward_and_loss


def make_step(cell: Cell, variant: str) -> Step:
    """The step of a cell in one variant, on a batch that is made up once."""
    model, forward, forward_and_loss = make_model(cell, variant)
    plain = forward_and_loss if cell.mode == "train" else forward
    if variant.startswith("compile"):
        plain = torch.compile(plain, dynamic=False)
    elif variant.startswith("graph"):
        plain = torch.compile(plain, dynamic=False, mode="reduce-overhead")

    def compute() -> torch.Tensor:
        if variant.startswith("graph"):
            torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(cell.device, torch.bfloat16, enabled=cell.device == "cuda"):
            return plain()

    if cell.mode == "infer":
        model.eval()

        def infer() -> None:
            with torch.inference_mode():
                compute()

        return infer

    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE, fused=True)

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        compute().backward()
        torch.nn.utils.clip_grad_norm_(parameters, CLIP, foreach=True)
        optimizer.step()

    return train


def summarize(seconds: list[float], documents: int) -> dict:
    """The keys that `setrank bench --json` has, as far as they are known here."""
    median = statistics.median(seconds)
    return {
        "docs": documents,
        "docs_per_s": documents / median,
        "median_s": median,
        "min_s": min(seconds),
    }


def usable_variants(sizes: list[int], wanted: tuple[str, ...]) -> list[str]:
    """Those that differ from each other on sets of these sizes."""
    if len(set(sizes)) > 1:
        return list(wanted)
    return [variant for variant in wanted if variant.endswith(("-1", "varlen"))]


def measure(cell: Cell, variant: str, steps: int, warmup: int) -> tuple[Step, dict]:
    """The step of one variant, and its summary."""
    step = make_step(cell, variant)
    return step, summarize(time_steps(step, steps, warmup, cell.device), sum(cell.sizes))


def measure_variants(
    cell: Cell, wanted: tuple[str, ...], steps: int, warmup: int
) -> tuple[dict[str, dict], dict[str, Step]]:
    """Summaries by variant, and the step of the fastest; what fails is told and left out."""
    summaries: dict[str, dict] = {}
    fastest: dict[str, Step] = {}
    for variant in usable_variants(cell.sizes, wanted):
        try:
            step, summary = measure(cell, variant, steps, warmup)
        except Exception as error:  # a compiler that does not work here is a result, not a failure
            print(f"{variant}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        summaries[variant] = summary
        print(f"{variant}: {summaries[variant]['docs_per_s']:.0f} documents a second", file=sys.stderr)
        if variant == best_variant(summaries):
            fastest = {variant: step}
    return summaries, fastest


def best_variant(summaries: dict[str, dict]) -> str:
    return max(summaries, key=lambda variant: summaries[variant]["docs_per_s"])


def read_sizes(path: Path) -> list[int]:
    """Set sizes between blanks or line ends."""
    return [int(size) for size in path.read_text().split()]


def make_cell(of: list[str], args: argparse.Namespace) -> Cell:
    mode, encoder, sizes, _ = of
    if mode not in ("train", "infer"):
        raise ValueError(f"{mode} is neither train nor infer")
    config = complete_config({"num_features": args.features, "encoder": encoder})
    return Cell(mode, config, read_sizes(Path(sizes)), args.device)


def print_line(cell: Cell, of: list[str], args: argparse.Namespace) -> bool:
    """Measures and prints one variant; whether it works."""
    mode, encoder, sizes, variant = of
    line = {"mode": mode, "encoder": encoder, "sizes": Path(sizes).stem, "variant": variant}
    try:
        line.update(measure(cell, variant, args.steps, args.warmup)[1])
    except Exception as error:  # a compiler that does not work here is a result, not a failure
        line["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(line), flush=True)
    return "error" not in line


def forget(device: str, variant: str) -> None:
    """Frees what a variant had; fails where it left a GPU that nothing runs on any more."""
    gc.collect()
    if variant.startswith(("compile", "graph")):
        torch.compiler.reset()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cell",
        nargs=4,
        action="append",
        required=True,
        metavar=("train|infer", "msab|imsab", "SIZES-FILE", "VARIANT"),
        help="what to measure, on set sizes of which the file has one a line; any number of times",
    )
    parser.add_argument("--features", type=int, default=220)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch sees no GPU")
    try:
        cells = [make_cell(of, args) for of in args.cell]
    except (OSError, ValueError) as error:
        parser.error(f"--cell: {error}")
    worked = False
    for cell, of in zip(cells, args.cell):
        worked |= print_line(cell, of, args)
        forget(args.device, of[3])
    return 0 if worked else 1


if __name__ == "__main__":
    sys.exit(main())
