//! Attention inside each set: documents among themselves, inducing points over documents, documents over inducing
//! points.

use proptest::prelude::*;
use setrank::ops::Scalar;
use setrank::ops::attention::{self, Attention, Heads, QkvGradients, Rows};
use setrank::ops::dropout::Dropout;
use setrank::ops::scratch::PerThread;

use super::{assert_close, cast, check, dot, normals};

const HEADS: Heads = Heads { count: 2, width: 3 };
const HIDDEN: usize = 6;

fn threads() -> PerThread {
    let mut threads = PerThread::default();
    threads.prepare();
    threads
}

/// Sets of queries and keys, and everything that attention is computed from.
struct Case {
    query_offsets: Vec<usize>,
    key_offsets: Vec<usize>,
    shared: bool,
    q: Vec<f64>,
    kv: Vec<f64>,
    dropout: Option<Dropout>,
}

fn offsets(sizes: &[usize]) -> Vec<usize> {
    let mut offsets = vec![0];
    sizes.iter().for_each(|size| offsets.push(offsets[offsets.len() - 1] + size));
    offsets
}

impl Case {
    fn new(queries: &[usize], keys: &[usize], shared: bool, dropout: f64, seed: u64) -> Self {
        let rows = if shared { queries[0] } else { queries.iter().sum() };
        Case {
            query_offsets: offsets(queries),
            key_offsets: offsets(keys),
            shared,
            q: normals(rows * HIDDEN, seed),
            kv: normals(keys.iter().sum::<usize>() * 2 * HIDDEN, seed + 1),
            dropout: Dropout::new(dropout, seed, 1, 0),
        }
    }

    fn attention<'a, T: Scalar>(&'a self, q: &'a [T], kv: &'a [T]) -> Attention<'a, T> {
        let part = |column| Rows { data: kv, stride: 2 * HIDDEN, column };
        Attention {
            heads: HEADS,
            q: Rows { data: q, stride: HIDDEN, column: 0 },
            k: part(0),
            v: part(HIDDEN),
            query_offsets: &self.query_offsets,
            key_offsets: &self.key_offsets,
            shared_queries: self.shared,
            dropout: self.dropout,
        }
    }

    fn rows(&self) -> usize {
        *self.query_offsets.last().unwrap()
    }

    fn run<T: Scalar>(&self, q: &[f64], kv: &[f64]) -> (Vec<T>, Vec<T>) {
        let (q, kv) = (cast(q), cast(kv));
        let (mut out, mut lse) =
            (vec![T::ZERO; self.rows() * HIDDEN], vec![T::ZERO; self.rows() * HEADS.count]);
        attention::forward(&mut out, Some(&mut lse), &self.attention(&q, &kv), &threads());
        (out, lse)
    }

    /// Gradients of q, row by row of the output, and of kv, given forward's outputs and the gradient of the first.
    fn gradients<T: Scalar>(&self, d_out: &[f64], out: &[T], lse: &[T]) -> (Vec<T>, Vec<T>) {
        // What is there before must not matter.
        let (mut dq, mut dkv) =
            (vec![T::from_f64(f64::NAN); out.len()], vec![T::from_f64(f64::NAN); self.kv.len()]);
        let gradients = QkvGradients::Apart { q: &mut dq[..], kv: &mut dkv[..] };
        let (q, kv) = (cast(&self.q), cast(&self.kv));
        attention::backward(gradients, &cast(d_out), out, lse, &self.attention(&q, &kv), &threads());
        (dq, dkv)
    }

    /// softmax(q·kᵀ/√D)·v, head by head and set by set, in plain loops.
    fn plain(&self) -> Vec<f64> {
        let mut out = vec![0.0; self.rows() * HIDDEN];
        for set in 0..self.query_offsets.len() - 1 {
            let keys = self.key_offsets[set]..self.key_offsets[set + 1];
            for head in 0..HEADS.count {
                let columns = head * HEADS.width..(head + 1) * HEADS.width;
                for (local, row) in (self.query_offsets[set]..self.query_offsets[set + 1]).enumerate() {
                    let source = if self.shared { local } else { row };
                    let q = &self.q[source * HIDDEN..(source + 1) * HIDDEN][columns.clone()];
                    let logits: Vec<f64> = keys
                        .clone()
                        .map(|key| {
                            dot(q, &self.kv[key * 2 * HIDDEN..][columns.clone()])
                                / (HEADS.width as f64).sqrt()
                        })
                        .collect();
                    let total: f64 = logits.iter().map(|l| l.exp()).sum();
                    let mut weights: Vec<f64> = logits.iter().map(|l| l.exp() / total).collect();
                    if let Some(dropout) = self.dropout {
                        dropout.apply(&mut weights, 0, [set, head, local]);
                    }
                    for (key, weight) in keys.clone().zip(weights) {
                        let v = &self.kv[key * 2 * HIDDEN + HIDDEN..][columns.clone()];
                        let out = &mut out[row * HIDDEN..][columns.clone()];
                        out.iter_mut().zip(v).for_each(|(o, v)| *o += weight * v);
                    }
                }
            }
        }
        out
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn matches_plain_loops(
        keys in prop::collection::vec(prop_oneof![1usize..150, 500usize..1100], 1..4),
        kind in 0usize..3,
        dropout in prop_oneof![Just(0.0), Just(0.4)],
        seed in 0u64..99,
    ) {
        let case = match kind {
            0 => Case::new(&keys, &keys, false, dropout, seed),
            1 => Case::new(&vec![5; keys.len()], &keys, true, dropout, seed),
            _ => Case::new(&keys, &vec![5; keys.len()], false, dropout, seed),
        };
        let expected = case.plain();
        assert_close("f64", &case.run::<f64>(&case.q, &case.kv).0, &expected, 1e-13);
        assert_close("f32", &case.run::<f32>(&case.q, &case.kv).0, &expected, 1e-5);
    }
}

#[test]
fn gradients() {
    for (queries, keys, shared) in [
        (&[1, 3, 70][..], &[1, 3, 70][..], false),
        (&[3], &[700], false),
        (&[2, 2, 2], &[1, 4, 3], true),
        (&[1, 4, 3], &[2, 2, 2], false),
        // Keys that nobody asks, as those of a set without documents.
        (&[3, 0, 2], &[2, 2, 2], false),
        (&[0], &[2], false),
    ] {
        for dropout in [0.0, 0.4] {
            let case = Case::new(queries, keys, shared, dropout, 3);
            let d_out = normals(case.rows() * HIDDEN, 9);
            let (out, lse) = case.run::<f64>(&case.q, &case.kv);
            let (mut dq, dkv) = case.gradients(&d_out, &out, &lse);
            let (out, lse) = case.run::<f32>(&case.q, &case.kv);
            let in_f32 = case.gradients(&d_out, &out, &lse);
            assert_close("dq in f32", &in_f32.0, &dq, 1e-5);
            assert_close("dkv in f32", &in_f32.1, &dkv, 1e-5);
            if shared {
                let sets = dq.chunks(case.q.len()).map(<[f64]>::to_vec);
                dq = sets.reduce(|a, b| a.iter().zip(&b).map(|(a, b)| a + b).collect()).unwrap();
            }
            let few = 60.min(case.q.len());
            check("dq", &case.q[..few], &dq[..few], |q| {
                dot(&case.run::<f64>(&[q, &case.q[few..]].concat(), &case.kv).0, &d_out)
            });
            let few = 60.min(case.kv.len());
            check("dkv", &case.kv[..few], &dkv[..few], |kv| {
                dot(&case.run::<f64>(&case.q, &[kv, &case.kv[few..]].concat()).0, &d_out)
            });
        }
    }
}

#[test]
fn extreme_logits_stay_finite() {
    let mut case = Case::new(&[4], &[4], false, 0.0, 1);
    case.q.iter_mut().for_each(|q| *q *= 1e4);
    let (out, lse) = case.run::<f32>(&case.q, &case.kv);
    assert!(out.iter().chain(&lse).all(|value| value.is_finite()));
}
