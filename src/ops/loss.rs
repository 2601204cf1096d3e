//! The listwise losses of a set and their gradients, in f64.
//!
//! Both compare the attention that scores give to the judged documents, a_s = softmax(s), with the attention
//! that labels give, a_y(i) = e^{y_i} / Σ_{y_k > 0} e^{y_k} for y_i > 0, else 0 (paper, section 4.4).

use serde::{Deserialize, Serialize};

/// Which loss is trained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Loss {
    /// −Σ [a_y log a_s + (1 − a_y) log(1 − a_s)], as the paper means it.
    AttentionRank,
    /// −Σ a_y log a_s, as the authors' code has it.
    #[default]
    SoftmaxCrossEntropy,
}

impl Loss {
    /// Loss of one set; writes its gradient by the scores.
    ///
    /// `scores`, `labels` and `gradient` are `[n]`. A document with a negative label is unjudged: it is left out
    /// and its gradient is 0. A set with no relevant document has loss and gradient 0; so has, under
    /// [`Loss::AttentionRank`], a set with one judged document.
    pub fn of_set(self, scores: &[f64], labels: &[f32], gradient: &mut [f64]) -> f64 {
        gradient.fill(0.0);
        let judged: Vec<usize> = (0..scores.len()).filter(|&i| labels[i] >= 0.0).collect();
        let Some(target) = label_attention(labels, &judged) else { return 0.0 };
        let lse = log_sum_exp(judged.iter().map(|&i| scores[i]));
        let log_a: Vec<f64> = judged.iter().map(|&i| scores[i] - lse).collect();
        match self {
            Loss::SoftmaxCrossEntropy => {
                let mut loss = 0.0;
                for ((&i, &log_a), &target) in judged.iter().zip(&log_a).zip(&target) {
                    if target > 0.0 {
                        loss -= target * log_a;
                    }
                    gradient[i] = log_a.exp() - target;
                }
                loss
            }
            Loss::AttentionRank if judged.len() == 1 => 0.0,
            Loss::AttentionRank => attention_rank(&judged, &log_a, &target, gradient),
        }
    }
}

/// −Σ [y log a + (1 − y) log(1 − a)] over at least two judged documents.
///
/// With w_i = 1 − y_i and the odds c_i = a_i/(1 − a_i): dL/ds_j = a_j − y_j + w_j·c_j − a_j·Σ_i w_i·c_i. The one
/// document with a > ½ may have odds beyond any number; its two terms are taken together for itself,
/// c·(1 − a) = a, and as one exponential for the others.
fn attention_rank(judged: &[usize], log_a: &[f64], target: &[f64], gradient: &mut [f64]) -> f64 {
    let dominant = log_a.iter().position(|&log_a| log_a > -std::f64::consts::LN_2);
    let mut loss = 0.0;
    let mut weighted_odds = 0.0;
    let mut dominant_log_odds = f64::NEG_INFINITY;
    for (position, &i) in judged.iter().enumerate() {
        let (a, rest) = (log_a[position].exp(), 1.0 - target[position]);
        gradient[i] = a - target[position];
        if target[position] > 0.0 {
            loss -= target[position] * log_a[position];
        }
        if rest > 0.0 {
            let log_rest = if dominant == Some(position) {
                // 1 − a would lose its digits: sum the others instead.
                let others = log_a.iter().enumerate().filter(|&(other, _)| other != position);
                log_sum_exp(others.map(|(_, &log_a)| log_a))
            } else {
                (-a).ln_1p()
            };
            loss -= rest * log_rest;
            if dominant == Some(position) {
                dominant_log_odds = rest.ln() + log_a[position] - log_rest;
                gradient[i] += rest * a;
            } else {
                let odds = rest * (log_a[position] - log_rest).exp();
                weighted_odds += odds;
                gradient[i] += odds;
            }
        }
    }
    for (position, &i) in judged.iter().enumerate() {
        gradient[i] -= log_a[position].exp() * weighted_odds;
        if dominant.is_some_and(|dominant| dominant != position) {
            gradient[i] -= (log_a[position] + dominant_log_odds).exp();
        }
    }
    loss
}

/// a_y of the judged documents, or `None` where none is relevant.
fn label_attention(labels: &[f32], judged: &[usize]) -> Option<Vec<f64>> {
    let largest = judged.iter().map(|&i| f64::from(labels[i])).fold(0.0, f64::max);
    if largest <= 0.0 {
        return None;
    }
    let weights: Vec<f64> = judged
        .iter()
        .map(|&i| if labels[i] > 0.0 { (f64::from(labels[i]) - largest).exp() } else { 0.0 })
        .collect();
    let total: f64 = weights.iter().sum();
    Some(weights.into_iter().map(|w| w / total).collect())
}

fn log_sum_exp(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let max = values.clone().fold(f64::NEG_INFINITY, f64::max);
    max + values.map(|x| (x - max).exp()).sum::<f64>().ln()
}
