"""What fusion is worth on the card: the rungs of `--fuse` one beside the other, and all by wgmma."""

from __future__ import annotations

from bench import bench
from part import OUT_OF_TIME, OutOfTime, Stage
from peaks import best
from throughput import BATCH_DOCS, ENCODERS

# the batch that the emulator has counted, so that counts stand beside
SIZE = "384"
# of each rung; a small card's batch is small
STEPS = ["--steps", "5", "--rounds", "1"]


def label(rung: dict) -> str:
    """What is fused, and by which matrix instructions where they are not warps'."""
    return rung["fuse"] if rung["matrix"] == "mma" else f"{rung['fuse']}, {rung['matrix']}"


def run(stage: Stage) -> None:
    """One run of `setrank bench train --ablate` an encoder."""
    size, documents = ("40", 80) if stage.small else (SIZE, BATCH_DOCS[0])
    for encoder in ENCODERS:
        name = f"ablation {encoder} {size} {documents}"
        batch = ["--ablate", "--encoder", encoder, "--sizes", size, "--batch-docs", str(documents)]
        try:
            finished, found = bench(stage, "train", batch + ([] if stage.small else STEPS), best(stage))
        except OutOfTime:
            stage.tell(name, "skipped", 0.0, OUT_OF_TIME)
            continue
        if found is None:
            stage.tell(name, "error", finished.seconds, finished.says())
            continue
        rungs = [f"{label(rung)} {rung['measured']['docs_per_s']:,.0f}" for rung in found["rungs"] if "measured" in rung]
        stage.tell(name, "passed", finished.seconds, f"documents/s: {'; '.join(rungs)}", ablation=found)
