"""Time PyTorch on the CPU on the same work as `setrank bench`, in every way an expert would try.

A variant is `eager` or `compile`, and the number of buckets that the sets are sorted into, as in
`eager-4`. Prints one JSON object a variant, the fastest last.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from config import complete_config
from padded_torch import PaddedSetRank, make_layout, softmax_cross_entropy
from setrank_torch import SetRank

# as `setrank bench` has them: the preset `default`
LEARNING_RATE, CLIP, GRADES = 5e-4, 5.0, 5
PEAK_SIDE, PEAK_TRIES = 4096, 3
VARIANTS = ("eager-1", "eager-4", "eager-8", "eager-32", "compile-1", "compile-4")

Step = Callable[[], None]


@dataclass(frozen=True)
class Cell:
    """One thing to be measured."""

    mode: str  # "train" or "infer"
    config: dict  # of the model
    sizes: list[int]  # documents of each set


def cpu_name() -> str:
    """The processor's name, or its architecture where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def peak_gflops() -> float:
    """10^9 operations a second of the fastest of a few products of two large matrices."""
    a, b = torch.rand(PEAK_SIDE, PEAK_SIDE), torch.rand(PEAK_SIDE, PEAK_SIDE)
    with torch.inference_mode():
        seconds = time_steps(lambda: torch.mm(a, b), steps=PEAK_TRIES, warmup=1)
    return 2 * PEAK_SIDE**3 / min(seconds) / 1e9


def time_steps(step: Step, steps: int, warmup: int) -> list[float]:
    """Seconds of each of `steps` calls after `warmup` others."""
    for _ in range(warmup):
        step()
    seconds = []
    for _ in range(steps):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    return seconds


def make_step(cell: Cell, variant: str) -> Step:
    """The step of a cell in one variant, on a batch that is made up once."""
    kind, num_buckets = variant.split("-")
    torch.manual_seed(1)
    layout = make_layout(cell.sizes, int(num_buckets))
    documents = sum(cell.sizes)
    features = layout.pad(torch.randn(documents, cell.config["num_features"]))
    labels = layout.pad(torch.randint(GRADES, (documents,)).float())
    buckets = layout.buckets
    model = PaddedSetRank(SetRank(cell.config))

    def forward_and_loss() -> torch.Tensor:
        return softmax_cross_entropy(model(features, buckets), labels, buckets)

    def forward() -> torch.Tensor:
        return model(features, buckets)

    compute = forward_and_loss if cell.mode == "train" else forward
    if kind == "compile":
        compute = torch.compile(compute, dynamic=False)
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
    return [variant for variant in wanted if variant.endswith("-1")]


def measure_variants(
    cell: Cell, wanted: tuple[str, ...], steps: int, warmup: int
) -> tuple[dict[str, dict], dict[str, Step]]:
    """Summaries by variant, and the step of the fastest; what fails is told and left out."""
    summaries: dict[str, dict] = {}
    fastest: dict[str, Step] = {}
    for variant in usable_variants(cell.sizes, wanted):
        try:
            step = make_step(cell, variant)
            seconds = time_steps(step, steps, warmup)
        except Exception as error:  # a compiler that does not work here is a result, not a failure
            print(f"{variant}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        summaries[variant] = summarize(seconds, sum(cell.sizes))
        if variant == best_variant(summaries):
            fastest = {variant: step}
    return summaries, fastest


def best_variant(summaries: dict[str, dict]) -> str:
    return max(summaries, key=lambda variant: summaries[variant]["docs_per_s"])


def read_sizes(path: Path) -> list[int]:
    """Set sizes between blanks or line ends."""
    return [int(size) for size in path.read_text().split()]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=("train", "infer"))
    parser.add_argument("--encoder", choices=("msab", "imsab"), default="imsab")
    parser.add_argument("--sizes-file", type=Path, required=True, help="set sizes, one a line")
    parser.add_argument("--features", type=int, default=220)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), metavar="KIND-BUCKETS")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    config = complete_config({"num_features": args.features, "encoder": args.encoder})
    cell = Cell(args.mode, config, read_sizes(args.sizes_file))
    summaries, _ = measure_variants(cell, tuple(args.variants), args.steps, args.warmup)
    peak = peak_gflops()
    machine = {"peak_gflops": peak, "threads": args.threads, "torch": torch.__version__, "cpu": cpu_name()}
    for variant, summary in sorted(summaries.items(), key=lambda item: item[1]["docs_per_s"]):
        print(json.dumps({"variant": variant, **summary, **machine}), flush=True)
    return 0 if summaries else 1


if __name__ == "__main__":
    sys.exit(main())
