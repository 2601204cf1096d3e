//! The listwise losses.

use proptest::prelude::*;
use setrank::ops::loss::{Loss, Scratch};

use super::check;

/// The definition, without regard for digits.
fn plain(loss: Loss, scores: &[f64], labels: &[f32]) -> f64 {
    let (scores, labels): (Vec<f64>, Vec<f64>) =
        scores.iter().zip(labels).filter(|&(_, &y)| y >= 0.0).map(|(&s, &y)| (s, f64::from(y))).unzip();
    if !labels.iter().any(|&y| y > 0.0) {
        return 0.0;
    }
    match loss {
        Loss::AttentionRank | Loss::SoftmaxCrossEntropy => plain_attention(loss, &scores, &labels),
        Loss::LambdaLoss => plain_lambda(&scores, &labels),
        Loss::ApproxNdcg => {
            let ranks = scores.iter().map(|s| {
                0.5 + scores.iter().map(|other| 1.0 / (1.0 + (10.0 * (s - other)).exp())).sum::<f64>()
            });
            let gains = labels.iter().map(|y| y.exp2() - 1.0);
            1.0 - gains.zip(ranks).map(|(gain, rank)| gain / (1.0 + rank).log2()).sum::<f64>()
                / max_dcg(&labels)
        }
    }
}

fn plain_attention(loss: Loss, scores: &[f64], labels: &[f64]) -> f64 {
    let total_y: f64 = labels.iter().filter(|&&y| y > 0.0).map(|y| y.exp()).sum();
    let total_s: f64 = scores.iter().map(|s| s.exp()).sum();
    let terms = scores.iter().zip(labels).map(|(s, &y)| {
        let a_y = if y > 0.0 { y.exp() / total_y } else { 0.0 };
        let a_s = s.exp() / total_s;
        let rest = match loss {
            Loss::AttentionRank if labels.len() == 1 => return 0.0,
            Loss::AttentionRank if a_y < 1.0 => (1.0 - a_y) * (1.0 - a_s).ln(),
            _ => 0.0,
        };
        -(a_y * a_s.ln() + rest)
    });
    terms.sum()
}

/// With ranks counted from 1.
fn plain_lambda(scores: &[f64], labels: &[f64]) -> f64 {
    let n = scores.len();
    let rank =
        |i: usize| 1 + (0..n).filter(|&j| scores[j] > scores[i] || (scores[j] == scores[i] && j < i)).count();
    let discount = |rank: usize| (1.0 + rank as f64).log2();
    let mut sum = 0.0;
    for i in 0..n {
        for j in (0..n).filter(|&j| labels[i] > labels[j]) {
            let distance = rank(i).abs_diff(rank(j));
            let delta = (1.0 / discount(distance) - 1.0 / discount(distance + 1)).abs();
            let rho = (1.0 / discount(rank(i)) - 1.0 / discount(rank(j))).abs();
            let gain = (labels[i].exp2() - labels[j].exp2()) / max_dcg(labels);
            sum += (10.0 * delta + rho) * gain * (1.0 + (scores[j] - scores[i]).exp()).log2();
        }
    }
    sum
}

fn max_dcg(labels: &[f64]) -> f64 {
    let mut sorted = labels.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    sorted.iter().enumerate().map(|(rank, y)| (y.exp2() - 1.0) / (2.0 + rank as f64).log2()).sum()
}

fn value(loss: Loss, scores: &[f64], labels: &[f32]) -> f64 {
    loss.of_set(&mut Scratch::default(), scores, labels, &mut vec![0.0; scores.len()])
}

proptest! {
    #[test]
    fn match_the_definition_and_its_differences(
        // Scores further apart than the steps of the differences, so that none changes the order.
        documents in prop::collection::btree_map(-300i16..300, -1i8..5, 1..12),
        jitter in prop::collection::vec(0.0f64..1e-3, 12),
        order in any::<u64>(),
    ) {
        let mut documents: Vec<(f64, f32)> =
            documents.into_iter().zip(jitter).map(|((s, y), e)| (f64::from(s) / 100.0 + e, f32::from(y))).collect();
        setrank::rng::Rng::new(order, setrank::rng::Stream::Synth, 0).shuffle(&mut documents);
        let (scores, labels): (Vec<f64>, Vec<f32>) = documents.into_iter().unzip();
        let mut scratch = Scratch::default();
        for loss in Loss::ALL {
            let mut gradient = vec![f64::NAN; scores.len()];
            let value_here = loss.of_set(&mut scratch, &scores, &labels, &mut gradient);
            let expected = plain(loss, &scores, &labels);
            let error = (value_here - expected).abs();
            prop_assert!(error < 1e-10 * (1.0 + expected.abs()), "{:?}: {} is not {}", loss, value_here, expected);
            check("gradient", &scores, &gradient, |scores| value(loss, scores, &labels));
        }
    }

    #[test]
    fn extreme_scores_give_finite_values(
        documents in prop::collection::vec((-1e30f64..1e30, -1i8..5), 1..8),
        scale in prop_oneof![Just(1.0), Just(1e-28), Just(1e-27)],
    ) {
        let (scores, labels): (Vec<f64>, Vec<f32>) =
            documents.into_iter().map(|(s, y)| (s * scale, f32::from(y))).unzip();
        for loss in Loss::ALL {
            let mut gradient = vec![f64::NAN; scores.len()];
            let value = loss.of_set(&mut Scratch::default(), &scores, &labels, &mut gradient);
            prop_assert!(value.is_finite() && value >= -1e-12, "{:?}: {}", loss, value);
            // A pair of LambdaLoss weighs at most (0.37·10 + 1)/ln 2.
            let bound = 7.0 * scores.len() as f64;
            prop_assert!(gradient.iter().all(|g| g.is_finite() && g.abs() <= bound), "{:?}", gradient);
        }
    }

    #[test]
    fn unjudged_documents_and_used_buffers_change_nothing(
        documents in prop::collection::vec((-3.0f64..3.0, -1i8..4), 1..9),
        before in prop::collection::vec((-3.0f64..3.0, -1i8..4), 1..9),
    ) {
        let split = |documents: &[(f64, i8)]| -> (Vec<f64>, Vec<f32>) {
            documents.iter().map(|&(s, y)| (s, f32::from(y))).unzip()
        };
        let judged: Vec<(f64, i8)> = documents.iter().copied().filter(|&(_, y)| y >= 0).collect();
        for loss in Loss::ALL {
            let mut scratch = Scratch::default();
            let (scores, labels) = split(&before);
            loss.of_set(&mut scratch, &scores, &labels, &mut vec![0.0; scores.len()]);
            let (scores, labels) = split(&documents);
            let mut gradient = vec![f64::NAN; scores.len()];
            let all = loss.of_set(&mut scratch, &scores, &labels, &mut gradient);
            let (scores, labels_of_judged) = split(&judged);
            let mut of_judged = vec![f64::NAN; scores.len()];
            prop_assert_eq!(all, loss.of_set(&mut Scratch::default(), &scores, &labels_of_judged, &mut of_judged));
            let (unjudged, rest): (Vec<_>, Vec<_>) = gradient.iter().zip(&labels).partition(|&(_, &y)| y < 0.0);
            prop_assert!(unjudged.iter().all(|&(&g, _)| g == 0.0));
            prop_assert!(rest.iter().map(|&(&g, _)| g).eq(of_judged));
        }
    }
}

#[test]
fn a_perfect_ranking_with_wide_margins_costs_nothing() {
    let (scores, labels) = ([300.0, 100.0, 0.0, -200.0], [3.0, 1.0, 0.0, 0.0]);
    for loss in [Loss::LambdaLoss, Loss::ApproxNdcg] {
        assert!(value(loss, &scores, &labels).abs() < 1e-12, "{loss:?}");
        let reversed: Vec<f64> = scores.iter().map(|s| -s).collect();
        assert!(value(loss, &reversed, &labels) > 0.3, "{loss:?}");
    }
}

#[test]
fn a_dominating_wrong_document_is_pulled_down() {
    // 1 − a_s underflows; the loss and the gradient must not.
    let mut gradient = [0.0; 3];
    let (scores, labels) = ([200.0, 0.0, -1.0], [0.0, 2.0, 0.0]);
    let loss = Loss::AttentionRank.of_set(&mut Scratch::default(), &scores, &labels, &mut gradient);
    // −log a_s(1) = 200, −log(1 − a_s(0)) = 200 − log(1 + 1/e).
    assert!((loss - (400.0 - (1.0 + (-1.0f64).exp()).ln())).abs() < 1e-9, "{loss}");
    assert!((gradient[0] - 2.0).abs() < 1e-9 && gradient[1] < -1.0, "{gradient:?}");
}

#[test]
fn large_labels_do_not_overflow() {
    let (scores, labels) = ([0.0, 0.0], [2000.0, 1000.0]);
    let mut gradient = [0.0; 2];
    let mut scratch = Scratch::default();
    let loss = Loss::SoftmaxCrossEntropy.of_set(&mut scratch, &scores, &labels, &mut gradient);
    assert!((loss - 2.0f64.ln()).abs() < 1e-12 && gradient == [-0.5, 0.5]);
    for loss in Loss::ALL {
        let value = loss.of_set(&mut scratch, &scores, &labels, &mut gradient);
        assert!(value.is_finite() && gradient.iter().all(|g| g.is_finite()), "{loss:?}");
    }
}
