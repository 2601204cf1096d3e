"""compute-sanitizer on a small step of training."""

from __future__ import annotations

import itertools
import shutil
from concurrent.futures import ThreadPoolExecutor

from checks import at_a_time
from part import OUT_OF_TIME, OutOfTime, Stage
from process import Finished

TOOLS = ("memcheck", "racecheck")
STEPS = ("step/msab", "step/imsab")
SECONDS = 30.0
# how it begins to tell what a kernel does wrong
FINDINGS = ("Invalid", "Misaligned", "Uninitialized", "Race", "hazard", "Barrier error")


def run(stage: Stage) -> None:
    """Runs each tool on a step of each encoder, several at a time."""
    if not shutil.which("compute-sanitizer"):
        stage.tell("compute-sanitizer", "skipped", 0.0, "compute-sanitizer is not on PATH")
        return
    with ThreadPoolExecutor(at_a_time(stage)) as pool:
        list(pool.map(lambda of: check(stage, *of), itertools.product(TOOLS, STEPS)))


def check(stage: Stage, tool: str, step: str) -> None:
    """Runs a tool on a step."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "99", "--print-limit", "20"]
    if tool == "memcheck":
        # calls that the driver refuses are for the program to tell
        command += ["--report-api-errors", "no"]
    command += [stage.program("setrank-gpu-check"), "run", step, "--small"]
    name = f"{tool} of {step}"
    try:
        finished = stage.run(command, SECONDS)
    except OutOfTime:
        stage.tell(name, "skipped", 0.0, OUT_OF_TIME)
        return
    told = [line for line in (finished.out + finished.err).splitlines() if line.startswith("=========")]
    status, said = verdict(finished, told)
    stage.tell(name, status, finished.seconds, said, told=told[:100])


def verdict(finished: Finished, told: list[str]) -> tuple[str, str]:
    """What the tool found, or why it came to nothing."""
    if finished.ok:
        return "passed", said_of(told, "SUMMARY") or finished.says()
    if found := said_of(told, *FINDINGS):
        return "failed", said_of(told, "SUMMARY") or found
    if refused := said_of(told, "not supported"):
        return "skipped", refused
    return "error", finished.says()


def said_of(told: list[str], *words: str) -> str:
    """The last line that has one of the words."""
    lines = [line.strip("= ") for line in told if any(word in line for word in words)]
    return lines[-1] if lines else ""
