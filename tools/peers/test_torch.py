"""Checks of the PyTorch model itself: python tools/peers/test_torch.py."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

import export_fixtures
from checkpoint import load_checkpoint, save_checkpoint
from config import complete_config
from letor import read_initial_ranking, read_letor
from losses import LOSSES, mean_loss, set_loss
from normalize import normalize
from score_file import score_file
from setrank_torch import Attention, SetRank

SMALL = {"num_features": 3, "hidden_size": 4, "num_heads": 2, "num_blocks": 1, "ffn_size": 6}
SMALL |= {"num_inducing": 2, "rbf_centers": 5}

MINMAX = {"kind": "minmax", "center": [0.0] * 3, "scale": [1.0] * 3}


def case_config(name: str) -> dict:
    return complete_config({**export_fixtures.TINY, **export_fixtures.CASES[name]})


def draw_case(name: str) -> tuple[SetRank, torch.Tensor, torch.Tensor | None]:
    """The model of a fixture and one set of 7 documents: features [7, F_in], ordinals [R, 7]."""
    config, rng = case_config(name), np.random.default_rng(7)
    model = export_fixtures.draw_model(config, rng)
    raw = rng.uniform(-0.2, 1.2, (7, config["num_features"]))
    features = torch.from_numpy(normalize(raw, config["normalize"]))
    if config["ordinal"] is None:
        return model, features, None
    rankings = config["ordinal"]["rankings"]
    ordinals = torch.from_numpy(np.stack([rng.permutation(7) - 1 for _ in range(rankings)]))
    return model, features, ordinals


class Names(unittest.TestCase):
    """`state_dict()` holds the names and shapes of the checkpoint."""

    SCORE = {"score.weight": (1, 4), "score.bias": (1,)}
    LINEAR = {"input.weight": (4, 3), "input.bias": (4,)}
    MSAB = {
        "blocks.0.attention.q.weight": (4, 4),
        "blocks.0.attention.q.bias": (4,),
        "blocks.0.attention.k.weight": (4, 4),
        "blocks.0.attention.k.bias": (4,),
        "blocks.0.attention.v.weight": (4, 4),
        "blocks.0.attention.v.bias": (4,),
        "blocks.0.norm1.weight": (4,),
        "blocks.0.norm1.bias": (4,),
        "blocks.0.ffn.fc1.weight": (6, 4),
        "blocks.0.ffn.fc1.bias": (6,),
        "blocks.0.ffn.fc2.weight": (4, 6),
        "blocks.0.ffn.fc2.bias": (4,),
        "blocks.0.norm2.weight": (4,),
        "blocks.0.norm2.bias": (4,),
    }

    def check(self, settings: dict, expected: dict) -> None:
        state = SetRank({**SMALL, **settings}).state_dict()
        self.assertEqual({name: tuple(value.shape) for name, value in state.items()}, expected)

    def test_msab(self):
        expected = self.LINEAR | self.MSAB | self.SCORE
        self.check({"encoder": "msab"}, expected)
        self.check({"encoder": "msab", "inner_ffn": False}, expected)

    def test_imsab(self):
        blocks = {"blocks.0.inducing": (2, 4)}
        for name, shape in self.MSAB.items():
            part = name.removeprefix("blocks.0.")
            blocks |= {f"blocks.0.induce.{part}": shape, f"blocks.0.attend.{part}": shape}
        self.check({"encoder": "imsab"}, self.LINEAR | blocks | self.SCORE)

    def test_imsab_without_inner_ffn(self):
        blocks = {
            "blocks.0.inducing": (2, 4),
            "blocks.0.induce.attention.q.weight": (4, 4),
            "blocks.0.induce.attention.q.bias": (4,),
            "blocks.0.induce.attention.k.weight": (4, 4),
            "blocks.0.induce.attention.k.bias": (4,),
            "blocks.0.induce.attention.v.weight": (4, 4),
            "blocks.0.induce.attention.v.bias": (4,),
            "blocks.0.induce.norm1.weight": (4,),
            "blocks.0.induce.norm1.bias": (4,),
            "blocks.0.attend.attention.q.weight": (4, 4),
            "blocks.0.attend.attention.q.bias": (4,),
            "blocks.0.attend.attention.k.weight": (4, 4),
            "blocks.0.attend.attention.k.bias": (4,),
            "blocks.0.attend.attention.v.weight": (4, 4),
            "blocks.0.attend.attention.v.bias": (4,),
            "blocks.0.attend.norm1.weight": (4,),
            "blocks.0.attend.norm1.bias": (4,),
            "blocks.0.ffn.fc1.weight": (6, 4),
            "blocks.0.ffn.fc1.bias": (6,),
            "blocks.0.ffn.fc2.weight": (4, 6),
            "blocks.0.ffn.fc2.bias": (4,),
            "blocks.0.norm2.weight": (4,),
            "blocks.0.norm2.bias": (4,),
        }
        self.check({"encoder": "imsab", "inner_ffn": False}, self.LINEAR | blocks | self.SCORE)

    def test_rbf_indicators_and_rankings(self):
        first = {
            "input.centers": (4, 5),
            "input.fc1.weight": (16, 20),
            "input.fc1.bias": (16,),
            "input.norm1.weight": (16,),
            "input.norm1.bias": (16,),
            "input.fc2.weight": (4, 16),
            "input.fc2.bias": (4,),
            "input.norm2.weight": (4,),
            "input.norm2.bias": (4,),
            "ordinal.0.weight": (9, 4),
            "ordinal.1.weight": (9, 4),
        }
        settings = {
            "encoder": "msab",
            "input": "rbf",
            "normalize": {**MINMAX, "indicators": [False, True, False]},
            "ordinal": {"rankings": 2, "n_max": 9},
        }
        self.check(settings, first | self.MSAB | self.SCORE)


class Forward(unittest.TestCase):
    def test_permutation_equivariance(self):
        for name in export_fixtures.CASES:
            model, features, ordinals = draw_case(name)
            order = torch.from_numpy(np.random.default_rng(1).permutation(7))
            permuted = None if ordinals is None else ordinals[:, order]
            with torch.no_grad(), self.subTest(name):
                expected = model(features, ordinals)[order]
                torch.testing.assert_close(model(features[order], permuted), expected)
                self.assertGreater(expected.std(), 0.01)

    def test_attention_against_the_fused_one(self):
        torch.manual_seed(0)
        attention = Attention(complete_config({**SMALL, "hidden_size": 12, "num_heads": 3}))
        a, z = torch.randn(4, 12), torch.randn(5, 12)
        heads = [
            layer(x).reshape(len(x), 3, 4).permute(1, 0, 2)
            for layer, x in ((attention.q, a), (attention.k, z), (attention.v, z))
        ]
        fused = torch.nn.functional.scaled_dot_product_attention(*heads)
        torch.testing.assert_close(attention(a, z), fused.permute(1, 0, 2).reshape(4, 12))

    def test_rbf_column_order(self):
        model = SetRank({**SMALL, "input": "rbf", "normalize": MINMAX}).double().input
        x = torch.rand(2, 3, dtype=torch.float64)
        columns = [
            torch.exp(-((x[:, f] - model.centers[f, k]) ** 2) / 0.01)
            for f in range(3)
            for k in range(5)
        ]
        inner = model.norm1(torch.relu(model.fc1(torch.stack(columns, dim=1))))
        torch.testing.assert_close(model(x), model.norm2(model.fc2(inner)))

    def test_a_ranking_over_n_max_names_both(self):
        model = SetRank({**SMALL, "ordinal": {"rankings": 1, "n_max": 4}})
        with self.assertRaisesRegex(ValueError, "5 documents .* n_max 4"):
            model(torch.zeros(5, 3), torch.arange(5)[None])


class Losses(unittest.TestCase):
    # scores and labels: plain, a dominant score, unjudged documents, equal labels, two documents
    CASES = [
        ([0.3, -0.2, 0.9, 0.1], [2.0, 0.0, 1.0, 0.0]),
        ([0.1, 3.0, 0.2, -0.5], [1.0, 0.0, 4.0, 0.0]),
        ([0.1, 3.0, 0.2, -0.5], [0.0, 2.0, 0.0, 0.0]),
        ([0.4, 2.0, 0.2, 0.6], [3.0, -1.0, 0.0, 1.0]),
        ([0.4, 0.1, 0.2], [2.0, 2.0, 2.0]),
        ([1.5, -0.5], [0.0, 1.0]),
    ]

    def test_gradients(self):
        for name, loss in LOSSES.items():
            for scores, labels in self.CASES:
                scores = torch.tensor(scores, dtype=torch.float64, requires_grad=True)
                labels = torch.tensor(labels, dtype=torch.float64)
                with self.subTest(name, scores=scores, labels=labels):
                    self.assertTrue(
                        torch.autograd.gradcheck(lambda s: set_loss(loss, s, labels), scores)
                    )

    def test_lambda_loss_as_written(self):
        for scores, labels in self.CASES:
            judged = [(s, y) for s, y in zip(scores, labels) if y >= 0]
            order = sorted(range(len(judged)), key=lambda i: -judged[i][0])
            rank = {document: place + 1 for place, document in enumerate(order)}
            ideal = sorted((2.0**y - 1.0 for _, y in judged), reverse=True)
            max_dcg = sum(gain / np.log2(2.0 + place) for place, gain in enumerate(ideal))
            expected = 0.0
            for i, (s_i, y_i) in enumerate(judged):
                for j, (s_j, y_j) in enumerate(judged):
                    if y_i > y_j:
                        d = abs(rank[i] - rank[j])
                        delta = 1.0 / np.log2(1.0 + d) - 1.0 / np.log2(2.0 + d)
                        rho = abs(1.0 / np.log2(1.0 + rank[i]) - 1.0 / np.log2(1.0 + rank[j]))
                        weight = (10.0 * delta + rho) * (2.0**y_i - 2.0**y_j) / max_dcg
                        expected += weight * np.log2(1.0 + np.exp(s_j - s_i))
            actual = set_loss(
                LOSSES["lambda_loss"],
                torch.tensor(scores, dtype=torch.float64),
                torch.tensor(labels, dtype=torch.float64),
            )
            self.assertAlmostEqual(actual.item(), expected, places=12)

    def test_approx_ndcg_of_wide_margins_is_ndcg(self):
        scores = torch.tensor([300.0, 200.0, 100.0], dtype=torch.float64)
        labels = torch.tensor([0.0, 2.0, 1.0], dtype=torch.float64)
        ndcg = (3.0 / np.log2(3.0) + 1.0 / np.log2(4.0)) / (3.0 + 1.0 / np.log2(3.0))
        actual = set_loss(LOSSES["approx_ndcg"], scores, labels)
        self.assertAlmostEqual(actual.item(), 1.0 - ndcg, places=12)

    def test_attention_rank_as_written(self):
        for scores, labels in self.CASES:
            judged = [(s, y) for s, y in zip(scores, labels) if y >= 0]
            gains = [np.exp(y) if y > 0 else 0.0 for _, y in judged]
            a_y = [gain / sum(gains) for gain in gains]
            exps = [np.exp(s) for s, _ in judged]
            a_s = [e / sum(exps) for e in exps]
            expected = -sum(
                y * np.log(s) + (0.0 if y == 1.0 else (1.0 - y) * np.log(1.0 - s))
                for y, s in zip(a_y, a_s)
            )
            actual = set_loss(
                LOSSES["attention_rank"],
                torch.tensor(scores, dtype=torch.float64),
                torch.tensor(labels, dtype=torch.float64),
            )
            self.assertAlmostEqual(actual.item(), expected, places=12)

    def test_zero_losses(self):
        zero = [([1.0, 2.0], [0.0, -1.0]), ([1.0, 2.0], [-1.0, -1.0]), ([1.0, 2.0], [3.0, -1.0])]
        for name, loss in LOSSES.items():
            for scores, labels in zero:
                scores = torch.tensor(scores, requires_grad=True)
                value = set_loss(loss, scores, torch.tensor(labels))
                value.backward()
                with self.subTest(name, labels=labels):
                    self.assertEqual(value.item(), 0.0)
                    self.assertEqual(scores.grad.tolist(), [0.0, 0.0])

    def test_extreme_scores_stay_finite(self):
        for name, loss in LOSSES.items():
            for dtype in (torch.float32, torch.float64):
                for values in ([80.0, -80.0, -80.0], [-80.0, 80.0, 80.0], [-80.0, 80.0, -80.0]):
                    scores = torch.tensor(values, dtype=dtype, requires_grad=True)
                    value = set_loss(loss, scores, torch.tensor([3.0, 0.0, 1.0], dtype=dtype))
                    value.backward()
                    with self.subTest(name, dtype=dtype, values=values):
                        self.assertTrue(torch.isfinite(value))
                        self.assertTrue(torch.isfinite(scores.grad).all())

    def test_mean_counts_every_set(self):
        scores, labels = torch.tensor([0.5, 0.1, 0.2, 0.7]), torch.tensor([1.0, 0.0, 0.0, 0.0])
        for loss in LOSSES.values():
            mean = mean_loss(loss, scores, labels, [0, 2, 4])
            self.assertEqual(mean, set_loss(loss, scores[:2], labels[:2]) / 2)


class Normalization(unittest.TestCase):
    RAW = np.array([[4.0, np.nan, -3.0]])

    def test_none_reads_missing_as_zero(self):
        np.testing.assert_array_equal(normalize(self.RAW, {"kind": "none"}), [[4.0, 0.0, -3.0]])

    def test_minmax(self):
        settings = {"kind": "minmax", "center": [2.0, 0.0, 0.0], "scale": [0.25, 1.0, 1.0]}
        settings["fill"] = [0.0, 0.75, 0.0]
        np.testing.assert_array_equal(normalize(self.RAW, settings), [[0.5, 0.75, 0.0]])

    def test_log1p_zscore_with_clip_and_indicators(self):
        settings = {"kind": "log1p-zscore", "center": [1.0, 0.0, 1.0], "scale": [2.0, 1.0, 3.0]}
        settings |= {"clip": 2.0, "indicators": [False, True, True]}
        expected = [[2.0 * (np.log(5.0) - 1.0), 0.0, -2.0, 1.0, 0.0]]
        np.testing.assert_allclose(normalize(self.RAW, settings), expected)


    def test_quantile(self):
        knots = [{"values": [0.0, 2.0, 4.0], "scores": [-1.0, 0.0, 2.0]}] * 3
        settings = {"kind": "quantile", "knots": knots, "fill": [0.0, 2.0, 0.0]}
        raw = np.array([[3.0, np.nan, -3.0], [9.0, 2.0, 0.5]])
        expected = [[1.0, 2.0, -1.0], [2.0, 0.0, -0.75]]
        np.testing.assert_array_equal(normalize(raw, settings), expected)

    def test_within_set(self):
        raw = np.array([[3.0], [1.0], [1.0], [3.0], [9.0]])
        settings = {"kind": "none", "indicators": [False], "within_set": "zscore"}
        expected = [[3.0, 1.0], [1.0, -1.0], [1.0, -1.0], [3.0, 1.0], [9.0, 0.0]]
        np.testing.assert_array_equal(normalize(raw, settings, [0, 4, 5]), expected)
        actual = normalize(raw, {"kind": "none", "within_set": "rank"}, [0, 4, 5])
        np.testing.assert_array_equal(actual[:, 1], [0.5, -0.5, -0.5, 0.5, 0.0])
        both = normalize(np.hstack([raw, -raw]), {"kind": "none", "within_set": "both"}, [0, 4, 5])
        np.testing.assert_array_equal(both[:, 2], [row[1] for row in expected])
        np.testing.assert_array_equal(both[:, 4], actual[:, 1])
        np.testing.assert_array_equal(both[:, [3, 5]], -both[:, [2, 4]])


class Config(unittest.TestCase):
    def test_refusals(self):
        refused = [
            {**SMALL, "hidden": 8},
            {**SMALL, "format_version": 2},
            {**SMALL, "num_heads": 3},
            {**SMALL, "input": "rbf"},
            {**SMALL, "ordinal": {"rankings": 1, "size": 3}},
            {**SMALL, "normalize": {"kind": "zscore", "center": [0.0], "scale": [1.0]}},
            {**SMALL, "normalize": {"kind": "quantile", "center": [0.0] * 3}},
            {**SMALL, "normalize": {"kind": "none", "within_set": "median"}},
            {**SMALL, "input": "rbf", "normalize": {**MINMAX, "within_set": "rank"}},
            {"hidden_size": 4},
        ]
        for config in refused:
            with self.subTest(config=config), self.assertRaises(ValueError):
                complete_config(config)

    def test_defaults(self):
        config = complete_config({"num_features": 136})
        self.assertEqual((config["hidden_size"], config["ffn_size"]), (256, 1024))
        self.assertEqual((config["encoder"], config["layer_norm_eps"]), ("imsab", 1e-5))


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, text: str) -> Path:
        path = self.folder / "data.txt"
        path.write_text(text)
        return path

    def test_letor(self):
        path = self.write(
            "# 9:9\n2 qid:b 1:.5 3:1.79769313486e+308 # 2:7\n\n"
            "-1\tqid:b  2:NULL 3:-2e1 1:+3\n0.5 qid:a 1:nan\n"
        )
        data = read_letor(path, num_features=3, index_base=1, absent="zero")
        expected = [[0.5, 0.0, np.nan], [3.0, np.nan, -20.0], [np.nan, 0.0, 0.0]]
        np.testing.assert_array_equal(data.features, np.array(expected, dtype=np.float32))
        self.assertEqual(data.labels.tolist(), [2.0, -1.0, 0.5])
        self.assertEqual(data.offsets, [0, 2, 3])

    def test_absent_and_index_base(self):
        path = self.write("1 qid:0 0:1 2:3\n")
        data = read_letor(path, num_features=3, index_base=0, absent="missing")
        np.testing.assert_array_equal(data.features, [[1.0, np.nan, 3.0]])

    def test_bad_lines_are_named(self):
        for line in ("1 1:2", "1 qid:1 1", "1 qid:1 1:", "1 qid:1 4:1", "1 qid:1 1:1 1:2"):
            with self.subTest(line), self.assertRaisesRegex(ValueError, "line 2"):
                read_letor(self.write("1 qid:1 1:1\n" + line + "\n"), 3, 1, "missing")

    def test_initial_ranking(self):
        lines = ["1 qid:1", "-1 qid:1", "0 qid:1", "0 qid:1", "0 qid:1", "0 qid:2"]
        data = read_letor(self.write("\n".join(lines)), 3, 1, "missing")
        scores = self.folder / "scores.txt"
        scores.write_text("0.5\n9\n0.7\nNULL\n0.5\n-3\n")
        self.assertEqual(read_initial_ranking(scores, data).tolist(), [1, -1, 0, -1, 2, 0])

    def test_checkpoint_round_trip_and_score_file(self):
        config = complete_config({**SMALL, "ordinal": {"rankings": 1, "n_max": 4}})
        torch.manual_seed(3)
        model = SetRank(config).eval()
        save_checkpoint(self.folder / "model", config, model)
        loaded_config, loaded = load_checkpoint(self.folder / "model")
        self.assertEqual(loaded_config, config)
        for name, weight in model.state_dict().items():
            self.assertTrue(torch.equal(loaded.state_dict()[name], weight), name)
        data = self.write("1 qid:1 1:2 3:1\n0 qid:1 2:1\n0 qid:2 1:1\n")
        initial = self.folder / "scores.txt"
        initial.write_text("1\n2\n3\n")
        features = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
        with torch.no_grad():
            expected = model.score_sets(features, [0, 2, 3], torch.tensor([[1, 0, 0]]))
        script = Path(__file__).with_name("score_file.py")
        command = [sys.executable, script, "--model", self.folder / "model"]
        command += ["--data", data, "--init", initial]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        printed = np.array(output.split(), dtype=np.float32)
        np.testing.assert_array_equal(printed, expected.numpy())
        np.testing.assert_array_equal(printed, score_file(self.folder / "model", data, (initial,)))


class Fixtures(unittest.TestCase):
    """The committed fixtures are what the script writes."""

    def export(self) -> Path:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        script = Path(export_fixtures.__file__)
        subprocess.run([sys.executable, script, "--out", folder.name], check=True)
        return Path(folder.name)

    def test_the_same_bytes_twice(self):
        first, second = self.export(), self.export()
        files = sorted(path.relative_to(first) for path in first.rglob("*.*"))
        self.assertEqual(len(files), 3 * len(export_fixtures.CASES) + 1)
        for file in files:
            self.assertEqual((first / file).read_bytes(), (second / file).read_bytes(), file)

    def test_committed(self):
        fresh, committed = self.export(), export_fixtures.FIXTURES
        self.assert_close(fresh / "losses.safetensors", committed / "losses.safetensors")
        for name in export_fixtures.CASES:
            for file in ("config.json", "model.safetensors"):
                expected = (committed / name / file).read_bytes()
                self.assertEqual((fresh / name / file).read_bytes(), expected, f"{name}/{file}")
            self.assert_close(*(root / name / "batch.safetensors" for root in (fresh, committed)))

    def assert_close(self, fresh: Path, committed: Path) -> None:
        actual, expected = load_file(fresh), load_file(committed)
        self.assertEqual(actual.keys(), expected.keys())
        for key, value in expected.items():
            # another processor may round float64 sums the other way
            torch.testing.assert_close(actual[key], value, rtol=1e-10, atol=1e-13, equal_nan=True)

    def test_a_small_step_along_the_gradient(self):
        for name in export_fixtures.CASES:
            folder = export_fixtures.FIXTURES / name
            batch = load_file(folder / "batch.safetensors")
            config = json.loads((folder / "config.json").read_text())
            self.assertEqual(config, case_config(name))
            _, model = load_checkpoint(folder)
            model.double()
            start = {key: value.clone() for key, value in model.named_parameters()}
            for loss in export_fixtures.MODEL_LOSSES:
                gradient = {key: batch[f"grad.{loss}.{key}"] for key in start}
                slope = sum(value.square().sum().item() for value in gradient.values())
                values = []
                for step in (1e-6, -1e-6):
                    moved = {key: start[key] + step * gradient[key] for key in start}
                    model.load_state_dict(moved)
                    values.append(export_fixtures.evaluate(model, batch)[f"loss.{loss}"].item())
                with self.subTest(name, loss=loss):
                    self.assertAlmostEqual((values[0] - values[1]) / 2e-6 / slope, 1.0, places=4)


if __name__ == "__main__":
    unittest.main()
