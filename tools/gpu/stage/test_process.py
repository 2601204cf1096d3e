"""Tests of what runs programs: that they end, with all that they started, and what is told of their end."""

from __future__ import annotations

import subprocess
import sys
import time
import unittest
from pathlib import Path

import process
from process import Finished

# says its number, and does not end when asked to
IGNORES = """import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
time.sleep(60)
"""
# starts the former, and ends when asked to
LEAVES_ONE = f"""import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {IGNORES!r}])
time.sleep(60)
"""
RUNS_ONE = f"""import process, sys
process.run([sys.executable, "-c", {IGNORES!r}], 60, each_line=lambda line: print(line, flush=True))
"""


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def runs(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def ended(number: int) -> bool:
    """Whether a process ends within seconds."""
    for _ in range(50):
        if not runs(number):
            return True
        time.sleep(0.1)
    return False


class Programs(unittest.TestCase):
    def setUp(self) -> None:
        self.grace, process.GRACE = process.GRACE, 0.5

    def tearDown(self) -> None:
        process.GRACE = self.grace
        process.stopped.clear()

    def test_they_end_in_time(self) -> None:
        started = time.monotonic()
        finished = process.run(python(IGNORES), 1)
        self.assertTrue(finished.hung and not runs(int(finished.out)), finished)
        self.assertLess(time.monotonic() - started, 5)
        self.assertIn("does not start", process.run(["/no/such/program"], 1).says())

    def test_what_they_started_ends_with_them(self) -> None:
        finished = process.run(python(LEAVES_ONE), 1.5)
        self.assertTrue(ended(int(finished.out)), finished)

    def test_they_end_with_whoever_runs_them(self) -> None:
        ours = subprocess.Popen(python(RUNS_ONE), cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True)
        theirs = int(ours.stdout.readline())
        ours.kill()
        ours.wait()
        ours.stdout.close()
        self.assertTrue(ended(theirs))

    def test_an_interruption_kills_at_once_and_begins_nothing(self) -> None:
        finished = process.run(python(IGNORES), 60, each_line=lambda _: process.stopped.append("SIGTERM"))
        self.assertEqual((finished.says(), finished.hung), ("interrupted by SIGTERM", False))
        self.assertFalse(runs(int(finished.out)))
        with self.assertRaises(process.Interrupted):
            process.run(["true"], 1)

    def test_lines_are_given_whole_and_once(self) -> None:
        code = "import time\nprint('a', flush=True)\nprint('b', end='', flush=True)\ntime.sleep(0.5)\nprint('c\\nd', end='')"
        lines: list[str] = []
        finished = process.run(python(code), 20, each_line=lines.append)
        self.assertEqual((lines, finished.out), (["a", "bc"], "a\nbc\nd"))

    def test_the_line_is_told_that_says_most(self) -> None:
        panic = "thread 'main' panicked at src/x.rs:1:1:\nindex out of bounds\nnote: run with `RUST_BACKTRACE=1`\n"
        torch = "Traceback:\n  x\ntorch.AcceleratorError: CUDA error: an illegal access\nCompile with `TORCH_USE_CUDA_DSA`.\n"
        for err, expected in (
            (panic, "index out of bounds"),
            (torch, "torch.AcceleratorError: CUDA error: an illegal access"),
            ("warning: x\nerror: no GPU\nhint\n", "error: no GPU"),
            ("one\ntwo\n", "two"),
            ("", "it says nothing"),
        ):
            self.assertEqual(Finished([], 1, "", err, 0.0).says(), f"exit code 1: {expected}")


if __name__ == "__main__":
    unittest.main()
