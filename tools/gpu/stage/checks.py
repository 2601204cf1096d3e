"""The checks of kernels, one a process and several at a time, and what is done when one fails."""

from __future__ import annotations

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

from part import OUT_OF_TIME, OutOfTime, Stage
from process import Finished

SECONDS = 30.0
# each launch is waited for: a fault is told of the launch that made it
BLOCKING = {"CUDA_LAUNCH_BLOCKING": "1"}
# the checks of what is launched as a graph: there is none where each launch is waited for
GRAPHS = "graphs/"
# the checks of kernels that wait for copies: their waits end in a build of its own
BOUNDED = "ptx/"
# of each kind of failure, as many are looked at more closely
LOOKED_AT = 2


def run(stage: Stage) -> None:
    """Runs all checks, and looks closer at what faults or hangs."""
    listed = stage.run([stage.program("setrank-gpu-check"), "list"], 10)
    if not listed.ok:
        stage.tell("checks", "error", listed.seconds, f"the list of checks: {listed.says()}")
        return
    names = listed.out.split()
    with ThreadPoolExecutor(at_a_time(stage)) as pool:
        rows = list(pool.map(lambda name: check(stage, name), names))
    for row in [row for row in rows if row.get("hung") and row["name"].startswith(BOUNDED)][:LOOKED_AT]:
        look_at_hang(stage, row)
    for row in [row for row in rows if row.get("faulted")][:LOOKED_AT]:
        look_at_fault(stage, row)


def at_a_time(stage: Stage) -> int:
    """How many processes the card takes at once: but one in the modes that keep it to a process."""
    return 4 if stage.facts.get("compute_mode") == "Default" else 1


def command(stage: Stage, program: str, name: str) -> list[str]:
    return [stage.program(program), "run", name] + (["--small"] if stage.small else [])


def check(stage: Stage, name: str) -> dict:
    """Runs one check."""
    try:
        waits = {} if name.startswith(GRAPHS) else BLOCKING
        finished = stage.run(command(stage, "setrank-gpu-check", name), SECONDS, waits)
    except OutOfTime:
        return stage.tell(name, "skipped", 0.0, OUT_OF_TIME)
    report = report_of(finished)
    if report is None:
        # neither passed nor failed: it was killed, or died
        return stage.tell(name, "error", finished.seconds, finished.says(), hung=finished.hung, faulted=finished.code is not None)
    keep_outputs(stage, name, report)
    message = report.pop("message", "") or summary(report)
    more = {key: report[key] for key in ("told", "mismatches") if key in report}
    faulted = report["status"] == "error" and "CUDA_ERROR" in message
    return stage.tell(name, report["status"], finished.seconds, message, faulted=faulted, **more)


def report_of(finished: Finished) -> dict | None:
    """The line of JSON that a check prints."""
    lines = finished.out.strip().splitlines()
    if finished.code is None or not lines:
        return None
    try:
        report = json.loads(lines[-1])
    except ValueError:
        return None
    return report if isinstance(report, dict) and "status" in report else None


def keep_outputs(stage: Stage, name: str, report: dict) -> None:
    """Takes whole outputs out of a check's report: they have a file of their own."""
    for mismatch in report.get("mismatches", []):
        both = mismatch.pop("outputs", None)
        if both:
            with stage.lock:
                stage.outputs.append({"name": name, "what": mismatch["what"], **both})


def summary(report: dict) -> str:
    """A line on what a check found."""
    mismatches = report.get("mismatches", [])
    if mismatches:
        first = mismatches[0]
        at = [place["at"] for place in first["first"][:4]]
        return (
            f"{len(mismatches)} output(s) wrong; {first['what']}: {first['wrong']} of {first['of']} values, at {at}…, "
            f"by index mod 8 {first['wrong_by_index_mod_8']}"
        )
    told = report.get("told") or {}
    return ", ".join(f"{key} {shown(value)}" for key, value in told.items())


def shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def look_at_fault(stage: Stage, row: dict) -> None:
    """Runs a check again under memcheck."""
    name = f"memcheck of {row['name']}"
    if not shutil.which("compute-sanitizer"):
        stage.tell(name, "skipped", 0.0, "compute-sanitizer is not on PATH")
        return
    started = time.monotonic()
    tool = ["compute-sanitizer", "--tool", "memcheck", "--print-limit", "20"]
    finished = stage.run(tool + command(stage, "setrank-gpu-check", row["name"]), 45)
    told = [line for line in (finished.out + finished.err).splitlines() if line.startswith("=========")]
    row["memcheck"] = told[:100]
    found = next((line for line in told if "Invalid" in line or "rror" in line), "it finds nothing")
    stage.tell(name, "error", time.monotonic() - started, found.strip("= "))


def look_at_hang(stage: Stage, row: dict) -> None:
    """Runs a check again in the build whose waits end: they say which block and warp waited where."""
    finished = stage.run(command(stage, "setrank-gpu-check-bounded", row["name"]), 40, BLOCKING)
    told = [line for line in (finished.out + finished.err).splitlines() if "waited" in line]
    row["bounded"] = told[:64]
    message = told[0] if told else f"no wait of a kernel is the reason: {finished.says()}"
    stage.tell(f"bounded waits of {row['name']}", "error", finished.seconds, message)
