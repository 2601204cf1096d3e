"""Checks of run.py and search.py with a program in the place of setrank that tells what it was asked."""

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import run
import search

FIGURES = {
    "mean": 0.5,
    "std_error": 0.01,
    "seed_deviation": None,
    "queries": 9,
    "ensemble": {"mean": 0.625, "std_error": 0.02},
}
SEEDS = {"paper": 1, "authors": 1, "default": 3}


def report_of(command: list[str]) -> dict:
    """What crossval would print."""
    preset = command[command.index("--preset") + 1] if "--preset" in command else None
    whole = {"metrics": {metric: FIGURES for metric in run.METRICS}}
    return {
        "seconds": 61.4,
        "seeds": SEEDS.get(preset, 2),
        "test": {"all": whole},
        "validation": {"all": whole},
    }


class InFolder(unittest.TestCase):
    """Calls of a script with a folder of five parts, where setrank is a record of its commands."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.commands = []

    def call(self, script, *arguments: str) -> str:
        def answer(command, **_):
            self.commands.append(command)
            return subprocess.CompletedProcess(command, 0, json.dumps(report_of(command)))

        output = io.StringIO()
        with (
            mock.patch.object(sys, "argv", ["script", *arguments]),
            mock.patch.object(subprocess, "run", answer),
            contextlib.redirect_stdout(output),
        ):
            script.main()
        return output.getvalue()


class Run(InFolder):
    def setUp(self):
        super().setUp()
        self.data = self.folder / "letor"
        self.data.mkdir()
        for part in range(1, 6):
            (self.data / f"S{part}.txt").touch()

    def run_script(self, *arguments: str) -> str:
        return self.call(run, str(self.data), "--out", str(self.folder), *arguments)

    def folds(self) -> list[str | None]:
        found = []
        for command in self.commands:
            found.append(command[command.index("--folds") + 1] if "--folds" in command else None)
        return found

    def test_table(self):
        (self.folder / "letor").mkdir(exist_ok=True)
        self.run_script("--only", "default", "authors")
        lines = (self.folder / "letor" / "table.md").read_text().splitlines()
        means = " | ".join(["0.5000 ± 0.0100"] * 4)
        ensembles = " | ".join(["0.6250 ± 0.0200"] * 4)
        self.assertEqual(lines[0], "| model | queries | NDCG@1 | NDCG@3 | NDCG@5 | NDCG@10 |")
        self.assertEqual(lines[2], f"| `default`, IMSAB, 5 folds × 3 seeds | 9 | {means} |")
        self.assertTrue(lines[3].endswith(f"ensemble of 3 seeds | 9 | {ensembles} |"), lines[3])
        # One seed has no ensemble.
        self.assertEqual([line for line in lines if "authors" in line], [lines[6]])
        self.assertEqual(len(lines), 7)

    def test_full_size_is_for_fold_1_unless_asked(self):
        self.run_script()
        self.assertEqual(self.folds(), [None, None, "1", "1", "1"])
        self.assertIn("--patience", self.commands[-1])
        self.commands.clear()
        self.run_script("--full", "--only", "paper", "authors")
        self.assertEqual(self.folds(), [None, None, None])
        self.assertFalse(any("--patience" in command for command in self.commands))

    def test_parts_are_given_in_order(self):
        self.run_script("--only", "authors")
        parts = [argument for argument in self.commands[0] if argument.endswith(".txt")]
        self.assertEqual([Path(part).name for part in parts], [f"S{part}.txt" for part in range(1, 6)])

    def test_a_missing_part_is_named(self):
        (self.data / "S3.txt").unlink()
        with self.assertRaisesRegex(SystemExit, "five parts"):
            self.run_script()


class Search(InFolder):
    def search(self, table: str, *arguments: str) -> Path:
        out = self.folder / f"{table}.tsv"
        lines = "# words\nz: --within-set zscore\nranks @agg: --init-feature 1:asc # ends\n"
        (self.folder / "configurations.txt").write_text(lines)
        with mock.patch.object(search, "CONFIGURATIONS", self.folder / "configurations.txt"):
            self.call(search, "a", "b", "--out", str(out), "--work", str(self.folder / "work"), *arguments)
        return out

    def test_no_fold_is_tested(self):
        self.search("other")
        self.assertTrue(all("--validation-only" in command for command in self.commands))

    def test_lines_of_one_set(self):
        names = [line.split("\t")[0] for line in self.search("other").read_text().splitlines()]
        self.assertEqual(names, ["name", "z"])
        names = [line.split("\t")[0] for line in self.search("agg").read_text().splitlines()]
        self.assertEqual(names, ["name", "z", "ranks"])

    def test_what_is_done_is_skipped(self):
        first = self.search("agg", "--only", "z").read_text()
        self.assertEqual(first.splitlines()[1], "z\t0.5000\t0.0100\t-\t0.6250\t61\t--within-set zscore")
        self.commands.clear()
        both = self.search("agg").read_text()
        self.assertTrue(both.startswith(first))
        self.assertEqual(len(self.commands), 1)

    def test_other_flags_are_another_run(self):
        out = self.search("agg", "--only", "z")
        out.write_text(out.read_text().replace("zscore", "rank"))
        self.search("agg", "--only", "z")
        folders = [command[command.index("-o") + 1] for command in self.commands]
        self.assertEqual(len(folders), 2)
        self.assertEqual(folders[0], folders[1])  # the flags of the file are the same again
        self.search("agg", "--only", "z", "--common", "--seeds 3")
        self.assertEqual(len(self.commands), 2)
        out.unlink()
        self.search("agg", "--only", "z", "--common", "--seeds 3")
        self.assertNotEqual(self.commands[2][self.commands[2].index("-o") + 1], folders[0])


if __name__ == "__main__":
    unittest.main()
