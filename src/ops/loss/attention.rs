//! The losses between two attentions over the judged documents: a_s = softmax(s), and a_y(i) = e^{y_i} / Σ_{y_k > 0}
//! e^{y_k} for y_i > 0, else 0 (paper, section 4.4).

use super::Scratch;

/// −Σ y log a over at least one relevant document.
pub(super) fn softmax_cross_entropy(scratch: &mut Scratch) -> f64 {
    attend(scratch);
    let Scratch { given: log_a, target, gradient, .. } = scratch;
    let mut loss = 0.0;
    for ((&log_a, &target), gradient) in log_a.iter().zip(&*target).zip(gradient) {
        if target > 0.0 {
            loss -= target * log_a;
        }
        *gradient = log_a.exp() - target;
    }
    loss
}

/// −Σ [y log a + (1 − y) log(1 − a)] over at least two judged documents.
///
/// With w_i = 1 − y_i and the odds c_i = a_i/(1 − a_i): dL/ds_j = a_j − y_j + w_j·c_j − a_j·Σ_i w_i·c_i. The one
/// document with a > ½ may have odds beyond any number; its two terms are taken together for itself,
/// c·(1 − a) = a, and as one exponential for the others.
pub(super) fn attention_rank(scratch: &mut Scratch) -> f64 {
    attend(scratch);
    let Scratch { given: log_a, target, gradient, .. } = scratch;
    let dominant = log_a.iter().position(|&log_a| log_a > -std::f64::consts::LN_2);
    let mut loss = 0.0;
    let mut weighted_odds = 0.0;
    let mut dominant_log_odds = f64::NEG_INFINITY;
    for i in 0..log_a.len() {
        let (a, rest) = (log_a[i].exp(), 1.0 - target[i]);
        gradient[i] = a - target[i];
        if target[i] > 0.0 {
            loss -= target[i] * log_a[i];
        }
        if rest > 0.0 {
            let log_rest = if dominant == Some(i) {
                // 1 − a would lose its digits: sum the others instead.
                let others = log_a.iter().enumerate().filter(|&(other, _)| other != i);
                log_sum_exp(others.map(|(_, &log_a)| log_a))
            } else {
                (-a).ln_1p()
            };
            loss -= rest * log_rest;
            if dominant == Some(i) {
                dominant_log_odds = rest.ln() + log_a[i] - log_rest;
                gradient[i] += rest * a;
            } else {
                let odds = rest * (log_a[i] - log_rest).exp();
                weighted_odds += odds;
                gradient[i] += odds;
            }
        }
    }
    for (i, gradient) in gradient.iter_mut().enumerate() {
        *gradient -= log_a[i].exp() * weighted_odds;
        if dominant.is_some_and(|dominant| dominant != i) {
            *gradient -= (log_a[i] + dominant_log_odds).exp();
        }
    }
    loss
}

/// Makes `target` a_y and `given` log a_s.
fn attend(scratch: &mut Scratch) {
    let Scratch { scores, labels, target, given, .. } = scratch;
    let largest = labels.iter().copied().fold(0.0, f64::max);
    target.clear();
    target.extend(labels.iter().map(|&label| if label > 0.0 { (label - largest).exp() } else { 0.0 }));
    let total: f64 = target.iter().sum();
    target.iter_mut().for_each(|weight| *weight /= total);
    let lse = log_sum_exp(scores.iter().copied());
    given.clear();
    given.extend(scores.iter().map(|&score| score - lse));
}

fn log_sum_exp(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let max = values.clone().fold(f64::NEG_INFINITY, f64::max);
    max + values.map(|x| (x - max).exp()).sum::<f64>().ln()
}
