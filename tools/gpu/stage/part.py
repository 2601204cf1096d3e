"""Parts of a stage: each bounded in time, none of them the end of the others."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from process import Finished, run
from texts import clip, first_line

STATUSES = ("passed", "failed", "error", "skipped")
OUT_OF_TIME = "its time is used up"
# seconds with which no program is begun
LEAST = 1.0
# seconds after which a long part's results are saved
SAVED_EVERY = 5.0


class OutOfTime(Exception):
    """A part's time is used up."""


@dataclass
class Stage:
    """What all parts share."""

    folder: Path  # as it was packed
    programs: Path
    work: Path  # for files that nobody keeps
    small: bool
    ends: float  # by time.monotonic(), as is the next
    part_ends: float = float("inf")
    share: float = 1.0  # how much longer than usual the stage may take
    rows: list[dict] = field(default_factory=list)
    outputs: list[dict] = field(default_factory=list)  # of checks: too long for a row
    logs: list[str] = field(default_factory=list)
    facts: dict = field(default_factory=dict)
    torch: Future | None = None  # what is not yet known of PyTorch
    save: Callable[[], None] = lambda: None
    saved: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def left(self) -> float:
        """Seconds until the part, and with it the stage, has to end."""
        return min(self.ends, self.part_ends) - time.monotonic()

    def program(self, name: str) -> str:
        return str(self.programs / name)

    def run(
        self,
        command: list[str],
        seconds: float,
        environment: dict[str, str] | None = None,
        each_line: Callable[[str], None] | None = None,
    ) -> Finished:
        """Runs a program for at most `seconds`; its output goes to the log.

        Where less than that is left and it needs more, nothing is known of it: it is out of time.
        """
        left = self.left()
        if left < LEAST:
            raise OutOfTime
        finished = run(command, min(seconds, left), environment, each_line)
        self.log(finished)
        if finished.hung and left < seconds:
            raise OutOfTime
        return finished

    def log(self, finished: Finished) -> None:
        ended = f"code {finished.code}" if finished.code is not None else finished.reason
        said = clip(finished.out + finished.err)
        with self.lock:
            self.logs.append(f"$ {' '.join(finished.command)}\n{said}[{ended}, {finished.seconds:.1f} s]\n")

    def tell(self, name: str, status: str, seconds: float, message: str = "", **more: object) -> dict:
        """Takes note of a result and prints it."""
        assert status in STATUSES
        row = {"name": name, "status": status, "seconds": round(seconds, 2), "message": message, **more}
        with self.lock:
            self.rows.append(row)
            say(f"{status:8} {name:32} {seconds:6.1f} s  {first_line(message)}")
            if time.monotonic() - self.saved >= SAVED_EVERY:
                self.save_now()
        return row

    def save_now(self) -> None:
        """Saves what there is; by whoever has the lock."""
        self.save()
        self.saved = time.monotonic()


def say(text: str) -> None:
    """Prints; where nobody reads any more, the report is written all the same."""
    try:
        print(text, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w")


@dataclass(frozen=True)
class Part:
    """A part: `run` tells its own results."""

    name: str
    needs: float  # seconds below which it is not begun
    most: float  # seconds that it may take of a stage of usual length
    run: Callable[[Stage], None]
    needs_gpu: bool = True


def run_parts(stage: Stage, parts: list[Part]) -> None:
    """Runs parts one after the other, whatever becomes of each."""
    for part in parts:
        run_part(stage, part)
        with stage.lock:
            stage.save_now()


def run_part(stage: Stage, part: Part) -> None:
    started = time.monotonic()
    stage.part_ends = started + part.most * stage.share
    if part.needs_gpu and not stage.facts.get("device"):
        stage.tell(part.name, "skipped", 0.0, "there is no GPU that can be used: see `machine`")
        return
    if stage.left() < part.needs:
        stage.tell(part.name, "skipped", 0.0, OUT_OF_TIME)
        return
    try:
        part.run(stage)
    except OutOfTime:
        stage.tell(part.name, "skipped", time.monotonic() - started, OUT_OF_TIME)
    except Exception as error:  # one part is not to hide the others
        with stage.lock:
            stage.logs.append(traceback.format_exc())
        stage.tell(part.name, "error", time.monotonic() - started, f"{type(error).__name__}: {error}")
