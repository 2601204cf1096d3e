//! What NDCG gives for labels and ranks, where it is part of a loss.

use super::Scratch;

/// Makes `target` the gains (2^y − 1)/maxDCG of the labels, maxDCG over all judged documents, of which at least one is
/// relevant. Any finite label is fine: both are taken as shares of 2 to the largest label.
pub(super) fn normalised_gains(scratch: &mut Scratch) {
    let Scratch { labels, target, order, .. } = scratch;
    let largest = labels.iter().copied().fold(0.0, f64::max);
    target.clear();
    target.extend(labels.iter().map(|&label| (label - largest).exp2() - (-largest).exp2()));
    order.clear();
    order.extend(0..labels.len());
    order.sort_unstable_by(|&a, &b| labels[b].total_cmp(&labels[a]));
    let ideal: f64 = order
        .iter()
        .enumerate()
        .map(|(rank, &document)| target[document] / discount(rank as f64 + 1.0))
        .sum();
    target.iter_mut().for_each(|gain| *gain /= ideal);
}

/// NDCG's log2(1 + rank), by which a gain is divided; ranks count from 1.
pub(super) fn discount(rank: f64) -> f64 {
    (1.0 + rank).log2()
}
