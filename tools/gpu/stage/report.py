"""The report: one JSON, a table, the outputs of what was wrong, the logs.

It is written again and again while a stage runs, so that a run that is cut off leaves what it found.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import texts
from part import STATUSES, Stage
from speeds import tables
from texts import cut, first_line

COMPLETE = "complete"
CUT_OFF = "cut off"
ENDINGS = (".json", ".txt", "-log.txt", "-outputs.jsonl")


@dataclass(frozen=True)
class Report:
    """Where a stage's report goes."""

    name: str
    folder: Path

    def begin(self) -> None:
        """Makes the folder, or fails where it cannot be written to; an earlier run's files are none of this one's."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for ending in ENDINGS:
            (self.folder / f"{self.name}{ending}").unlink(missing_ok=True)
        self.file("-log.txt", "")

    def save(self, stage: Stage, seconds: float, ended: str) -> dict:
        """Writes the files of a stage, or says that it cannot, and gives the report."""
        report = self.of(stage, seconds, ended)
        try:
            self.write(stage, report)
        except OSError as error:  # what is still to be found can be printed
            print(f"error: {self.folder} cannot be written to: {error.strerror}", file=sys.stderr, flush=True)
        return report

    def of(self, stage: Stage, seconds: float, ended: str) -> dict:
        version = stage.folder / "VERSION"
        return {
            "stage": self.name,
            "version": version.read_text().strip() if version.exists() else "not packed",
            "ended": ended,
            "small": stage.small,
            "seconds": round(seconds, 1),
            "counts": {status: count(stage.rows, status) for status in STATUSES},
            "machine": stage.facts,
            "results": stage.rows,
        }

    def write(self, stage: Stage, report: dict) -> None:
        self.file(".json", json.dumps(report, indent=1) + "\n")
        self.file(".txt", table(report))
        self.file("-log.txt", cut("\n".join(stage.logs)))
        if stage.outputs:
            self.file("-outputs.jsonl", lines_of(stage.outputs))

    def file(self, ending: str, text: str) -> None:
        """Writes a file whole or not at all."""
        partial = self.folder / ".partial"
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, self.folder / f"{self.name}{ending}")


def count(rows: list[dict], status: str) -> int:
    return sum(row["status"] == status for row in rows)


def lines_of(outputs: list[dict]) -> str:
    """A line of JSON each; for one that does not fit a line that says so."""
    lines, room = [], texts.FILE
    for output in outputs:
        line = json.dumps(output)
        if len(line) > room:
            line = json.dumps({"name": output["name"], "what": output["what"], "left_out_characters": len(line)})
        lines.append(line + "\n")
        room -= len(line)
    return "".join(lines)


def table(report: dict) -> str:
    """The report for people."""
    machine = report["machine"]
    device = machine.get("device")
    smi = machine.get("nvidia_smi")
    driver = smi.get("driver_version") if isinstance(smi, dict) else None
    lines = [
        f"setrank GPU check, stage {report['stage']}, {report['version']}, {report['seconds']} s, {report['ended']}",
        f"card: {device['name'] if device else 'none'}; driver: {driver or 'unknown'}; torch: {torch(machine)}",
        *changes(machine),
        "",
        f"{'status':8} {'what':32} {'seconds':>7}  result",
    ]
    for row in report["results"]:
        lines.append(f"{row['status']:8} {row['name']:32} {row['seconds']:7.1f}  {first_line(row['message'])}")
    lines += tables(machine, report["results"])
    counts = ", ".join(f"{number} {status}" for status, number in report["counts"].items())
    return "\n".join([*lines, "", counts]) + "\n"


def changes(machine: dict) -> list[str]:
    """What was changed of the environment."""
    found = machine.get("environment")
    return found if isinstance(found, list) else []


def torch(machine: dict) -> str:
    found = machine.get("torch")
    return found["version"] if isinstance(found, dict) else "none"
