//! The listwise losses of a set and their gradients, in f64.
//!
//! The two of the paper and its code compare the attention that scores give to the judged documents with the
//! attention that labels give (paper, section 4.4); [`Loss::LambdaLoss`] weighs pairs by what their order is worth in
//! NDCG; [`Loss::ApproxNdcg`] makes NDCG itself smooth.

use serde::{Deserialize, Serialize};

mod approx_ndcg;
mod attention;
#[cfg(feature = "cuda")]
pub mod check;
#[cfg(feature = "cuda")]
mod device;
mod gains;
mod lambda;
#[cfg(feature = "cuda")]
mod plain;
#[cfg(feature = "cuda")]
mod plan;

#[cfg(feature = "cuda")]
pub use device::{DeviceLabels, set_losses};
#[cfg(feature = "cuda")]
pub use plan::SetLossesPlan;

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
    /// NDCG-Loss2++ of the LambdaLoss framework (Wang et al., CIKM 2018).
    LambdaLoss,
    /// 1 − NDCG with sigmoids for the ranks (Qin et al., Information Retrieval 2010).
    ApproxNdcg,
}

impl Loss {
    /// Every loss.
    pub const ALL: [Loss; 4] =
        [Loss::AttentionRank, Loss::SoftmaxCrossEntropy, Loss::LambdaLoss, Loss::ApproxNdcg];

    /// Loss of one set; writes its gradient by the scores. Allocates nothing once `scratch` has seen a set of that
    /// size.
    ///
    /// `scores`, `labels` and `gradient` are `[n]`. A document with a negative label is unjudged: it is left out
    /// and its gradient is 0. A set with no relevant document has loss and gradient 0; so has, under all but
    /// [`Loss::SoftmaxCrossEntropy`], a set with one judged document (where that loss is 0 as well).
    ///
    /// The gradient of [`Loss::LambdaLoss`] takes the weights of the pairs, which jump where two documents change
    /// places, as constants: it is exact wherever no two scores are equal.
    pub fn of_set(self, scratch: &mut Scratch, scores: &[f64], labels: &[f32], gradient: &mut [f64]) -> f64 {
        gradient.fill(0.0);
        scratch.judge(scores, labels);
        let relevant = scratch.labels.iter().any(|&label| label > 0.0);
        if !relevant || scratch.scores.len() == 1 {
            return 0.0;
        }
        let loss = match self {
            Loss::SoftmaxCrossEntropy => attention::softmax_cross_entropy(scratch),
            Loss::AttentionRank => attention::attention_rank(scratch),
            Loss::LambdaLoss => lambda::lambda_loss(scratch),
            Loss::ApproxNdcg => approx_ndcg::approx_ndcg(scratch),
        };
        for (&document, &of_document) in scratch.judged.iter().zip(&scratch.gradient) {
            gradient[document] = of_document;
        }
        loss
    }
}

/// Buffers of [`Loss::of_set`], reused from set to set. All are by judged document, in the order of the set.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    /// Place of each in the set.
    judged: Vec<usize>,
    scores: Vec<f64>,
    labels: Vec<f64>,
    /// What labels ask for: attention, or gain.
    target: Vec<f64>,
    /// What scores give: log attention, or rank.
    given: Vec<f64>,
    /// Judged documents in some order.
    order: Vec<usize>,
    gradient: Vec<f64>,
}

impl Scratch {
    /// Takes the judged documents of a set, with gradient 0.
    fn judge(&mut self, scores: &[f64], labels: &[f32]) {
        self.judged.clear();
        self.judged.extend((0..scores.len()).filter(|&document| labels[document] >= 0.0));
        self.scores.clear();
        self.scores.extend(self.judged.iter().map(|&document| scores[document]));
        self.labels.clear();
        self.labels.extend(self.judged.iter().map(|&document| f64::from(labels[document])));
        self.gradient.clear();
        self.gradient.resize(self.judged.len(), 0.0);
    }
}

/// ln(1 + eˣ) for any x.
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// 1/(1 + e⁻ˣ) for any x.
fn sigmoid(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    if x >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) }
}
