"""The model without padding scores and learns as the plain one: python tools/peers/test_varlen.py."""

import unittest

import torch

from config import complete_config
from losses import LOSSES, mean_loss
from setrank_torch import SetRank
from varlen_torch import Sets, VarlenSetRank, softmax_cross_entropy

SIZES = [3, 1, 7, 4, 4]
SMALL = {"num_features": 5, "hidden_size": 16, "num_heads": 4, "num_blocks": 2, "ffn_size": 24}
SMALL |= {"num_inducing": 3}
TOLERANCE = 1e-12  # float64


class Varlen(unittest.TestCase):
    def test_scores_and_gradients(self):
        torch.manual_seed(3)
        offsets = [sum(SIZES[:index]) for index in range(len(SIZES) + 1)]
        features = torch.randn(sum(SIZES), SMALL["num_features"], dtype=torch.float64)
        labels = torch.randint(3, (sum(SIZES),)).double()
        labels[: SIZES[0]] = 0.0  # a set without a relevant document
        sets = Sets.of(SIZES, SMALL["num_inducing"])
        for encoder in ("msab", "imsab"):
            for inner_ffn in (True, False):
                with self.subTest(encoder=encoder, inner_ffn=inner_ffn):
                    config = {**SMALL, "encoder": encoder, "inner_ffn": inner_ffn}
                    peer = SetRank(complete_config(config)).double()
                    expected = peer.score_sets(features, offsets)
                    loss = mean_loss(LOSSES["softmax_cross_entropy"], expected, labels, offsets)
                    (expected_gradient,) = torch.autograd.grad(loss, peer.input.weight)
                    scores = VarlenSetRank(peer)(features, sets)
                    varlen_loss = softmax_cross_entropy(scores, labels, sets)
                    (gradient,) = torch.autograd.grad(varlen_loss, peer.input.weight)
                    for found, right in (
                        (scores, expected),
                        (varlen_loss, loss),
                        (gradient, expected_gradient),
                    ):
                        torch.testing.assert_close(found, right, rtol=0, atol=TOLERANCE)

    def test_initial_rankings_are_refused(self):
        config = complete_config({**SMALL, "ordinal": {"rankings": 1, "n_max": 4}})
        with self.assertRaisesRegex(ValueError, "initial rankings"):
            VarlenSetRank(SetRank(config))


if __name__ == "__main__":
    unittest.main()
