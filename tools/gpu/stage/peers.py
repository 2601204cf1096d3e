"""PyTorch on the same card, model and sizes: padded in bf16 by autocast, compiled, and without padding."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytorch
from part import OUT_OF_TIME, OutOfTime, Stage
from throughput import BATCH_DOCS, ENCODERS, MODES

# what is compiled takes long, and comes last; sets of one size need no buckets
PLAIN = {"istella": ("eager-1", "varlen", "eager-8"), "40": ("eager-1", "varlen"), "500": ("eager-1", "varlen")}
COMPILED = {
    "istella": ("compile-varlen", "compile-1", "compile-8", "graph-1"),
    "40": ("compile-varlen", "compile-1", "graph-1"),
    "500": ("compile-varlen", "compile-1", "graph-1"),
}
# the smaller batch of `throughput`: what pads needs more memory
DOCUMENTS = BATCH_DOCS[0]
# to import PyTorch and measure a variant
LEAST = 10.0

# mode, encoder, sizes, variant
Cell = tuple


def run_plain(stage: Stage) -> None:
    run(stage, "peers", PLAIN)


def run_compiled(stage: Stage) -> None:
    run(stage, "compiled peers", COMPILED)


def run(stage: Stage, part: str, variants: dict[str, tuple[str, ...]]) -> None:
    """All cells in one process, the most informative first; where a cell ends it, the others in another."""
    why_not = pytorch.why_not(pytorch.known(stage, 0.0))
    if why_not is not None:
        stage.tell(part, "skipped", 0.0, why_not)
        return
    cells = wanted(stage, variants)
    while cells and stage.left() >= LEAST:
        cells = measure(stage, cells)
    for cell in cells:
        stage.tell(name(cell), "skipped", 0.0, OUT_OF_TIME)


def wanted(stage: Stage, variants: dict[str, tuple[str, ...]]) -> list[Cell]:
    return [
        (mode, encoder, sizes, variant)
        for sizes in (["istella"] if stage.small else variants)
        for encoder in ENCODERS
        for mode in MODES
        for variant in variants[sizes]
    ]


def measure(stage: Stage, cells: list[Cell]) -> list[Cell]:
    """Tells of each cell as soon as tools/peers/bench_torch.py does, and gives those that it did not come to."""
    files = {sizes: str(sizes_file(stage, sizes)) for _, _, sizes, _ in cells}
    command = [sys.executable, str(stage.folder / "peers" / "bench_torch.py"), "--device", "cuda"]
    for mode, encoder, sizes, variant in cells:
        command += ["--cell", mode, encoder, files[sizes], variant]
    left, began, found = list(cells), time.monotonic(), {}

    def each_line(line: str) -> None:
        nonlocal began, found
        if (of_cell := result(line)) is not None and left:
            found = of_cell
            tell(stage, left.pop(0), time.monotonic() - began, found)
            began = time.monotonic()

    try:
        finished = stage.run(command, float("inf"), each_line=each_line)
    except OutOfTime:
        return left
    # of what ended the process there is an error, or nothing
    if left and "error" not in found:
        stage.tell(name(left.pop(0)), "error", time.monotonic() - began, finished.says())
    return left


def result(line: str) -> dict | None:
    """The result that a line tells; PyTorch has its own lines, too."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "variant" in found else None


def tell(stage: Stage, cell: Cell, seconds: float, found: dict) -> None:
    if "error" in found:
        stage.tell(name(cell), "error", seconds, found["error"])
    else:
        stage.tell(name(cell), "passed", seconds, f"{found['docs_per_s']:,.0f} documents/s", peers=[found])


def name(cell: Cell) -> str:
    return f"torch {' '.join(cell)}"


def sizes_file(stage: Stage, sizes: str) -> Path:
    """A file of the very sizes that `setrank bench` has in a batch of so many documents."""
    path = stage.work / f"{sizes}.txt"
    if not path.exists():
        command = [stage.program("setrank"), "bench", "train", "--sizes", sizes]
        listed = stage.run([*command, "--batch-docs", str(DOCUMENTS), "--print-sizes"], 20)
        if not listed.ok:
            raise RuntimeError(f"the sizes of sets: {listed.says()}")
        path.write_text(listed.out)
    return path
