//! ApproxNDCG (Qin, Liu and Li, "A general approximation framework for direct optimization of information retrieval
//! measures", Information Retrieval 2010).

use super::gains::{discount, normalised_gains};
use super::{Scratch, sigmoid};

/// How steep the sigmoids are: 1 over the temperature 0.1 of Bruch et al. (SIGIR 2019).
const ALPHA: f64 = 10.0;

/// 1 − Σ G_i / log2(1 + π_i) with the normalised gains G and the soft ranks π_i = 1 + Σ_{j≠i} σ(α(s_j − s_i)).
pub(super) fn approx_ndcg(scratch: &mut Scratch) -> f64 {
    normalised_gains(scratch);
    let Scratch { scores, target: gains, given: ranks, gradient, .. } = scratch;
    let n = scores.len();
    ranks.clear();
    ranks.resize(n, 1.0);
    for i in 0..n {
        for j in i + 1..n {
            let behind = sigmoid(ALPHA * (scores[j] - scores[i]));
            ranks[i] += behind;
            ranks[j] += 1.0 - behind;
        }
    }
    let mut ndcg = 0.0;
    for (&gain, rank) in gains.iter().zip(ranks.iter_mut()) {
        let log = discount(*rank);
        ndcg += gain / log;
        // From here on dL/dπ stands in the place of π.
        *rank = gain / ((1.0 + *rank) * std::f64::consts::LN_2 * log * log);
    }
    for i in 0..n {
        for j in i + 1..n {
            let behind = sigmoid(ALPHA * (scores[j] - scores[i]));
            let slope = ALPHA * behind * sigmoid(ALPHA * (scores[i] - scores[j]));
            let pull = (ranks[i] - ranks[j]) * slope;
            gradient[i] -= pull;
            gradient[j] += pull;
        }
    }
    1.0 - ndcg
}
