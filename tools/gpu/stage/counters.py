"""Counters of three kernels: Nsight Compute's on the card beside the emulator's."""

from __future__ import annotations

import csv
import math
import re
import shutil

from part import Stage

# what the emulator counts, and the metrics whose sum is that of the hardware; bytes in thousands, as the table has them
METRICS = {
    "requested": (["lts__t_sectors_srcunit_tex.sum"], 32e-3),
    "unique": (["dram__bytes_read.sum", "dram__bytes_write.sum"], 1e-3),
    "wavefronts": (["l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"], 1.0),
    "products": (["sm__inst_executed_pipe_tensor.sum"], 1.0),
    "exponentials": (["smsp__thread_inst_executed_pipe_xu_pred_on.sum", "smsp__thread_inst_executed_pipe_xu.sum"], 1.0),
}
# of these names a version of the tool has one or the other
EITHER = ("exponentials",)
SECONDS = 40.0
NOT_ALLOWED = ("ERR_NVGPUCTRPERM", "not supported")


def run(stage: Stage) -> None:
    """Counts, and tells both."""
    if not shutil.which("ncu"):
        stage.tell("ncu", "skipped", 0.0, "ncu (Nsight Compute) is not on PATH")
        return
    table = (stage.folder / "counters.txt").read_text()
    known = known_metrics(stage)
    wanted = [metric for metrics, _ in METRICS.values() for metric in metrics if metric.split(".")[0] in known]
    if not wanted:
        stage.tell("ncu", "error", 0.0, f"ncu knows none of the metrics: {bases()}")
        return
    # a line a launch: the check's name, the kernel's, its sizes
    listed = stage.run([stage.program("setrank-gpu-check"), "list", "--counted"], 10)
    if not listed.ok or not listed.out:
        stage.tell("ncu", "error", listed.seconds, f"the list of kernels: {listed.says()}")
        return
    for name, kernel, shape in (line.split(" ", 2) for line in listed.out.splitlines()):
        emulated = emulator(table, f"{kernel} {shape}: ")
        command = ["ncu", "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base"]
        command += ["--metrics", ",".join(wanted), "--kernel-name", kernel, "--launch-count", "1"]
        finished = stage.run(command + [stage.program("setrank-gpu-check"), "run", name], SECONDS)
        measured = of_csv(finished.out) if finished.ok else {}
        if not measured:
            said = reason(finished.out) or finished.says()
            # what the machine does not allow is no fault of a kernel
            status = "skipped" if any(word in said for word in NOT_ALLOWED) else "error"
            stage.tell(f"ncu of {kernel}", status, finished.seconds, said)
            continue
        both = {what: [emulated.get(what), total(what, measured)] for what in METRICS}
        message = ", ".join(f"{what} {shown(a)} emulated, {shown(b)} measured" for what, (a, b) in both.items())
        stage.tell(f"ncu of {kernel}", "passed", finished.seconds, message, counters=both)


def known_metrics(stage: Stage) -> set[str]:
    """The metrics that the tool knows of this card, without what is made of them."""
    asked = stage.run(["ncu", "--query-metrics"], SECONDS)
    return set(re.findall(r"^[a-z0-9]+__[a-z0-9_]+", asked.out, re.MULTILINE))


def bases() -> str:
    return ", ".join(metric.split(".")[0] for metrics, _ in METRICS.values() for metric in metrics)


def reason(out: str) -> str:
    """The tool's own words on why it counts nothing."""
    return "; ".join(line.strip("= ") for line in out.splitlines() if "ERROR" in line)


def emulator(table: str, start: str) -> dict[str, float]:
    """The emulator's counters of a launch: the line of counters.txt that begins so."""
    row = next(line[len(start) :] for line in table.splitlines() if line.startswith(start))
    found = {}
    for what in METRICS:
        match = re.search(rf"\b{what} ([0-9.]+)(?: \+ ([0-9.]+))?", row)
        if match:
            found[what] = sum(float(number) for number in match.groups() if number)
    return found


def of_csv(out: str) -> dict[str, float]:
    """The metrics of the first kernel in the tool's table; behind its header stands a line of units."""
    lines = [line for line in out.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(lines))
    if len(rows) < 2:
        return {}
    return {name: number(value) for name, value in rows[1].items() if name and "__" in name and number(value) is not None}


def number(text: str | None) -> float | None:
    """A number of the tool's; what it did not count is "nan", which JSON has no word for."""
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def total(what: str, measured: dict[str, float]) -> float | None:
    """The sum of the metrics that there are, in the table's unit."""
    metrics, unit = METRICS[what]
    values = [measured[metric] for metric in metrics if metric in measured]
    if not values:
        return None
    return unit * (values[0] if what in EITHER else sum(values))


def shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.6g}"
