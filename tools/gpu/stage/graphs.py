"""Training and scoring of a batch so small that launches take most of its time: as graphs, and launch by launch."""

from __future__ import annotations

import itertools

from bench import bench
from part import OUT_OF_TIME, OutOfTime, Stage
from peaks import best
from throughput import ENCODERS, MODES

# of each, the documents of a set and the sets of a batch: a step of training, and one query to rank
BATCHES = {"train": ("40", "32"), "infer": ("500", "1")}
# short steps, whose median is of many; an emulator has a number of its own
STEPS = ["--steps", "100"]


def run(stage: Stage) -> None:
    """A pair of runs of `setrank bench` a cell."""
    for mode, encoder in itertools.product(MODES, ENCODERS):
        cell(stage, mode, encoder)


def cell(stage: Stage, mode: str, encoder: str) -> None:
    """Measures one cell both ways."""
    sizes, sets = BATCHES[mode]
    name = f"graphs {mode} {encoder} {sizes} {sets}"
    found, seconds = {}, 0.0
    for way, more in (("plain", []), ("graphs", ["--graphs"])):
        batch = ["--encoder", encoder, "--sizes", sizes, "--sets", sets, *([] if stage.small else STEPS)]
        try:
            finished, report = bench(stage, mode, batch + more, best(stage))
        except OutOfTime:
            stage.tell(name, "skipped", seconds, OUT_OF_TIME)
            return
        seconds += finished.seconds
        if report is None:
            stage.tell(name, "error", seconds, f"{way}: {finished.says()}")
            return
        found[way] = report
    plain, graphs = found["plain"]["median_s"], found["graphs"]["median_s"]
    launched = found["graphs"]["gpu"]
    told = f"{1e6 * graphs:,.0f} us a step with graphs, {1e6 * plain:,.0f} without ({plain / graphs:.2f} times as fast)"
    told += f"; {launched['launches_per_step']:.0f} kernels in {launched['graph_launches_per_step']:.0f} graphs"
    stage.tell(name, "passed", seconds, told, graphs=found)
