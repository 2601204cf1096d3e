#!/usr/bin/env python3
"""The page says what the figures say: run by tools/test.sh."""

from __future__ import annotations

import re
import unittest

import page


class Page(unittest.TestCase):
    def test_it_is_what_the_figures_make_of_it(self) -> None:
        self.assertEqual(page.PAGE.read_text(), page.page(), "run tools/page/page.py")

    def test_predictions_are_those_of_docs_fusion(self) -> None:
        text = (page.ROOT / "docs" / "fusion.md").read_text()
        rows = re.findall(r"^\| (I?MSAB), sets of (\d+) \| ([\w, ]+) \| (\d+) \|.*\| ([\d.]+) \| \d+ % \|$", text, re.M)
        documented = {(name, size, fuse): (launches, speed) for name, size, fuse, launches, speed in rows}
        self.assertEqual(len(documented), 20)
        for rung in page.predicted():
            found = (f"{rung['launches']:.0f}", f"{rung['docs_per_s'] / 1e6:.1f}")
            fuse = rung["fuse"] + ("" if rung["matrix"] == "mma" else f", {rung['matrix']}")
            key = (page.ENCODERS[rung["encoder"]], rung["size"], fuse)
            self.assertEqual(found, documented[key], key)

    def test_it_needs_nothing_else(self) -> None:
        self.assertIsNone(re.search(r"<(script|link|img|iframe)|url\(|@import", page.page()))


if __name__ == "__main__":
    unittest.main()
