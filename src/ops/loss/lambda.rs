//! NDCG-Loss2++ (Wang et al., "The LambdaLoss Framework for Ranking Metric Optimization", CIKM 2018).

use super::gains::{discount, normalised_gains};
use super::{Scratch, sigmoid, softplus};

/// μ of the paper: how much NDCG-Loss2 counts beside LambdaRank's weight.
const MU: f64 = 10.0;

/// Σ over pairs with y_i > y_j of (μ·δ_ij + ρ_ij)·|G_i − G_j|·log2(1 + e^{s_j − s_i}), with the normalised gains G,
/// d = |rank_i − rank_j| in the current order of the scores (ties in the order of the set), D(r) = log2(1 + r),
/// δ = |1/D(d) − 1/D(d + 1)| and ρ = |1/D(rank_i) − 1/D(rank_j)|.
///
/// The weights are constants to the gradient: −w·σ(s_j − s_i)/ln 2 for s_i, the opposite for s_j.
pub(super) fn lambda_loss(scratch: &mut Scratch) -> f64 {
    normalised_gains(scratch);
    let Scratch { scores, labels, target: gains, given: inverse, order, gradient, .. } = scratch;
    let n = scores.len();
    order.sort_unstable_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    inverse.clear();
    inverse.extend((0..=n).map(|rank| 1.0 / discount(rank as f64 + 1.0)));
    let mut loss = 0.0;
    for (rank_a, &a) in order.iter().enumerate() {
        for (rank_b, &b) in order.iter().enumerate().skip(rank_a + 1) {
            if labels[a] == labels[b] {
                continue;
            }
            let (better, worse) = if labels[a] > labels[b] { (a, b) } else { (b, a) };
            let distance = rank_b - rank_a;
            let delta = inverse[distance - 1] - inverse[distance];
            let rho = inverse[rank_a] - inverse[rank_b];
            let weight = (MU * delta + rho) * (gains[better] - gains[worse]);
            let margin = scores[worse] - scores[better];
            loss += weight * softplus(margin) / std::f64::consts::LN_2;
            let pull = weight * sigmoid(margin) / std::f64::consts::LN_2;
            gradient[better] -= pull;
            gradient[worse] += pull;
        }
    }
    loss
}
