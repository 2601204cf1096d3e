"""Time reading LETOR text: `setrank import`, scikit-learn's load_svmlight_file, LightGBM's text loader.

Texts: one made up by `setrank synth --like istella` and the real sets of ../shared/data, all parts of each as
one file. Every round runs all readers on all texts, one after the other; MB/s is of the median round.

What a figure holds: `setrank import` from the start of the process to a checksummed, synced .sets file on the
disk, with one thread and with all; scikit-learn the call alone, in a process that has imported it; LightGBM
`Dataset(file).construct()`, which also bins the values. The peers read a copy that they can read: NULL written
as nan, and for LightGBM without qid and comments. MB are those of the file that the reader was given.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import lightgbm
import sklearn
from sklearn.datasets import load_svmlight_file

from bench_torch import cpu_name

ROOT = Path(__file__).resolve().parents[2]
REAL_SETS = {
    "mq2007agg": [f"A{part}.txt" for part in range(1, 6)],
    "mslr_union": [f"S{part}.txt" for part in range(1, 6)],
    "mq2008": [f"S{part}.txt" for part in range(1, 6)],
    "usptact": ["train.sorted.ltr"],
}
OURS = ("setrank, 1 thread", "setrank")
PEERS = ("scikit-learn", "LightGBM, 1 thread", "LightGBM")


def for_scikit_learn(text: bytes) -> bytes:
    """The text with a word for missing that it can read."""
    return text.replace(b":NULL", b":nan")


def for_lightgbm(text: bytes) -> bytes:
    """The text as its LibSVM reader takes it: without qid and comments."""
    text = re.sub(rb"[ \t]*#[^\n]*", b"", for_scikit_learn(text))
    return re.sub(rb"[ \t]+qid:\S+", b"", text)


def write_texts(folder: Path, setrank: Path, data: Path, queries: int) -> dict[str, Path]:
    """The texts by name, as files in `folder`, each beside the copies for the peers."""
    made_up = folder / "istella-like.txt"
    command = [setrank, "synth", "--like", "istella", "--queries", str(queries), "-o", made_up]
    subprocess.run(command, check=True)
    texts = {"istella-like": made_up}
    for name, parts in REAL_SETS.items():
        paths = [data / name / part for part in parts]
        if not all(path.is_file() for path in paths):
            print(f"skipped: {name} is not in {data}")
            continue
        texts[name] = folder / f"{name}.txt"
        texts[name].write_bytes(b"".join(with_last_newline(path.read_bytes()) for path in paths))
    for path in texts.values():
        text = path.read_bytes()
        path.with_suffix(".sklearn").write_bytes(for_scikit_learn(text))
        path.with_suffix(".lightgbm").write_bytes(for_lightgbm(text))
    return texts


def with_last_newline(text: bytes) -> bytes:
    """The text with its last line ended, so that another can follow."""
    return text if text.endswith(b"\n") else text + b"\n"


def import_with(setrank: Path, path: Path, *flags: str) -> None:
    """`setrank import`, start to end."""
    command = [setrank, "import", path, "-o", path.with_suffix(".sets"), *flags]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


def construct(path: Path, threads: int) -> None:
    """LightGBM's own reader on a file."""
    parameters = {"num_threads": threads, "verbosity": -1, "two_round": False}
    lightgbm.Dataset(str(path), params=parameters).construct()


def readers(setrank: Path, path: Path) -> dict[str, tuple[Path, Callable[[], object]]]:
    """What is timed on a text: the file that it reads, and the call."""
    sklearn_copy, lightgbm_copy = path.with_suffix(".sklearn"), path.with_suffix(".lightgbm")
    return {
        "setrank, 1 thread": (path, lambda: import_with(setrank, path, "--threads", "1")),
        "setrank": (path, lambda: import_with(setrank, path)),
        "scikit-learn": (sklearn_copy, lambda: load_svmlight_file(str(sklearn_copy), query_id=True)),
        "LightGBM, 1 thread": (lightgbm_copy, lambda: construct(lightgbm_copy, 1)),
        "LightGBM": (lightgbm_copy, lambda: construct(lightgbm_copy, 0)),
    }


def measure(setrank: Path, texts: dict[str, Path], rounds: int) -> dict:
    """Seconds of every reader on every text, round by round."""
    results: dict = {name: {} for name in texts}
    for _ in range(rounds):
        for name, path in texts.items():
            for reader, (file, call) in readers(setrank, path).items():
                start = time.perf_counter()
                call()
                seconds = time.perf_counter() - start
                of_reader = results[name].setdefault(reader, {"bytes": file.stat().st_size, "seconds": []})
                of_reader["seconds"].append(seconds)
    for of_text in results.values():
        for of_reader in of_text.values():
            of_reader["mb_per_s"] = of_reader["bytes"] / 1e6 / statistics.median(of_reader["seconds"])
    return results


def table(results: dict) -> str:
    """MB/s as a Markdown table, and the ratio of our one thread to one thread of each peer."""
    header = ["text", "MB", *OURS, *PEERS, "1 thread / scikit-learn", "1 thread / LightGBM, 1 thread"]
    lines = [header, ["---"] * len(header)]
    for name, readers_of in results.items():
        speed = {reader: found["mb_per_s"] for reader, found in readers_of.items()}
        ours = speed["setrank, 1 thread"]
        ratios = [ours / speed[peer] for peer in ("scikit-learn", "LightGBM, 1 thread")]
        size = readers_of["setrank"]["bytes"] / 1e6
        speeds = [f"{speed[reader]:.0f}" for reader in (*OURS, *PEERS)]
        lines.append([name, f"{size:.1f}", *speeds, *(f"{ratio:.1f}" for ratio in ratios)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--setrank", type=Path, default=ROOT / "target" / "release" / "setrank")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="real sets")
    parser.add_argument("--queries", type=int, default=100, help="queries of the text made up")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.md")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        texts = write_texts(Path(folder), args.setrank, args.data, args.queries)
        results = measure(args.setrank, texts, args.rounds)
    print(table(results), end="")
    if args.out is not None:
        record = {
            "date": date.today().isoformat(),
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "versions": {"lightgbm": lightgbm.__version__, "scikit-learn": sklearn.__version__},
            "rounds": args.rounds,
            "results": results,
        }
        args.out.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")
        args.out.with_suffix(".md").write_text(table(results))


if __name__ == "__main__":
    main()
