"""Checks the GPU at hand, in parts that are bounded in time and independent of each other.

Writes a JSON report, a table, logs, and the outputs of what was wrong into a folder. The exit code is 0 where nothing
failed, 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import checks
import counters
import machine
import peaks
import peers
import report
import sanitizer
import suite
import throughput
import training
from part import Part, Stage, run_parts

TRIAGE = [Part("machine", 0, 60, machine.run, needs_gpu=False), Part("checks", 5, 150, checks.run)]
FULL = [
    Part("machine", 0, 40, machine.run, needs_gpu=False),
    Part("suite", 10, 60, suite.run),
    Part("peaks", 10, 30, peaks.run),
    Part("throughput", 10, 110, throughput.run),
    Part("training", 10, 30, training.run),
    Part("sanitizer", 10, 35, sanitizer.run),
    Part("counters", 10, 30, counters.run),
    # last: it takes all the time that there is
    Part("peers", 20, 360, peers.run),
]
STAGES = {"triage": (150.0, TRIAGE), "full": (360.0, FULL)}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="check.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stage", choices=sorted(STAGES), required=True)
    parser.add_argument("--out", type=Path, default=Path("gpu-check"), metavar="DIR", help="folder of the report")
    parser.add_argument("--small", action="store_true", help="sizes for an emulator instead of those of a card")
    parser.add_argument("--seconds", type=float, help="what the stage may take")
    args = parser.parse_args()
    limit, parts = STAGES[args.stage]
    started = time.monotonic()
    folder = Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory() as work:
        stage = Stage(folder, Path(work), args.small, started + (args.seconds or limit))
        run_parts(stage, parts)
        found = report.write(stage, args.stage, args.out, time.monotonic() - started)
    print()
    print(report.table(found), end="")
    print(f"written to {args.out.resolve()}")
    return 1 if found["counts"]["failed"] or found["counts"]["error"] else 0


if __name__ == "__main__":
    sys.exit(main())
