"""Checks of `letor_fast.py` against the strict reader."""

import tempfile
import unittest
from pathlib import Path

import numpy as np

from letor import read_letor
from letor_fast import read_letor_fast

TEXT = (
    "2 qid:7 1:0.5 3:-2e-3\n0 qid:7 2:1.79769313486e+308\n1.5 qid:12\n"
    "-1 qid:3 1:NULL 2:4 3:0\n0 qid:3 3:1e30"
)


class Fast(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "data.txt"

    def test_reads_what_the_strict_reader_reads(self) -> None:
        for text in (TEXT, TEXT + "\n", "1 qid:1 1:1\n"):
            self.path.write_text(text)
            for absent in ("missing", "zero"):
                fast, strict = (read(self.path, 3, 1, absent) for read in (read_letor_fast, read_letor))
                np.testing.assert_array_equal(fast.features, strict.features)
                np.testing.assert_array_equal(fast.labels, strict.labels)
                self.assertEqual(fast.offsets, strict.offsets)

    def test_what_does_not_add_up_is_an_error(self) -> None:
        for text in ("1 qid:1 1:1 # 3\n", "1 qid:a 1:1\n", "1 1:1\n"):
            self.path.write_text(text)
            with self.assertRaises(ValueError):
                read_letor_fast(self.path, 1, 1, "missing")


if __name__ == "__main__":
    unittest.main()
