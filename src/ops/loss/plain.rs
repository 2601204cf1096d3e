//! The losses of sets as plain evaluations in f32: what kernels are held against.

use std::f32::consts::{LN_2, LOG2_E};

use super::Loss;
use crate::ops::check::approximate::Approximate;
use crate::ops::check::draw::Draw;

/// As the CPU's.
const MU: f32 = 10.0;
/// As the CPU's.
const ALPHA: f32 = 10.0;

/// The judged documents of a set.
struct Set<'a> {
    scores: &'a [f32],
    labels: &'a [f32],
    largest_label: f32,
    /// In which sums go.
    order: &'a [usize],
    approximate: Approximate,
}

/// Loss and gradient of a set, as [`Loss::of_set`]. Sums go in the draw's order.
pub(super) fn plain(loss: Loss, scores: &[f32], labels: &[f32], draw: Draw, gradient: &mut [f32]) -> f32 {
    let judged: Vec<usize> = (0..scores.len()).filter(|&document| labels[document] >= 0.0).collect();
    let scores: Vec<f32> = judged.iter().map(|&document| scores[document]).collect();
    let labels: Vec<f32> = judged.iter().map(|&document| labels[document]).collect();
    let largest_label = labels.iter().copied().fold(0.0, f32::max);
    if largest_label == 0.0 || judged.len() == 1 {
        return 0.0;
    }
    let order = draw.order(judged.len());
    let set =
        Set { scores: &scores, labels: &labels, largest_label, order: &order, approximate: draw.approximate };
    let (loss, of_judged) = match loss {
        Loss::AttentionRank => set.attention_rank(),
        Loss::SoftmaxCrossEntropy => set.softmax_cross_entropy(),
        Loss::LambdaLoss => set.lambda_loss(),
        Loss::ApproxNdcg => set.approx_ndcg(),
    };
    for (document, of_document) in judged.into_iter().zip(of_judged) {
        gradient[document] = of_document;
    }
    loss
}

/// NDCG's log2(1 + rank).
fn discount(rank: f32) -> f32 {
    (1.0 + rank).log2()
}

impl Set<'_> {
    fn len(&self) -> usize {
        self.scores.len()
    }

    fn sum(&self, of: impl FnMut(usize) -> f32) -> f32 {
        self.order.iter().copied().map(of).sum()
    }

    /// eˣ as kernels have it.
    fn exp(&self, x: f32) -> f32 {
        self.approximate.exp(x)
    }

    /// σ(x)
    fn sigmoid(&self, x: f32) -> f32 {
        let small = self.exp(-x.abs());
        if x >= 0.0 { 1.0 / (1.0 + small) } else { small / (1.0 + small) }
    }

    fn each(&self, of: impl FnMut(usize) -> f32) -> Vec<f32> {
        (0..self.len()).map(of).collect()
    }

    /// The softmax of the scores of some documents, and its logarithm.
    fn softmax(&self, has: impl Fn(usize) -> bool) -> (Vec<f32>, impl Fn(usize) -> f32) {
        let scores = self.each(|i| if has(i) { self.scores[i] } else { f32::NEG_INFINITY });
        let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total = self.sum(|i| self.exp(scores[i] - largest));
        (self.each(|i| self.exp(scores[i] - largest) / total), move |i| scores[i] - largest - total.ln())
    }

    /// The attention that labels give.
    fn target(&self) -> Vec<f32> {
        let weight = |i: usize| {
            let label = self.labels[i];
            if label > 0.0 { self.exp(label - self.largest_label) } else { 0.0 }
        };
        let total = self.sum(weight);
        self.each(|i| weight(i) / total)
    }

    fn softmax_cross_entropy(&self) -> (f32, Vec<f32>) {
        let (a, log_a) = self.softmax(|_| true);
        let y = self.target();
        (self.sum(|i| if y[i] > 0.0 { -y[i] * log_a(i) } else { 0.0 }), self.each(|i| a[i] - y[i]))
    }

    fn attention_rank(&self) -> (f32, Vec<f32>) {
        let (a, log_a) = self.softmax(|_| true);
        let y = self.target();
        let top = (0..self.len()).fold(0, |top, i| if self.scores[i] > self.scores[top] { i } else { top });
        let (share, log_share) = self.softmax(|i| i != top);
        // 1 − a of the top is the attention of any other by that document's share of it.
        let other = (0..self.len()).filter(|&i| i != top).fold(usize::MAX, |most, i| {
            if most == usize::MAX || self.scores[i] > self.scores[most] { i } else { most }
        });
        let log_rest = |i: usize| if i == top { log_a(other) - log_share(other) } else { (-a[i]).ln_1p() };
        let odds = |i: usize| if i == top { 0.0 } else { (1.0 - y[i]) * (a[i] / (1.0 - a[i])) };
        let loss = self.sum(|i| {
            let entropy = if y[i] > 0.0 { y[i] * log_a(i) } else { 0.0 };
            -(entropy + (1.0 - y[i]) * log_rest(i))
        });
        let all_odds = self.sum(odds);
        let of_top = (1.0 - y[top]) * a[top];
        let gradient = self.each(|i| {
            let own = if i == top { of_top } else { odds(i) };
            a[i] - y[i] + own - a[i] * all_odds - of_top * share[i]
        });
        (loss, gradient)
    }

    /// How many documents stand before document `i` when these values decrease, equal ones in the order of the set.
    fn before(&self, values: &[f32], i: usize) -> usize {
        (0..self.len()).filter(|&j| values[j] > values[i] || values[j] == values[i] && j < i).count()
    }

    fn gains(&self) -> Vec<f32> {
        let least = self.approximate.exp2(-self.largest_label);
        let gains = self.each(|i| self.approximate.exp2(self.labels[i] - self.largest_label) - least);
        let ideal = self.sum(|i| gains[i] / discount(self.before(self.labels, i) as f32 + 1.0));
        self.each(|i| gains[i] / ideal)
    }

    fn lambda_loss(&self) -> (f32, Vec<f32>) {
        let gains = self.gains();
        let ranks: Vec<usize> = (0..self.len()).map(|i| self.before(self.scores, i) + 1).collect();
        let weight = |i: usize, j: usize| {
            let d = ranks[i].abs_diff(ranks[j]) as f32;
            // 1/log2(1 + d) − 1/log2(2 + d), without the difference.
            let delta = if d == 0.0 {
                0.0
            } else {
                (1.0 / (d + 1.0)).ln_1p() * LOG2_E / (discount(d) * discount(d + 1.0))
            };
            let rho = (1.0 / discount(ranks[i] as f32) - 1.0 / discount(ranks[j] as f32)).abs();
            (MU * delta + rho) * (gains[i] - gains[j]).abs()
        };
        let pairs = |i: usize| self.order.iter().copied().filter(move |&j| self.labels[i] != self.labels[j]);
        let loss = self.sum(|i| {
            let worse = pairs(i).filter(|&j| self.labels[i] > self.labels[j]);
            let of_pair = |j: usize| {
                let margin = self.scores[j] - self.scores[i];
                weight(i, j) * (margin.max(0.0) + self.exp(-margin.abs()).ln_1p())
            };
            worse.map(of_pair).sum()
        });
        let gradient = self.each(|i| {
            let of_pair = |j: usize| {
                let apart = self.scores[j] - self.scores[i];
                let better = self.labels[i] > self.labels[j];
                weight(i, j) * if better { -self.sigmoid(apart) } else { self.sigmoid(-apart) }
            };
            pairs(i).map(of_pair).sum::<f32>() / LN_2
        });
        (loss / LN_2, gradient)
    }

    fn approx_ndcg(&self) -> (f32, Vec<f32>) {
        let gains = self.gains();
        let apart = |i: usize, j: usize| ALPHA * (self.scores[j] - self.scores[i]);
        // The document itself adds the other half.
        let ranks = self.each(|i| 0.5 + self.sum(|j| self.sigmoid(apart(i, j))));
        let ndcg = self.sum(|i| gains[i] / discount(ranks[i]));
        let slopes = self.each(|i| gains[i] / ((1.0 + ranks[i]) * LN_2 * discount(ranks[i]).powi(2)));
        let gradient = self.each(|i| {
            -self.sum(|j| {
                let small = self.exp(-apart(i, j).abs());
                (slopes[i] - slopes[j]) * (ALPHA * small / ((1.0 + small) * (1.0 + small)))
            })
        });
        (1.0 - ndcg, gradient)
    }
}
