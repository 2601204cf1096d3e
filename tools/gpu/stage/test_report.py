"""Tests of what is kept of a run: of one that is cut off, and of programs that say too much."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from pathlib import Path

import texts
from main import MARGIN
from part import Part, Stage, run_parts
from report import COMPLETE, CUT_OFF, Report, lines_of

CHECK = Path(__file__).resolve().parent.parent / "check.sh"
# checks of which one hangs, with the number of its process in a file
HANGS = """#!/usr/bin/env python3
import json, os, sys, time
command, *rest = sys.argv[1:]
if command == "device":
    print(json.dumps({"name": "Card", "compute_capability": "9.0"}))
elif command == "list":
    print("right\\nhangs")
elif rest[0] == "hangs":
    with open(os.environ["PIDS"], "w") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(600)
else:
    print(json.dumps({"name": rest[0], "status": "passed", "seconds": 0.0}))
"""


def mind_signals() -> None:
    """As from a terminal: in the background, or under nohup, these would be ignored, and in what is started there too."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


class Packed(unittest.TestCase):
    """A folder as pack.sh fills it."""

    def setUp(self) -> None:
        self.temporary = tempfile.TemporaryDirectory()
        self.top = Path(self.temporary.name)
        self.folder, self.out = self.top / "packed", self.top / "out"
        self.folder.mkdir()
        (self.top / "tmp").mkdir()
        (self.folder / "check.sh").write_text(CHECK.read_text())
        (self.folder / "check.sh").chmod(0o755)
        (self.folder / "stage").mkdir()
        for file in Path(__file__).parent.glob("*.py"):
            (self.folder / "stage" / file.name).write_text(file.read_text())

    def tearDown(self) -> None:
        self.temporary.cleanup()

    def pack(self, text: str) -> None:
        program = self.top / "setrank-gpu-check"
        program.write_text(text)
        program.chmod(0o755)
        with tarfile.open(self.folder / "programs.tar.gz", "w:gz") as archive:
            archive.add(program, "./setrank-gpu-check")

    def begin(self, *more: str, **variables: str) -> subprocess.Popen:
        command = [self.folder / "check.sh", "--stage", "triage", "--out", self.out, *more]
        environment = {"TMPDIR": str(self.top / "tmp"), "PIDS": str(self.top / "pids"), "PYTHON": sys.executable}
        environment = {**os.environ, **environment, **variables}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, env=environment, text=True, preexec_fn=mind_signals, **pipes)

    def run_to_end(self, *more: str, **variables: str) -> tuple[int, str, str]:
        check = self.begin(*more, **variables)
        out, err = check.communicate(timeout=60)
        return check.returncode, out, err

    def report(self) -> dict:
        return json.loads((self.out / "triage.json").read_text())

    def test_programs_that_resist_do_not_make_it_longer(self) -> None:
        resists = HANGS.replace("    time.sleep", "    import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    time.sleep")
        self.pack(resists)
        started = time.monotonic()
        code, out, _ = self.run_to_end("--seconds", f"{MARGIN + 7:.0f}")
        self.assertLess(time.monotonic() - started, MARGIN + 7)
        self.assertEqual((code, self.report()["ended"]), (0, COMPLETE))
        self.assertIn("its time is used up", out)

    def test_a_run_that_nobody_watches_is_reported(self) -> None:
        self.pack(HANGS.replace("time.sleep(600)", "sys.exit('error: seen')"))
        check = self.begin()
        check.stdout.close()
        check.wait(60)
        self.assertEqual(check.stderr.read(), "")
        check.stderr.close()
        self.assertEqual((check.returncode, self.report()["ended"]), (1, COMPLETE))

    def test_an_interrupted_run_leaves_its_report_and_nothing_running(self) -> None:
        self.pack(HANGS)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            with self.subTest(number.name):
                check = self.begin()
                pids = self.top / "pids"
                while not (pids.exists() and pids.read_text().endswith("\n")):
                    time.sleep(0.05)
                check.send_signal(number)
                out, _ = check.communicate(timeout=60)
                self.assertEqual(check.returncode, 128 + number.value)
                self.assertIn(f"interrupted by {number.name}", out)
                report = self.report()
                self.assertEqual(report["ended"], f"interrupted by {number.name}")
                self.assertIn("right", [row["name"] for row in report["results"] if row["status"] == "passed"])
                self.assertFalse(Path(f"/proc/{pids.read_text().strip()}").exists())
                self.assertEqual(list((self.top / "tmp").iterdir()), [])
                pids.unlink()

    def test_a_killed_run_leaves_the_report_of_the_parts_before(self) -> None:
        self.pack(HANGS)
        check = self.begin()
        while not (self.top / "pids").exists():
            time.sleep(0.05)
        check.kill()
        check.communicate()
        report = self.report()
        self.assertEqual((report["ended"], report["results"][0]["name"]), (CUT_OFF, "machine"))
        # what is left of it is not taken for the next run's
        Report("triage", self.out).begin()
        self.assertEqual([file.name for file in self.out.iterdir()], ["triage-log.txt"])

    def test_the_archive_is_unpacked_anew_beside_an_older_program(self) -> None:
        old = self.folder / "setrank-gpu-check"
        old.write_text("#!/bin/sh\nexit 1\n")
        old.chmod(0o755)
        self.pack("#!/bin/sh\necho 'error: the new one' >&2\nexit 2\n")
        self.folder.chmod(0o555)
        code, out, err = self.run_to_end()
        self.folder.chmod(0o755)
        self.assertEqual(code, 1, err)
        self.assertIn("the new one", out)
        names = sorted(file.name for file in self.folder.iterdir())
        self.assertEqual(names, ["check.sh", "programs.tar.gz", "setrank-gpu-check", "stage"])
        self.assertEqual(list((self.top / "tmp").iterdir()), [])

    def test_what_cannot_work_is_said_before_anything_runs(self) -> None:
        code, _, err = self.run_to_end(PYTHON="/no/such/python")
        self.assertEqual((code, "Python 3.8 or newer, which /no/such/python is not" in err), (2, True), err)
        code, _, err = self.run_to_end()
        self.assertEqual((code, "has no program setrank-gpu-check" in err), (2, True), err)
        (self.folder / "programs.tar.gz").write_text("no archive")
        code, _, err = self.run_to_end()
        self.assertEqual((code, "cannot unpack" in err), (2, True), err)
        self.pack(HANGS)
        code, _, err = self.run_to_end("--seconds", "3")
        self.assertEqual((code, "--seconds: more than" in err), (2, True), err)
        self.out = self.folder / "check.sh"
        code, _, err = self.run_to_end()
        self.assertEqual((code, "cannot be written to" in err), (2, True), err)
        self.assertFalse((self.top / "pids").exists())


class Kept(unittest.TestCase):
    def test_a_program_that_says_too_much_keeps_head_and_tail(self) -> None:
        self.assertEqual(texts.clip("short", 5), "short")
        self.assertEqual(texts.clip("abcdefghij", 4), "ab\n[6 characters left out]\nij")
        with tempfile.TemporaryDirectory() as name:
            stage = Stage(Path(name), Path(name), Path(name), True, time.monotonic() + 30)
            stage.run([sys.executable, "-c", "print('a' * 10**6)"], 20)
            self.assertLess(len(stage.logs[0]), texts.PROGRAM + 500)

    def test_a_line_too_long_is_no_reason_to_leave_out_the_next(self) -> None:
        text = texts.cut("one\n" + 20 * "x" + "\n" + 30 * "x" + "\ntwo\n", 10)
        self.assertEqual(text, "one\n[2 line(s) with 52 characters left out]\ntwo\n")
        self.assertEqual(texts.cut("one\ntwo\nthree\n", 10), "one\ntwo\n[1 line(s) with 6 characters left out]\n")
        limit, texts.FILE = texts.FILE, 100
        outputs = [{"name": name, "what": "y", "found": found} for name, found in (("a", ["1"] * 90), ("b", ["1"]))]
        lines = [json.loads(line) for line in lines_of(outputs).splitlines()]
        texts.FILE = limit
        self.assertEqual(lines[0], {"name": "a", "what": "y", "left_out_characters": len(json.dumps(outputs[0]))})
        self.assertEqual(lines[1], outputs[1])

    def test_a_report_is_there_after_every_part(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            stage = Stage(folder, folder, folder, True, time.monotonic() + 30)
            report = Report("full", folder / "out")
            report.begin()
            stage.save = lambda: report.save(stage, 1.0, CUT_OFF)
            seen = []

            def looks(stage: Stage) -> None:
                seen.append(json.loads((folder / "out" / "full.json").read_text())["results"][0]["name"])

            first = Part("first", 0, 9, lambda stage: stage.tell("first", "passed", 0.0) and None, needs_gpu=False)
            run_parts(stage, [first, Part("second", 0, 9, looks, needs_gpu=False)])
            self.assertEqual((seen, [row["name"] for row in stage.rows]), (["first"], ["first"]))
            # a full disk is said, and is not the end
            report = Report("full", folder / "out" / "full.json")
            self.assertEqual(report.save(stage, 1.0, CUT_OFF)["counts"]["passed"], 1)


if __name__ == "__main__":
    unittest.main()
