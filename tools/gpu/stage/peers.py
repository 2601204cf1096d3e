"""PyTorch on the same card, model and sizes: padded in bf16 by autocast, compiled, and without padding."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from part import OUT_OF_TIME, Stage
from throughput import BATCH_DOCS, ENCODERS, MODES

SIZES = ("istella", "40", "500")
# the smaller batch of `throughput`: what pads needs more memory
DOCUMENTS = BATCH_DOCS[0]
SECONDS = 60.0


def run(stage: Stage) -> None:
    """One run of tools/peers/bench_torch.py a cell."""
    torch = stage.facts.get("torch")
    if not isinstance(torch, dict) or not torch["available"]:
        why = "PyTorch sees no GPU" if isinstance(torch, dict) else f"no PyTorch: {torch}"
        stage.tell("peers", "skipped", 0.0, why)
        return
    # what is compiled takes long: all is first measured without
    for kinds in (("eager-1", "eager-8", "varlen"), ("compile-1", "compile-8")):
        for sizes in SIZES[:1] if stage.small else SIZES:
            for encoder in ENCODERS:
                for mode in MODES:
                    cell(stage, mode, encoder, sizes, kinds)


def cell(stage: Stage, mode: str, encoder: str, sizes: str, variants: tuple[str, ...]) -> None:
    """Measures one cell."""
    name = f"torch {mode} {encoder} {sizes} {variants[0].split('-')[0]}"
    if stage.left() < 10:
        stage.tell(name, "skipped", 0.0, OUT_OF_TIME)
        return
    script = str(stage.folder / "peers" / "bench_torch.py")
    command = [sys.executable, script, mode, "--device", "cuda", "--encoder", encoder]
    command += ["--sizes-file", str(sizes_file(stage, sizes)), "--variants", *variants]
    finished = stage.run(command, SECONDS)
    found = [json.loads(line) for line in finished.out.splitlines() if line.startswith("{")]
    if not found:
        stage.tell(name, "error", finished.seconds, finished.says())
        return
    rates = ", ".join(f"{of['variant']} {of['docs_per_s'] / 1e6:.3f}" for of in found)
    stage.tell(name, "passed", finished.seconds, f"M documents/s: {rates}", peers=found)


def sizes_file(stage: Stage, sizes: str) -> Path:
    """A file of the very sizes that `setrank bench` has in a batch of so many documents."""
    path = stage.work / f"sizes-{sizes}.txt"
    if not path.exists():
        command = [stage.program("setrank"), "bench", "train", "--sizes", sizes]
        path.write_text(stage.run([*command, "--batch-docs", str(DOCUMENTS), "--print-sizes"], 20).out)
    return path
