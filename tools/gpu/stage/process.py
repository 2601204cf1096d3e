"""Runs programs, each for a bounded time."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

# what a program that was asked to end has for it
GRACE = 5.0


@dataclass(frozen=True)
class Finished:
    """What became of a program."""

    command: list[str]
    code: int | None  # None where it had to be killed, or did not start
    out: str
    err: str
    seconds: float
    reason: str = ""  # why there is no code

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def hung(self) -> bool:
        return self.code is None and self.reason.startswith("still ran")

    def says(self) -> str:
        """Its end, in a few words."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("error: ")]
        told = (errors or lines[-1:] or ["it says nothing"])[0]
        if self.code is None:
            return self.reason
        if self.code < 0:
            return f"ended by {signal.Signals(-self.code).name}: {told}"
        return f"exit code {self.code}: {told}"


def run(
    command: list[str],
    seconds: float,
    environment: dict[str, str] | None = None,
    folder: Path | None = None,
) -> Finished:
    """Runs a command; after `seconds` it and what it started are asked to end, and then killed."""
    started = time.monotonic()

    def finished(code: int | None, out: str, err: str, reason: str = "") -> Finished:
        return Finished(command, code, out, err, time.monotonic() - started, reason)

    # files instead of pipes: what hangs in the driver cannot be waited for, and its output is of use
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:

        def texts() -> tuple[str, str]:
            both = []
            for file in (out, err):
                file.seek(0)
                both.append(file.read().decode(errors="replace"))
            return both[0], both[1]

        try:
            program = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, **(environment or {})},
                cwd=folder,
                start_new_session=True,
            )
        except OSError as error:
            return finished(None, "", "", f"does not start: {error.strerror}")
        try:
            program.wait(max(seconds, 0.1))
            return finished(program.returncode, *texts())
        except subprocess.TimeoutExpired:
            pass
        reason = f"still ran after {seconds:.0f} s"
        for name in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(program.pid, name)
                program.wait(GRACE)
                break
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        else:
            reason += ", and cannot be killed"
        return finished(None, *texts(), reason)
