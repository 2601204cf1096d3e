"""Runs programs, each for a bounded time."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

# what a program that was asked to end has for it, and one that was killed
GRACE = 3.0
POLL = 0.1
# by what the whole run was interrupted: then programs are killed, and none is begun
stopped: list[str] = []
# between fork and exec nothing may be looked up
prctl = ctypes.CDLL(None).prctl
SET_PARENT_DEATH_SIGNAL, KILL = 1, int(signal.SIGKILL)


class Interrupted(BaseException):
    """Nothing more is to be run."""


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
        if self.code is None:
            return self.reason
        if self.code < 0:
            return f"ended by {signal.Signals(-self.code).name}: {told(self.err)}"
        return f"exit code {self.code}: {told(self.err)}"


def told(err: str) -> str:
    """The line that says most: an error, what a panic of Rust or an exception of Python says, or the last."""
    lines = [line for line in err.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    panics = panic(err).splitlines()
    # behind an exception may stand advice
    exceptions = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (errors[:1] or panics[:1] or exceptions[-1:] or lines[-1:] or ["it says nothing"])[0]


def panic(text: str) -> str:
    """What a panic says, or nothing."""
    lines = text.splitlines()
    at = next((number for number, line in enumerate(lines) if "panicked at" in line), None)
    return "" if at is None else "\n".join(lines[at + 1 : at + 20])


def run(
    command: list[str],
    seconds: float,
    environment: dict[str, str] | None = None,
    each_line: Callable[[str], None] | None = None,
) -> Finished:
    """Runs a command; after `seconds` it and what it started are asked to end, and then killed.

    `each_line` is called for each whole line of output, as soon as it is there.
    """
    if stopped:
        raise Interrupted
    started = time.monotonic()
    # files instead of pipes: what hangs in the driver cannot be waited for, and its output is of use
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            program = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, **(environment or {})},
                preexec_fn=lead_a_group,
            )
        except OSError as error:
            return Finished(command, None, "", "", 0.0, f"does not start: {error.strerror}")
        lines = Lines(out, each_line)
        reason = ""
        try:
            while not reason and not waited_for(program, POLL):
                lines.read()
                if stopped:
                    reason = f"interrupted by {stopped[0]}"
                elif time.monotonic() - started >= seconds:
                    reason = f"still ran after {seconds:.0f} s"
        finally:
            # also where a line could not be taken: nothing is to be left on the card
            if program.returncode is None:
                reason += end(program)
        lines.read()
        taken = time.monotonic() - started
        return Finished(command, None if reason else program.returncode, text(out), text(err), taken, reason)


def lead_a_group() -> None:
    """In the new process: it can be killed with all that it starts, and ends with us however we end."""
    os.setpgid(0, 0)
    prctl(SET_PARENT_DEATH_SIGNAL, KILL)


def waited_for(program: subprocess.Popen, seconds: float) -> bool:
    try:
        program.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def end(program: subprocess.Popen) -> str:
    """Ends a program and what it started; says if that is in vain."""
    # who interrupts us may not wait for long
    if not stopped:
        signal_group(program, signal.SIGTERM)
        waited_for(program, GRACE)
    signal_group(program, signal.SIGKILL)
    return "" if waited_for(program, GRACE) else ", and cannot be killed"


def signal_group(program: subprocess.Popen, number: signal.Signals) -> None:
    try:
        os.killpg(program.pid, number)
    except ProcessLookupError:
        pass


def text(file: IO[bytes]) -> str:
    return read_from(file, 0).decode(errors="replace")


def read_from(file: IO[bytes], position: int) -> bytes:
    """What a file has from there on; the position that the program writes at stays as it is."""
    return os.pread(file.fileno(), max(os.fstat(file.fileno()).st_size - position, 0), position)


@dataclass
class Lines:
    """Gives the whole lines of a file that grows, each once."""

    file: IO[bytes]
    each: Callable[[str], None] | None
    position: int = 0

    def read(self) -> None:
        if self.each is None:
            return
        new = read_from(self.file, self.position)
        whole = new[: new.rfind(b"\n") + 1]
        self.position += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            self.each(line)
