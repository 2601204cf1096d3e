"""Documents a second of training and scoring, the share of each floor, and what each kernel takes."""

from __future__ import annotations

import itertools

from bench import bench, spread
from part import OUT_OF_TIME, OutOfTime, Stage
from peaks import best

MODES = ("train", "infer")
ENCODERS = ("msab", "imsab")
SIZES = ("40", "istella", "500")
BATCH_DOCS = (33_792, 135_168)


def run(stage: Stage) -> None:
    """One run of `setrank bench` a cell; a larger batch only where the smaller has a figure.

    Time may run out: first come all smaller batches, which PyTorch is compared on, and training before scoring.
    """
    sizes = SIZES[:1] if stage.small else SIZES
    cells = list(itertools.product(MODES, ENCODERS, sizes))
    for documents in (80,) if stage.small else BATCH_DOCS:
        cells = [of for of in cells if cell(stage, *of, documents)]


def cell(stage: Stage, mode: str, encoder: str, sizes: str, documents: int) -> bool:
    """Measures one cell; whether it has a figure."""
    name = f"bench {mode} {encoder} {sizes} {documents}"
    batch = ["--encoder", encoder, "--sizes", sizes, "--batch-docs", str(documents)]
    try:
        finished, found = bench(stage, mode, batch, best(stage))
    except OutOfTime:
        stage.tell(name, "skipped", 0.0, OUT_OF_TIME)
        return False
    if found is None:
        stage.tell(name, "error", finished.seconds, finished.says())
        return False
    found["spread"] = spread(found)
    share = found["gpu"]["share_of_floor"]
    floor = "the floor is not known" if share is None else f"{100 * share:.1f} % of the floor"
    message = f"{found['docs_per_s']:,.0f} documents/s, {floor}"
    stage.tell(name, "passed", finished.seconds, message, bench=found)
    return True
