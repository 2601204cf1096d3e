"""Time serving: `setrank rank` and `eval` beside PyTorch, from the start of the process on a LETOR file.

Makes up a text like Istella's (`setrank synth --like istella`) and a full-size model with random weights, and
runs in turns, round by round: `setrank rank` on the text and on a .sets file of it, score_fast.py (PyTorch as
one would write it for speed), and `setrank eval`. Seconds to the first printed score and to the end; medians.
The scores of both are compared once.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np
import torch

from bench_torch import cpu_name
from checkpoint import save_checkpoint
from config import complete_config
from full_size import TOLERANCE, draw_model, fit_normalize
from letor_fast import read_letor_fast

ROOT = Path(__file__).resolve().parents[2]
FEATURES = 220
MEAN_DOCUMENTS = 317  # of a query of Istella's


def make_text(setrank: Path, path: Path, documents: int) -> int:
    """Writes a text of about `documents` documents; gives their number."""
    queries = str(max(1, round(documents / MEAN_DOCUMENTS)))
    subprocess.run([setrank, "synth", "--like", "istella", "--queries", queries, "-o", path], check=True)
    with open(path, "rb") as file:
        return sum(1 for _ in file)


def make_model(folder: Path, text: Path, encoder: str) -> None:
    """A full-size checkpoint with random weights and a normalisation that fits the text."""
    rows = read_letor_fast(text, FEATURES, 1, "missing").features[:2000]
    # A column may be missing or constant in so few rows.
    rows = np.where(np.isnan(rows).all(axis=0), 0.0, rows)
    rows[0] = np.where(np.nanstd(rows, axis=0) > 0, rows[0], np.nanmax(rows, axis=0) + 1)
    normalize = fit_normalize(rows.astype(np.float32), "log1p-zscore")
    config = complete_config({"encoder": encoder, "num_features": FEATURES, "normalize": normalize})
    save_checkpoint(folder, config, draw_model(config, np.random.default_rng(0)))


def run(command: list[str | Path]) -> dict:
    """Runs a command that prints scores: seconds to the first and to the end, and the output."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        output = process.stdout.readline()
        first = time.perf_counter() - start
        output += process.stdout.read()
    if process.returncode != 0:
        raise RuntimeError(f"{command} failed")
    return {"first_s": first, "total_s": time.perf_counter() - start, "output": output}


def commands(setrank: Path, folder: Path, threads: int) -> dict[str, list[str | Path]]:
    """What is timed, by name."""
    model, text, store = folder / "model", folder / "data.txt", folder / "data.sets"
    with_threads = ["--threads", str(threads)]
    peer = Path(__file__).with_name("score_fast.py")
    return {
        "setrank rank, text": [setrank, "rank", "--model", model, "--data", text, *with_threads],
        "PyTorch, text": [sys.executable, peer, "--model", model, "--data", text, *with_threads],
        "setrank rank, .sets": [setrank, "rank", "--model", model, "--data", store, *with_threads],
        "setrank eval, text": [setrank, "eval", "--model", model, "--data", text, *with_threads],
    }


def measure(to_run: dict[str, list[str | Path]], rounds: int) -> dict[str, dict]:
    """Seconds of every command, in turns; checks that both rank alike."""
    results: dict[str, dict] = {name: {"first_s": [], "total_s": []} for name in to_run}
    for number in range(rounds):
        outputs = {}
        for name, command in to_run.items():
            measured = run(command)
            outputs[name] = measured.pop("output")
            for key, seconds in measured.items():
                results[name][key].append(seconds)
        if number == 0:
            compare(outputs["setrank rank, text"], outputs["PyTorch, text"])
    return results


def compare(ours: bytes, theirs: bytes) -> None:
    """Raises where the printed scores differ by more than rounding."""
    a, b = (np.array(output.split(), dtype=np.float64) for output in (ours, theirs))
    if a.shape != b.shape or not np.abs(a - b).max() <= TOLERANCE:
        raise RuntimeError("setrank and PyTorch give other scores")


def table(results: dict[str, dict], documents: int) -> str:
    """Medians as a Markdown table."""
    median: Callable[[str, str], float] = lambda name, key: statistics.median(results[name][key])
    lines = ["| command | first score, s | end, s | documents/s | end, PyTorch's / this |", "|---|---|---|---|---|"]
    peer = median("PyTorch, text", "total_s")
    for name in results:
        first, total = median(name, "first_s"), median(name, "total_s")
        shown = "" if "eval" in name else f"{first:.2f}"
        lines.append(f"| {name} | {shown} | {total:.2f} | {documents / total:.0f} | {peer / total:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--setrank", type=Path, default=ROOT / "target" / "release" / "setrank")
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--encoder", choices=("imsab", "msab"), default="imsab")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.md")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = folder / "data.txt"
        documents = make_text(args.setrank, text, args.documents)
        make_model(folder / "model", text, args.encoder)
        subprocess.run([args.setrank, "import", text, "-o", folder / "data.sets"], check=True)
        size = text.stat().st_size
        results = measure(commands(args.setrank, folder, args.threads), args.rounds)
    print(f"{documents} documents, {size / 1e6:.0f} MB, {args.encoder}, {args.threads} threads\n")
    print(table(results, documents), end="")
    if args.out is not None:
        record = {
            "date": date.today().isoformat(),
            "cpu": cpu_name(),
            "torch": torch.__version__,
            "encoder": args.encoder,
            "threads": args.threads,
            "documents": documents,
            "bytes": size,
            "rounds": args.rounds,
            "results": results,
        }
        args.out.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")
        args.out.with_suffix(".md").write_text(table(results, documents))


if __name__ == "__main__":
    main()
