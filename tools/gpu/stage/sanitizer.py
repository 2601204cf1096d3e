"""compute-sanitizer on a small step of training."""

from __future__ import annotations

import shutil

from part import Stage
from process import Finished

TOOLS = ("memcheck", "racecheck")
STEPS = ("step/msab", "step/imsab")
SECONDS = 25.0
# how it begins to tell what a kernel does wrong
FINDINGS = ("Invalid", "Misaligned", "Uninitialized", "Race", "hazard", "Barrier error")


def run(stage: Stage) -> None:
    """Runs each tool on a step of each encoder."""
    if not shutil.which("compute-sanitizer"):
        stage.tell("compute-sanitizer", "skipped", 0.0, "compute-sanitizer is not on PATH")
        return
    for tool in TOOLS:
        for step in STEPS:
            command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "99", "--print-limit", "20"]
            if tool == "memcheck":
                # calls that the driver refuses are for the program to tell
                command += ["--report-api-errors", "no"]
            command += [stage.program("setrank-gpu-check"), "run", step, "--small"]
            finished = stage.run(command, SECONDS)
            told = [line for line in (finished.out + finished.err).splitlines() if line.startswith("=========")]
            status, said = verdict(finished, told)
            stage.tell(f"{tool} of {step}", status, finished.seconds, said, told=told[:100])


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
