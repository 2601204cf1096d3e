"""Runs of `setrank bench` on the card."""

from __future__ import annotations

import json

from part import Stage
from process import Finished

SECONDS = 25.0
# a model and a number of steps for an emulator
TINY = (
    "--hidden 64 --heads 2 --blocks 1 --ffn 64 --inducing 4 --features 9 --steps 2 --warmup 1 --rounds 2"
).split()


def bench(stage: Stage, mode: str, more: list[str], peak: float | None = None) -> tuple[Finished, dict | None]:
    """One run, with 10^9 operations a second as the peak where that is known; what it found, if anything."""
    path = stage.work / "bench.json"
    path.unlink(missing_ok=True)
    command = [stage.program("setrank"), "bench", mode, "--device", "cuda", *more, "--json", str(path)]
    if stage.small:
        command += TINY
    if peak is not None:
        command += ["--peak", f"{peak / 1e3:.6g}"]
    elif stage.small:
        command += ["--peak-side", "64"]
    finished = stage.run(command, SECONDS)
    if not finished.ok or not path.exists():
        return finished, None
    return finished, json.loads(path.read_text())


def spread(found: dict) -> float:
    """How far the medians of the rounds are apart, as a share of the median of all steps."""
    return (max(found["rounds_s"]) - min(found["rounds_s"])) / found["median_s"]
