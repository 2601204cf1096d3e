"""Documents a second of training and scoring, with the card's peaks and the share of each floor."""

from __future__ import annotations

import json

from part import OUT_OF_TIME, Stage

MODES = ("train", "infer")
ENCODERS = ("msab", "imsab")
SIZES = ("40", "istella", "500")
BATCH_DOCS = (33_792, 135_168)
SECONDS = 25.0
TINY = (
    "--hidden 64 --heads 2 --blocks 1 --ffn 64 --inducing 4 --features 9 --steps 1 --warmup 1"
).split()


def run(stage: Stage) -> None:
    """One run of `setrank bench` a cell; the larger batch only once the smaller has a figure."""
    for sizes in SIZES[:1] if stage.small else SIZES:
        for encoder in ENCODERS:
            for mode in MODES:
                for documents in (80,) if stage.small else BATCH_DOCS:
                    if not cell(stage, mode, encoder, sizes, documents):
                        break


def cell(stage: Stage, mode: str, encoder: str, sizes: str, documents: int) -> bool:
    """Measures one cell; whether it has a figure."""
    name = f"bench {mode} {encoder} {sizes} {documents}"
    if stage.left() < 5:
        stage.tell(name, "skipped", 0.0, OUT_OF_TIME)
        return False
    command = [stage.program("setrank"), "bench", mode, "--device", "cuda", "--encoder", encoder]
    command += ["--sizes", sizes, "--batch-docs", str(documents), "--json", *(TINY if stage.small else ())]
    finished = stage.run(command, SECONDS)
    try:
        found = json.loads(finished.out)
    except ValueError:
        stage.tell(name, "error", finished.seconds, finished.says())
        return False
    stage.tell(name, "passed", finished.seconds, f"{found['docs_per_s'] / 1e6:.3f} M documents/s", bench=found)
    return True
