"""Compare the speed of `setrank bench` with PyTorch's best, on this machine, in one run.

For each cell of the grid {train, infer} x {msab, imsab} x {32 sets of 40, 32 of Istella's sizes, 64
of Yahoo's} all variants of PyTorch are tried once; the fastest then takes turns with ours, so that
what else the machine does hits both. Figures are medians over the rounds, in documents a second.
"""

import argparse
import datetime
import itertools
import json
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Sequence

import torch

from bench_torch import (
    VARIANTS,
    Cell,
    best_variant,
    cpu_name,
    measure_variants,
    peak_gflops,
    read_sizes,
    summarize,
    time_steps,
)
from config import complete_config

BATCHES = {
    "32x40": ["--sizes", "40", "--sets", "32"],
    "istella": ["--sizes", "istella", "--sets", "32"],
    "yahoo": ["--sizes", "yahoo", "--sets", "64"],
}
TITLES = {"32x40": "32 sets of 40", "istella": "32 of Istella's", "yahoo": "64 of Yahoo's"}
# rounds, steps and warm-up, and those of --quick
FULL, QUICK = (5, 5, 2), (2, 2, 1)
# idle threads of PyTorch spin for a while, which would take from ours
REST_S = 0.5


@dataclass(frozen=True)
class Options:
    """How every cell is measured."""

    setrank: Path
    features: int
    threads: int
    rounds: int
    steps: int
    warmup: int
    variants: tuple[str, ...]
    peak_side: int


def setrank(binary: Path, arguments: list[str]) -> str:
    """The output of a command of the Rust program."""
    try:
        return subprocess.run(
            [binary, *arguments], check=True, stdout=subprocess.PIPE, text=True
        ).stdout
    except OSError as error:
        sys.exit(f"{binary}: {error.strerror}")
    except subprocess.CalledProcessError as error:
        # it has said why
        sys.exit(f"{binary} {' '.join(arguments)}: exit code {error.returncode}")


def ours(options: Options, mode: str, encoder: str, sizes: Path, more: Sequence[str] = ()) -> dict:
    """One run of `setrank bench`, with its peak."""
    arguments = ["bench", mode, "--encoder", encoder, "--sizes-file", str(sizes), "--json"]
    for flag in ("features", "threads", "steps", "warmup"):
        arguments += [f"--{flag}", str(getattr(options, flag))]
    arguments += ["--peak-side", str(options.peak_side), *more]
    return json.loads(setrank(options.setrank, arguments))


def compare(options: Options, mode: str, encoder: str, batch: str, sizes: Path) -> dict:
    """The entry of one cell."""
    config = complete_config({"num_features": options.features, "encoder": encoder})
    cell = Cell(mode, config, read_sizes(sizes))
    trial_steps = max(2, options.steps // 2)
    summaries, fastest = measure_variants(cell, options.variants, trial_steps, options.warmup)
    if not fastest:
        raise RuntimeError(f"no variant of PyTorch works for {mode} {encoder} {batch}")
    variant = best_variant(summaries)
    our_rounds, their_rounds = [], []
    for _ in range(options.rounds):
        time.sleep(REST_S)
        our_rounds.append(ours(options, mode, encoder, sizes))
        seconds = time_steps(fastest[variant], options.steps, warmup=1)
        their_rounds.append(summarize(seconds, sum(cell.sizes)))
    rate = {
        name: statistics.median(entry["docs_per_s"] for entry in entries)
        for name, entries in (("ours", our_rounds), ("theirs", their_rounds))
    }
    flops_per_doc = our_rounds[0]["flops_per_doc"]
    return {
        "mode": mode,
        "encoder": encoder,
        "batch": batch,
        "docs": sum(cell.sizes),
        "ours_docs_per_s": rate["ours"],
        "theirs_docs_per_s": rate["theirs"],
        "variant": variant,
        "ratio": rate["ours"] / rate["theirs"],
        "flops_per_doc": flops_per_doc,
        # of the peak in the same process, moments before and after
        "our_share": statistics.median(entry["share"] for entry in our_rounds),
        "their_gflops": rate["theirs"] * flops_per_doc / 1e9,
        "variants": {name: summary["docs_per_s"] for name, summary in summaries.items()},
        "our_rounds": our_rounds,
        "their_rounds": their_rounds,
    }


def table(entries: list[dict], their_peak: float) -> str:
    """A Markdown table of the entries."""
    lines = [
        "| | encoder | batch | setrank, docs/s | PyTorch, docs/s | variant | ratio "
        "| share of peak | PyTorch's |",
        "|---|---|---|---:|---:|---|---:|---:|---:|",
    ]
    for entry in entries:
        lines.append(
            f"| {entry['mode']} | {entry['encoder']} | {TITLES[entry['batch']]} "
            f"| {entry['ours_docs_per_s']:,.0f} | {entry['theirs_docs_per_s']:,.0f} "
            f"| {entry['variant']} | {entry['ratio']:.2f} | {entry['our_share']:.0%} "
            f"| {entry['their_gflops'] / their_peak:.0%} |"
        )
    return "\n".join(lines) + "\n"


def commit() -> str:
    """The commit of the working tree, marked where files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    here = Path(__file__).parent
    found = subprocess.run(command, cwd=here, stdout=subprocess.PIPE, text=True)
    return found.stdout.strip() or "unknown"


def provenance(options: Options) -> dict:
    """When, where and of what figures are."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu_name(),
        "threads": options.threads,
        "commit": commit(),
        "setrank": setrank(options.setrank, ["--version"]).strip(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "rounds": options.rounds,
        "steps": options.steps,
    }


def write(out: Path, document: dict, text: str) -> None:
    """Write the JSON document to `out` and the Markdown table beside it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=1) + "\n")
    out.with_suffix(".md").write_text(text)


# how often all is measured
COUNTS = ("rounds", "steps", "warmup")


def add_common_arguments(parser: argparse.ArgumentParser, counts: tuple[int, int, int]) -> None:
    """What all comparisons take, and how often they measure where nothing says it."""
    rounds, steps, warmup = counts
    program = Path("target/release/setrank")
    threads = torch.get_num_threads()
    parser.add_argument(
        "--setrank", type=Path, default=program, help=f"the Rust program [default: {program}]"
    )
    parser.add_argument("--features", type=int, default=220, help="of a document [default: 220]")
    parser.add_argument(
        "--threads", type=int, default=threads, help=f"of each side [default: {threads}]"
    )
    parser.add_argument("--rounds", type=int, help=f"turns of each side [default: {rounds}]")
    parser.add_argument("--steps", type=int, help=f"timed steps of a turn [default: {steps}]")
    parser.add_argument("--warmup", type=int, help=f"steps before them [default: {warmup}]")
    parser.add_argument("-o", "--out", type=Path, help="JSON file to write; a table goes beside it")


def check_common_arguments(
    parser: argparse.ArgumentParser, args: argparse.Namespace, counts: tuple[int, int, int]
) -> None:
    """Ends the program in words where one of them is wrong, and fills in what is not given."""
    for name, count in zip(COUNTS, QUICK if args.quick else counts):
        if getattr(args, name) is None:
            setattr(args, name, count)
        elif args.quick:
            parser.error(f"--{name}: --quick says how often all is measured")
    if args.out and (args.out.suffix == ".md" or args.out.is_dir()):
        parser.error(f"-o {args.out}: it takes a JSON file, beside which the table is NAME.md")
    if args.out:
        try:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=args.out.parent):
                pass
        except OSError as error:
            parser.error(f"-o {args.out}: {error.strerror}: {error.filename or args.out.parent}")
    if min(args.rounds, args.steps, args.warmup, args.threads, args.features) < 1:
        parser.error("--rounds, --steps, --warmup, --threads and --features must be at least 1")
    if args.features > 1 << 24:
        parser.error(f"--features {args.features}: at most {1 << 24}")
    if not args.setrank.is_file():
        parser.error(f"{args.setrank} is not there: cargo build --release, or give --setrank")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common_arguments(parser, FULL)
    parser.add_argument(
        "--variants",
        nargs="+",
        default=list(VARIANTS),
        metavar="KIND-BUCKETS",
        help="of PyTorch, eager or compiled, the sets sorted into so many buckets [default: "
        + ", ".join(VARIANTS)
        + "]",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="WORD",
        help="cells that have all of these: train, infer, msab, imsab, " + ", ".join(BATCHES),
    )
    parser.add_argument("--quick", action="store_true", help="2 rounds of 2 steps, eager only")
    args = parser.parse_args()
    words = {"train", "infer", "msab", "imsab", *BATCHES}
    unknown = sorted(set(args.only) - words)
    if unknown:
        parser.error(f"--only: {', '.join(unknown)}: choose from {', '.join(sorted(words))}")
    for alternatives in (("train", "infer"), ("msab", "imsab"), tuple(BATCHES)):
        asked = [word for word in alternatives if word in args.only]
        if len(asked) > 1:
            parser.error(f"--only: no cell is both {asked[0]} and {asked[1]}")
    unknown = [name for name in args.variants if not re.fullmatch(r"(eager|compile)-[1-9]\d*", name)]
    if unknown:
        parser.error(f"--variants: {', '.join(unknown)}: eager-N or compile-N, of N buckets")
    if args.quick and not any(name.startswith("eager") for name in args.variants):
        parser.error("--quick takes eager variants alone: give one, or leave --quick out")
    check_common_arguments(parser, args, FULL)
    return args


def main() -> int:
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    variants = tuple(args.variants)
    if args.quick:
        variants = tuple(name for name in variants if name.startswith("eager"))
    options = Options(
        args.setrank.resolve(),
        args.features,
        args.threads,
        args.rounds,
        args.steps,
        args.warmup,
        variants,
        4096,
    )
    their_peak = peak_gflops()
    document = {**provenance(options), "their_peak_gflops": their_peak, "cells": []}
    with tempfile.TemporaryDirectory() as folder:
        grid = itertools.product(("train", "infer"), ("msab", "imsab"), BATCHES)
        for mode, encoder, batch in grid:
            if not set(args.only) <= {mode, encoder, batch}:
                continue
            sizes = Path(folder) / batch
            sizes.write_text(
                setrank(options.setrank, ["bench", mode, "--print-sizes", *BATCHES[batch]])
            )
            torch.compiler.reset()
            document["cells"].append(compare(options, mode, encoder, batch, sizes))
            print(table(document["cells"][-1:], their_peak).splitlines()[-1], flush=True)
            # what has been measured is kept, whatever happens to the rest
            if args.out:
                write(args.out, document, table(document["cells"], their_peak))
    print("\n" + table(document["cells"], their_peak))
    return 0


if __name__ == "__main__":
    sys.exit(main())
