//! The listwise losses.

use proptest::prelude::*;
use setrank::ops::loss::Loss;

use super::check;

/// The definition, without regard for digits.
fn plain(loss: Loss, scores: &[f64], labels: &[f32]) -> f64 {
    let judged: Vec<usize> = (0..scores.len()).filter(|&i| labels[i] >= 0.0).collect();
    let total_y: f64 = judged.iter().filter(|&&i| labels[i] > 0.0).map(|&i| f64::from(labels[i]).exp()).sum();
    let total_s: f64 = judged.iter().map(|&i| scores[i].exp()).sum();
    if total_y == 0.0 {
        return 0.0;
    }
    judged
        .iter()
        .map(|&i| {
            let a_y = if labels[i] > 0.0 { f64::from(labels[i]).exp() / total_y } else { 0.0 };
            let a_s = scores[i].exp() / total_s;
            let rest = match loss {
                Loss::AttentionRank if judged.len() == 1 => return 0.0,
                Loss::AttentionRank if a_y < 1.0 => (1.0 - a_y) * (1.0 - a_s).ln(),
                _ => 0.0,
            };
            -(a_y * a_s.ln() + rest)
        })
        .sum()
}

fn value(loss: Loss, scores: &[f64], labels: &[f32]) -> f64 {
    loss.of_set(scores, labels, &mut vec![0.0; scores.len()])
}

proptest! {
    #[test]
    fn match_the_definition_and_its_differences(
        documents in prop::collection::vec((-3.0f64..3.0, -1i8..5), 1..12),
        attention in any::<bool>(),
    ) {
        let loss = if attention { Loss::AttentionRank } else { Loss::SoftmaxCrossEntropy };
        let (scores, labels): (Vec<f64>, Vec<f32>) = documents.into_iter().map(|(s, y)| (s, f32::from(y))).unzip();
        let mut gradient = vec![f64::NAN; scores.len()];
        let value_here = loss.of_set(&scores, &labels, &mut gradient);
        let expected = plain(loss, &scores, &labels);
        prop_assert!((value_here - expected).abs() < 1e-10 * (1.0 + expected.abs()), "{} is not {}", value_here, expected);
        check("gradient", &scores, &gradient, |scores| value(loss, scores, &labels));
    }

    #[test]
    fn extreme_scores_give_finite_values(
        documents in prop::collection::vec((-1e30f64..1e30, -1i8..5), 1..8),
        scale in prop_oneof![Just(1.0), Just(1e-28), Just(1e-27)],
    ) {
        let (scores, labels): (Vec<f64>, Vec<f32>) =
            documents.into_iter().map(|(s, y)| (s * scale, f32::from(y))).unzip();
        for loss in [Loss::AttentionRank, Loss::SoftmaxCrossEntropy] {
            let mut gradient = vec![f64::NAN; scores.len()];
            let value = loss.of_set(&scores, &labels, &mut gradient);
            prop_assert!(value.is_finite() && value >= 0.0, "{:?}: {}", loss, value);
            prop_assert!(gradient.iter().all(|g| g.is_finite() && g.abs() <= scores.len() as f64), "{:?}", gradient);
        }
    }
}

#[test]
fn a_dominating_wrong_document_is_pulled_down() {
    // 1 − a_s underflows; the loss and the gradient must not.
    let mut gradient = [0.0; 3];
    let loss = Loss::AttentionRank.of_set(&[200.0, 0.0, -1.0], &[0.0, 2.0, 0.0], &mut gradient);
    // −log a_s(1) = 200, −log(1 − a_s(0)) = 200 − log(1 + 1/e).
    assert!((loss - (400.0 - (1.0 + (-1.0f64).exp()).ln())).abs() < 1e-9, "{loss}");
    assert!((gradient[0] - 2.0).abs() < 1e-9 && gradient[1] < -1.0, "{gradient:?}");
}

#[test]
fn large_labels_do_not_overflow() {
    let mut gradient = [0.0; 2];
    let loss = Loss::SoftmaxCrossEntropy.of_set(&[0.0, 0.0], &[2000.0, 1000.0], &mut gradient);
    assert!((loss - 2.0f64.ln()).abs() < 1e-12 && gradient == [-0.5, 0.5]);
}
