"""What a batch costs in which sets come with padding: as rows of documents alone, and in grids that stay on the card."""

from __future__ import annotations

import itertools

from bench import bench
from part import OUT_OF_TIME, OutOfTime, Stage
from peaks import best
from throughput import BATCH_DOCS, ENCODERS, MODES

LAYOUTS = ("ragged", "bucketed", "padded", "masked")
SIZES = "istella"
STEPS = ["--steps", "5", "--rounds", "1"]


def run(stage: Stage) -> None:
    """Four runs of `setrank bench` a cell."""
    for mode, encoder in itertools.product(MODES, ENCODERS):
        cell(stage, mode, encoder)


def cell(stage: Stage, mode: str, encoder: str) -> None:
    """Measures one cell in every layout."""
    sizes, documents = ("40", 80) if stage.small else (SIZES, BATCH_DOCS[0])
    name = f"layouts {mode} {encoder} {sizes} {documents}"
    batch = ["--encoder", encoder, "--sizes", sizes, "--batch-docs", str(documents)]
    batch += [] if stage.small else STEPS
    found, seconds = {}, 0.0
    for layout in LAYOUTS:
        try:
            finished, report = bench(stage, mode, [*batch, "--layout", layout], best(stage))
        except OutOfTime:
            stage.tell(name, "skipped", seconds, OUT_OF_TIME)
            return
        seconds += finished.seconds
        if report is None:
            stage.tell(name, "error", seconds, f"{layout}: {finished.says()}")
            return
        found[layout] = report
    ragged = found["ragged"]["median_s"]
    told = [
        f"{layout} {report['rows_per_doc']:.2f} rows a document, {report['median_s'] / ragged:.3f}"
        for layout, report in found.items()
    ]
    stage.tell(name, "passed", seconds, f"of the ragged batch's time: {'; '.join(told)}", layouts=found)
