"""The report: one JSON, a table, the outputs of what was wrong, the logs."""

from __future__ import annotations

import json
from pathlib import Path

from part import Stage, first_line
from speeds import tables

# of each file of text, as much is kept
LIMIT = 8 << 20


def write(stage: Stage, name: str, folder: Path, seconds: float) -> dict:
    """Writes the files of a stage into a folder and gives the report."""
    outputs = take_outputs(stage.rows)
    counts = {status: count(stage.rows, status) for status in ("passed", "failed", "error", "skipped")}
    version = stage.folder / "VERSION"
    report = {
        "stage": name,
        "version": version.read_text().strip() if version.exists() else "not packed",
        "small": stage.small,
        "seconds": round(seconds, 1),
        "counts": counts,
        "machine": stage.facts,
        "results": stage.rows,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / f"{name}.txt").write_text(table(report))
    (folder / f"{name}-log.txt").write_text(cut("\n".join(stage.logs)))
    if outputs:
        lines = "".join(json.dumps(output) + "\n" for output in outputs)
        (folder / f"{name}-outputs.jsonl").write_text(cut(lines))
    return report


def count(rows: list[dict], status: str) -> int:
    return sum(row["status"] == status for row in rows)


def take_outputs(rows: list[dict]) -> list[dict]:
    """Takes whole outputs out of the rows: they are too long for a report."""
    outputs = []
    for row in rows:
        for mismatch in row.get("mismatches", []):
            both = mismatch.pop("outputs", None)
            if both:
                outputs.append({"name": row["name"], "what": mismatch["what"], **both})
    return outputs


def cut(text: str) -> str:
    """No more than the limit, by whole lines; what is left out is said."""
    if len(text) <= LIMIT:
        return text
    return text[: text.rfind("\n", 0, LIMIT) + 1] + f"[{len(text) - LIMIT} more characters]\n"


def table(report: dict) -> str:
    """The report for people."""
    machine = report["machine"]
    device = machine.get("device")
    smi = machine.get("nvidia_smi")
    driver = smi.get("driver_version") if isinstance(smi, dict) else None
    lines = [
        f"setrank GPU check, stage {report['stage']}, {report['version']}, {report['seconds']} s",
        f"card: {device['name'] if device else 'none'}; driver: {driver or 'unknown'}; torch: {torch(machine)}",
        "",
        f"{'status':8} {'what':32} {'seconds':>7}  result",
    ]
    for row in report["results"]:
        lines.append(f"{row['status']:8} {row['name']:32} {row['seconds']:7.1f}  {first_line(row['message'])}")
    lines += tables(machine, report["results"])
    counts = ", ".join(f"{number} {status}" for status, number in report["counts"].items())
    return "\n".join([*lines, "", counts]) + "\n"


def torch(machine: dict) -> str:
    found = machine.get("torch")
    return found["version"] if isinstance(found, dict) else "none"
