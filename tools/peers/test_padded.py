"""The padded model scores and learns as the plain one: python tools/peers/test_padded.py."""

import unittest
from pathlib import Path

import torch
from safetensors.torch import load_file

from checkpoint import load_checkpoint
from config import complete_config
from losses import LOSSES, mean_loss
from padded_torch import PaddedSetRank, make_layout, softmax_cross_entropy
from setrank_torch import SetRank

SIZES = [3, 1, 7, 4, 4]
SMALL = {"num_features": 5, "hidden_size": 16, "num_heads": 4, "num_blocks": 2, "ffn_size": 24}
SMALL |= {"num_inducing": 3}
TOLERANCE = 1e-12  # float64; float32 where code is compiled: 1e-5


def offsets() -> list[int]:
    return [sum(SIZES[:index]) for index in range(len(SIZES) + 1)]


class Padded(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)
        documents = sum(SIZES)
        self.features = torch.randn(documents, SMALL["num_features"], dtype=torch.float64)
        self.labels = torch.randint(3, (documents,)).double()
        self.labels[: SIZES[0]] = 0.0  # a set without a relevant document

    def peer(self, encoder: str) -> SetRank:
        model = SetRank(complete_config({**SMALL, "encoder": encoder})).double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        return model

    def test_rows_go_where_they_belong(self):
        for buckets, pad_to in ((1, None), (2, None), (5, None), (9, None), (1, 7), (1, 8), (2, 8)):
            layout = make_layout(SIZES, buckets, pad_to=pad_to)
            padded = layout.pad(torch.arange(1.0, sum(SIZES) + 1))
            self.assertEqual(len(padded), sum(b.sets * b.width for b in layout.buckets))
            self.assertEqual(sum(b.sets for b in layout.buckets), len(SIZES))
            self.assertTrue(torch.equal(padded[layout.row_of_document], torch.arange(1.0, 20.0)))
            for bucket in layout.buckets:
                real = bucket.of(padded) > 0
                expected = torch.ones_like(real) if bucket.real is None else bucket.real
                self.assertTrue(torch.equal(real, expected))

    def test_sets_that_do_not_fit_are_refused(self):
        with self.assertRaisesRegex(ValueError, "a set of 7 documents does not fit into 6"):
            make_layout(SIZES, 1, pad_to=6)

    def test_scores_and_gradients(self):
        for encoder in ("msab", "imsab"):
            for num_buckets in (1, 2, 5):
                with self.subTest(encoder=encoder, buckets=num_buckets):
                    peer = self.peer(encoder)
                    layout = make_layout(SIZES, num_buckets, pad_to=9 if num_buckets == 1 else None)
                    padded = PaddedSetRank(peer)
                    expected = peer.score_sets(self.features, offsets())
                    loss = mean_loss(
                        LOSSES["softmax_cross_entropy"], expected, self.labels, offsets()
                    )
                    (expected_gradient,) = torch.autograd.grad(loss, peer.input.weight)
                    scores = padded(layout.pad(self.features), layout.buckets)
                    padded_loss = softmax_cross_entropy(
                        scores, layout.pad(self.labels), layout.buckets
                    )
                    (gradient,) = torch.autograd.grad(padded_loss, padded.input.weight)
                    torch.testing.assert_close(
                        scores[layout.row_of_document], expected, rtol=0, atol=TOLERANCE
                    )
                    torch.testing.assert_close(padded_loss, loss, rtol=0, atol=TOLERANCE)
                    torch.testing.assert_close(
                        gradient, expected_gradient, rtol=0, atol=TOLERANCE
                    )

    def test_every_kind_of_model(self):
        """The fixtures: rbf input, q/k/v ReLU, one outer FFN, initial rankings at the input or at every block."""
        fixtures = Path(__file__).parents[2] / "tests" / "fixtures"
        for folder in sorted(path.parent for path in fixtures.glob("*/config.json")):
            _, peer = load_checkpoint(folder)
            peer.double().eval()
            batch = load_file(folder / "batch.safetensors")
            sizes = batch["offsets"].diff().tolist()
            for num_buckets in (1, 3):
                with self.subTest(folder.name, buckets=num_buckets):
                    layout = make_layout(sizes, num_buckets)
                    features = layout.pad(batch["features"].double())
                    ordinals = batch.get("ordinals")
                    padded = ordinals if ordinals is None else layout.pad(ordinals.T)
                    scores = PaddedSetRank(peer)(features, layout.buckets, padded)
                    torch.testing.assert_close(
                        scores[layout.row_of_document], batch["scores"], rtol=0, atol=TOLERANCE
                    )

    def test_compiled(self):
        for encoder in ("msab", "imsab"):
            with self.subTest(encoder=encoder):
                peer = self.peer(encoder).float()
                features = self.features.float()
                layout = make_layout(SIZES, 2)
                compiled = torch.compile(PaddedSetRank(peer), dynamic=False)
                with torch.inference_mode():
                    expected = peer.score_sets(features, offsets())
                    scores = compiled(layout.pad(features), layout.buckets)
                torch.testing.assert_close(
                    scores[layout.row_of_document], expected, rtol=1e-5, atol=1e-5
                )


if __name__ == "__main__":
    unittest.main()
