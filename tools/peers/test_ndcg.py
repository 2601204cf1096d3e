"""Checks of `ndcg.py` and of the folds, without LightGBM; against `setrank eval` where it is built."""

import tempfile
import unittest
from pathlib import Path

import numpy as np

from letor import Dataset
from lightgbm_cv import CUTOFFS, fold_parts, join, setrank_ndcg
from ndcg import mean_and_error, ndcg_per_query

ROOT = Path(__file__).resolve().parents[2]
BINARIES = [ROOT / "target" / profile / "setrank" for profile in ("release", "debug")]


class Ndcg(unittest.TestCase):
    def test_by_hand(self) -> None:
        """The better document second: 1 / log2(3) of the ideal; cut to one, nothing of it."""
        found = ndcg_per_query(np.array([0.0, 1.0]), np.array([2.0, 1.0]), [0, 2], (1, 2))
        np.testing.assert_allclose(found, [[0.0, 1 / np.log2(3)]])

    def test_graded_gain(self) -> None:
        labels, scores = np.array([1.0, 2.0, 0.0]), np.array([3.0, 2.0, 1.0])
        found = ndcg_per_query(labels, scores, [0, 3], (10,))
        np.testing.assert_allclose(found, [[(1 + 3 / np.log2(3)) / (3 + 1 / np.log2(3))]])

    def test_ties_rank_by_file_order(self) -> None:
        found = ndcg_per_query(np.array([1.0, 0.0]), np.zeros(2), [0, 2], (1,))
        self.assertEqual(found[0, 0], 1.0)

    def test_unjudged_documents_take_no_rank(self) -> None:
        found = ndcg_per_query(np.array([-1.0, 1.0]), np.array([2.0, 1.0]), [0, 2], (1,))
        self.assertEqual(found[0, 0], 1.0)

    def test_queries_without_a_relevant_document_are_skipped(self) -> None:
        values = ndcg_per_query(np.array([0.0, 1.0, 1.0, 0.0]), np.array([1.0, 1, 2, 3]), [0, 1, 2, 4], (1,))
        self.assertTrue(np.isnan(values[0, 0]))
        self.assertEqual(mean_and_error(values[:, 0]), (0.5, 0.5))

    def test_too_few_queries(self) -> None:
        with self.assertRaises(ValueError):
            mean_and_error(np.array([np.nan, 1.0]))

    def test_setrank_eval_says_the_same(self) -> None:
        binary = next((path for path in BINARIES if path.is_file()), None)
        if binary is None:
            self.skipTest("setrank is not built")
        rng = np.random.default_rng(5)
        sizes = rng.integers(1, 30, 40)
        offsets = [0, *np.cumsum(sizes).tolist()]
        labels = rng.integers(-1, 5, offsets[-1]).astype(np.float32)
        labels[: offsets[1]] = 0  # a query to skip
        scores = rng.integers(0, 8, offsets[-1]) / 4  # with ties
        queries = np.repeat(np.arange(len(sizes)), sizes)
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "data.txt"
            lines = (f"{label:g} qid:{query} 1:1\n" for label, query in zip(labels, queries))
            data.write_text("".join(lines))
            theirs = setrank_ndcg(binary, data, scores)
        ours = np.nanmean(ndcg_per_query(labels, scores, offsets, CUTOFFS), axis=0)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


class Folds(unittest.TestCase):
    def test_every_part_is_tested_and_validated_once(self) -> None:
        folds = [fold_parts(fold) for fold in range(5)]
        self.assertEqual(folds[0], ((0, 1, 2), 3, 4))
        self.assertEqual(sorted(test for _, _, test in folds), list(range(5)))
        for train, valid, test in folds:
            self.assertEqual(len({*train, valid, test}), 5)

    def test_joined_sets_keep_their_queries(self) -> None:
        def part(labels: list[float], offsets: list[int]) -> Dataset:
            features = np.array(labels, dtype=np.float32)[:, None]
            return Dataset(features, np.array(labels, dtype=np.float32), offsets)

        joined = join([part([1, 2], [0, 1, 2]), part([3, 4, 5], [0, 3])])
        self.assertEqual(joined.offsets, [0, 1, 2, 5])
        self.assertEqual(joined.labels.tolist(), [1, 2, 3, 4, 5])
        self.assertEqual(joined.features[:, 0].tolist(), [1, 2, 3, 4, 5])


if __name__ == "__main__":
    unittest.main()
