"""Checks the GPU at hand, in parts that are bounded in time and independent of each other.

Writes a JSON report, a table, logs, and the outputs of what was wrong into a folder, anew after every part. The exit
code is 0 where nothing failed, 1 where something did, 2 where nothing could be run; else the run was interrupted.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

import ablation
import checks
import counters
import graphs
import layouts
import machine
import peaks
import peers
import process
import pytorch
import sanitizer
import suite
import throughput
import training
from part import Part, Stage, run_parts, say
from programs import NoPrograms, unpack
from report import COMPLETE, CUT_OFF, Report, table

# the answer is waited for after what does not need it
TORCH = Part("torch", 0, 30, pytorch.run_part, needs_gpu=False)
TRIAGE = [Part("machine", 0, 60, machine.run, needs_gpu=False), Part("checks", 5, 150, checks.run), TORCH]
FULL = [
    Part("machine", 0, 40, machine.run, needs_gpu=False),
    Part("suite", 10, 60, suite.run),
    Part("peaks", 10, 45, peaks.run),
    Part("throughput", 10, 110, throughput.run),
    Part("graphs", 10, 40, graphs.run),
    Part("ablation", 10, 40, ablation.run),
    Part("layouts", 10, 40, layouts.run),
    TORCH,
    Part("peers", 20, 60, peers.run_plain),
    Part("training", 10, 30, training.run),
    Part("sanitizer", 10, 35, sanitizer.run),
    Part("counters", 10, 45, counters.run),
    # last: it takes all the time that there is
    Part("compiled peers", 20, 360, peers.run_compiled),
]
STAGES = {"triage": (150.0, TRIAGE), "full": (360.0, FULL)}
# of a stage's seconds for the last programs to be killed, which may resist, and for the report
MARGIN = 2 * process.GRACE + 4


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
    seconds = limit if args.seconds is None else args.seconds
    if not seconds > MARGIN:
        parser.error(f"--seconds: more than the {MARGIN:.0f} that it may take to end")
    end_on_signals()
    started = time.monotonic()
    report = Report(args.stage, args.out)
    try:
        report.begin()
    except OSError as error:
        return fail(f"--out {args.out} cannot be written to: {error.strerror}")
    folder = Path(__file__).resolve().parent.parent
    try:
        temporary = tempfile.TemporaryDirectory(prefix="setrank-gpu-check-")
    except OSError as error:
        return fail(f"no temporary folder can be made: {error.strerror}: set TMPDIR to where one can")
    with temporary as name:
        work = Path(name)
        (work / "programs").mkdir()
        try:
            programs = unpack(folder, work / "programs")
        except NoPrograms as error:
            return fail(str(error))
        stage = Stage(folder, programs, work, args.small, started + seconds - MARGIN, share=seconds / limit)
        stage.save = lambda: report.save(stage, time.monotonic() - started, CUT_OFF)
        try:
            run_parts(stage, parts)
        except process.Interrupted:
            pass
        ended = f"interrupted by {process.stopped[0]}" if process.stopped else COMPLETE
        found = report.save(stage, time.monotonic() - started, ended)
    say(f"\n{table(found)}written to {args.out.resolve()}")
    if process.stopped:
        # as a shell says it
        return 128 + signal.Signals[process.stopped[0]].value
    return 1 if found["counts"]["failed"] or found["counts"]["error"] else 0


def end_on_signals() -> None:
    """What asks us to end ends the programs, wherever we wait for them; signals that are ignored stay so."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: process.stopped.append(signal.Signals(number).name))


def fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
