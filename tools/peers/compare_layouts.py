"""Compare what each layout of a batch costs, here and in PyTorch, on this machine, in one run.

Sets come ragged, in buckets of like sizes, padded to the longest, or masked at a fixed length. This
program takes padding out and computes documents alone; PyTorch's side, written for speed, computes
what it is handed: ragged it is a call of attention a set, and the other rows are padded. All layouts
of both sides take turns, round by round. Figures are medians over the rounds, in documents a second.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from bench_torch import Cell, make_step, read_sizes, summarize, time_steps
from compare_speed import (
    BATCHES,
    REST_S,
    TITLES,
    Options,
    add_common_arguments,
    check_common_arguments,
    ours,
    provenance,
    setrank,
    write,
)
from config import complete_config
from padded_torch import make_layout

LAYOUTS = ("ragged", "bucketed", "padded", "masked")
# `setrank bench --layout bucketed` has as many
BUCKETS = 8
# rounds, steps and warm-up
FULL = (5, 3, 1)


def fixed_length(sizes: list[int]) -> int:
    """What sets are masked at: the next power of two."""
    return 1 << (max(sizes) - 1).bit_length()


def rows(layout: str, sizes: list[int]) -> int:
    """Rows that PyTorch computes of sets of these sizes."""
    return make_layout(sizes, *of_layout(layout, sizes)).rows


def of_layout(layout: str, sizes: list[int]) -> tuple[int, str, int | None]:
    """Buckets, the device, and what they are padded to."""
    buckets = {"ragged": len(sizes), "bucketed": BUCKETS}.get(layout, 1)
    return buckets, "cpu", fixed_length(sizes) if layout == "masked" else None


def compare(options: Options, mode: str, encoder: str, batch: str, sizes_file: Path) -> list[dict]:
    """The entries of one cell: one a layout."""
    sizes = read_sizes(sizes_file)
    config = complete_config({"num_features": options.features, "encoder": encoder})
    steps = {}
    for layout in LAYOUTS:
        buckets, device, pad_to = of_layout(layout, sizes)
        cell = Cell(mode, config, sizes, device, pad_to)
        steps[layout] = make_step(cell, f"eager-{buckets}")
        time_steps(steps[layout], options.warmup, 0)
    found = {layout: ([], []) for layout in LAYOUTS}
    for _ in range(options.rounds):
        for layout, (our_rounds, their_rounds) in found.items():
            more = ["--layout", layout]
            if layout == "masked":
                more += ["--pad-to", str(fixed_length(sizes))]
            time.sleep(REST_S)
            our_rounds.append(ours(options, mode, encoder, sizes_file, more))
            their_rounds.append(summarize(time_steps(steps[layout], options.steps, 1), sum(sizes)))

    def rate(entries: list[dict]) -> float:
        return statistics.median(entry["docs_per_s"] for entry in entries)

    return [
        {
            "mode": mode,
            "encoder": encoder,
            "batch": batch,
            "layout": layout,
            "docs": sum(sizes),
            "rows_per_doc": our_rounds[0]["rows_per_doc"],
            "their_rows_per_doc": rows(layout, sizes) / sum(sizes),
            "ours_docs_per_s": rate(our_rounds),
            "theirs_docs_per_s": rate(their_rounds),
            "ratio": rate(our_rounds) / rate(their_rounds),
            "our_rounds": our_rounds,
            "their_rounds": their_rounds,
        }
        for layout, (our_rounds, their_rounds) in found.items()
    ]


def table(entries: list[dict]) -> str:
    """A Markdown table of the entries."""
    lines = [
        "| | encoder | batch | layout | rows a document | setrank, docs/s | PyTorch, docs/s | ratio |",
        "|---|---|---|---|---:|---:|---:|---:|",
    ]
    for entry in entries:
        lines.append(
            f"| {entry['mode']} | {entry['encoder']} | {TITLES[entry['batch']]} | {entry['layout']} "
            f"| {entry['their_rows_per_doc']:.2f} | {entry['ours_docs_per_s']:,.0f} "
            f"| {entry['theirs_docs_per_s']:,.0f} | {entry['ratio']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common_arguments(parser, FULL)
    parser.add_argument(
        "--batch",
        choices=("istella", "yahoo"),
        default="yahoo",
        help="32 sets of Istella's sizes, or 64 of Yahoo's [default: yahoo]",
    )
    parser.add_argument(
        "--modes",
        nargs="+",
        choices=("train", "infer"),
        default=["train", "infer"],
        help="what steps do [default: both]",
    )
    parser.add_argument("--quick", action="store_true", help="2 rounds of 2 steps")
    args = parser.parse_args()
    check_common_arguments(parser, args, FULL)
    return args


def main() -> int:
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    options = Options(
        args.setrank.resolve(),
        args.features,
        args.threads,
        args.rounds,
        args.steps,
        args.warmup,
        (),
        1024,
    )
    document = {**provenance(options), "cells": []}
    with tempfile.TemporaryDirectory() as folder:
        sizes = Path(folder) / args.batch
        sizes.write_text(setrank(options.setrank, ["bench", "train", "--print-sizes", *BATCHES[args.batch]]))
        for mode in args.modes:
            for encoder in ("msab", "imsab"):
                document["cells"] += compare(options, mode, encoder, args.batch, sizes)
                print(table(document["cells"][-len(LAYOUTS) :]), flush=True)
                # what has been measured is kept, whatever happens to the rest
                if args.out:
                    write(args.out, document, table(document["cells"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
