"""compute-sanitizer on a small step of training."""

from __future__ import annotations

import shutil

from part import Stage

TOOLS = ("memcheck", "racecheck")
STEPS = ("step/msab", "step/imsab")
SECONDS = 25.0


def run(stage: Stage) -> None:
    """Runs each tool on a step of each encoder."""
    if not shutil.which("compute-sanitizer"):
        stage.tell("compute-sanitizer", "skipped", 0.0, "compute-sanitizer is not on PATH")
        return
    for tool in TOOLS:
        for step in STEPS:
            command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "99", "--print-limit", "20"]
            command += [stage.program("setrank-gpu-check"), "run", step, "--small"]
            finished = stage.run(command, SECONDS)
            told = [line for line in (finished.out + finished.err).splitlines() if line.startswith("=========")]
            # what the tool found, or why it came to nothing
            status = "passed" if finished.ok else "failed" if finished.code == 99 else "error"
            said = next((line.strip("= ") for line in reversed(told) if "SUMMARY" in line), finished.says())
            stage.tell(f"{tool} of {step}", status, finished.seconds, said, told=told[:100])
