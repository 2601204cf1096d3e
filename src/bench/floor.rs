//! The least time that a step can take on a GPU whose caches are small against the batch, kernel by kernel.
//!
//! Of the design with attention that keeps no matrix of weights, and with the network, the LayerNorms around it and the next
//! block's projections in one kernel, in backward the gradient by way of these, whose inner rows are computed again. A kernel
//! takes at least the largest of operations ÷ P, bytes ÷ BW and exponentials ÷ E, and a step the sum over its kernels. With d = C
//! hidden and f = G inner width, g = f/d, u = 2d bytes (a row of bf16), h heads, sets of n documents, a document costs in each of
//! the L blocks
//!
//! | | kernel | operations | bytes | exponentials |
//! |---|---|---|---|---|
//! | forward | attention | a | 4u + 4h | e |
//! | | norm, network, norm, next q, k, v | w + p | 7u, scoring 6u | |
//! | backward | gradient of the input of q, k, v, norms and gradient of the network's input | 1.5w + p | (10 + 2g)u | |
//! | | gradients of the network's weights | w | (2 + 2g)u | |
//! | | attention | 2.5a | 8u + 4h | e |
//! | | gradients of the weights of q, k, v | p | 4u | |
//!
//! | | p | w | a | e |
//! |---|---|---|---|---|
//! | MSAB | 6d² | 4df | 4nd | hn |
//! | IMSAB | 6d² + 4d²·M/n | 4df·(1 + M/n) | 8Md | 2hM |
//!
//! and once the input layer of F features: 2Fd operations and 2F + u bytes forward, as many operations and 2F + 4u bytes backward;
//! or, with K centres a feature, where r = 8FKd operations, o = FK exponentials and v = 8d²:
//!
//! | | kernel | operations | bytes | exponentials |
//! |---|---|---|---|---|
//! | forward | activations, first layer | r | 2F + 4u | o |
//! | | norm | | 8u | |
//! | | second layer, norm | v | 5u | |
//! | backward | norm and gradient of the second layer's input | v | 7u | |
//! | | gradients of its weights | v | 5u | |
//! | | norm | | 12u | |
//! | | gradients of the first layer's weights | r | 2F + 4u | o |
//! | | gradients of the centres | r | 2F + 4u | o |
//!
//! Left out, as it is small beside a large batch: weights, Adam, losses, and the rows of inducing points.

use crate::config::{Encoder, Input, ModelConfig};

use super::plan::Mode;

/// What a GPU does at most in a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// P: operations of products of bf16 matrices.
    pub operations: f64,
    /// BW: bytes read from and written to its memory.
    pub bytes: f64,
    /// E: exponentials.
    pub exponentials: f64,
}

/// What one kernel costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Cost {
    operations: f64,
    bytes: f64,
    exponentials: f64,
}

impl Cost {
    /// Of a kernel without exponentials.
    fn of(operations: f64, bytes: f64) -> Self {
        Cost { operations, bytes, exponentials: 0.0 }
    }

    fn seconds(self, rates: Rates) -> f64 {
        let Cost { operations, bytes, exponentials } = self;
        (operations / rates.operations).max(bytes / rates.bytes).max(exponentials / rates.exponentials)
    }
}

/// Seconds that a step of the model of `config` on sets of these `sizes` `[B]` takes at least.
pub fn seconds(config: &ModelConfig, mode: Mode, sizes: &[usize], rates: Rates) -> f64 {
    let documents: f64 = sizes.iter().map(|&n| n as f64).sum();
    let blocks: f64 = block(config, mode, sizes, documents).iter().map(|cost| cost.seconds(rates)).sum();
    let input: f64 = input(config, mode).iter().map(|cost| cost.seconds(rates)).sum();
    documents * (config.num_blocks as f64 * blocks + input)
}

/// A document's costs in the input layer.
fn input(config: &ModelConfig, mode: Mode) -> Vec<Cost> {
    let (features, d) = (config.input_size() as f64, config.hidden_size as f64);
    let row = 2.0 * d;
    let read = 2.0 * features;
    let (forward, backward) = match config.input {
        Input::Linear => {
            let of = |rows: f64| Cost::of(2.0 * features * d, read + rows * row);
            (vec![of(1.0)], vec![of(4.0)])
        }
        Input::Rbf => {
            let exponentials = features * config.rbf_centers as f64;
            let first = Cost { exponentials, ..Cost::of(8.0 * exponentials * d, read + 4.0 * row) };
            let second = |rows: f64| Cost::of(8.0 * d * d, rows * row);
            let norm = |rows: f64| Cost::of(0.0, rows * row);
            (vec![first, norm(8.0), second(5.0)], vec![second(7.0), second(5.0), norm(12.0), first, first])
        }
    };
    match mode {
        Mode::Infer => forward,
        Mode::Train => [forward, backward].concat(),
    }
}

/// A document's costs in a block, in the mean over the documents.
fn block(config: &ModelConfig, mode: Mode, sizes: &[usize], documents: f64) -> Vec<Cost> {
    let [d, f, heads, points] = [config.hidden_size, config.ffn_size, config.num_heads, config.num_inducing]
        .map(|width| width as f64);
    let (g, u) = (f / d, 2.0 * d);
    let squares: f64 = sizes.iter().map(|&n| (n as f64).powi(2)).sum();
    // The documents that a document attends to, and the inducing points that it has to itself.
    let (seen, share) = (squares / documents, points * sizes.len() as f64 / documents);
    let (projections, network, attention, exponentials) = match config.encoder {
        Encoder::Msab => (6.0 * d * d, 4.0 * d * f, 4.0 * seen * d, heads * seen),
        Encoder::Imsab => (
            6.0 * d * d + 4.0 * d * d * share,
            4.0 * d * f * (1.0 + if config.inner_ffn { share } else { 0.0 }),
            8.0 * points * d,
            2.0 * heads * points,
        ),
    };
    let kept = if mode == Mode::Train { 1.0 } else { 0.0 };
    let mut costs = vec![
        Cost { exponentials, ..Cost::of(attention, 4.0 * u + 4.0 * heads) },
        Cost::of(network + projections, (6.0 + kept) * u),
    ];
    if mode == Mode::Train {
        costs.extend([
            Cost::of(1.5 * network + projections, (10.0 + 2.0 * g) * u),
            Cost::of(network, (2.0 + 2.0 * g) * u),
            Cost { exponentials, ..Cost::of(2.5 * attention, 8.0 * u + 4.0 * heads) },
            Cost::of(projections, 4.0 * u),
        ]);
    }
    costs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures of an H100: a large product, a large copy, and 16 exponentials a clock and multiprocessor.
    const H100: Rates = Rates { operations: 798e12, bytes: 3.0e12, exponentials: 3.6e12 };

    fn full(encoder: Encoder) -> ModelConfig {
        ModelConfig { num_features: 220, encoder, ..ModelConfig::default() }
    }

    /// Million documents a second.
    fn rate(config: &ModelConfig, mode: Mode, n: usize, rates: Rates) -> f64 {
        let sizes = [n; 3];
        (3 * n) as f64 / seconds(config, mode, &sizes, rates) / 1e6
    }

    #[test]
    fn floors_of_the_full_size() {
        let msab = full(Encoder::Msab);
        let slower = Rates { operations: 0.65 * H100.operations, ..H100 };
        for (n, rates, expected) in
            [(360, H100, 17.3), (40, H100, 17.5), (360, slower, 13.8), (40, slower, 14.4)]
        {
            let found = rate(&msab, Mode::Train, n, rates);
            assert!((found - expected).abs() < 0.05, "{n}: {found} instead of {expected}");
        }
    }

    #[test]
    fn arithmetic_and_bytes_alone() {
        let msab = full(Encoder::Msab);
        let unbounded =
            Rates { operations: f64::INFINITY, bytes: f64::INFINITY, exponentials: f64::INFINITY };
        let arithmetic = rate(&msab, Mode::Train, 360, Rates { operations: H100.operations, ..unbounded });
        assert!((arithmetic - 21.5).abs() < 0.05, "{arithmetic}");
        // (35 + 4g)u and log-sum-exps twice in each block, and 4F + 5u.
        let bytes = 6.0 * (51.0 * 512.0 + 64.0) + 4.0 * 220.0 + 5.0 * 512.0;
        let found = rate(&msab, Mode::Train, 40, Rates { bytes: H100.bytes, ..unbounded });
        assert!((found * bytes * 1e6 / H100.bytes - 1.0).abs() < 1e-9, "{found}");
        let forward = 6.0 * (10.0 * 512.0 + 32.0) + 2.0 * 220.0 + 512.0;
        let found = rate(&msab, Mode::Infer, 40, Rates { bytes: H100.bytes, ..unbounded });
        assert!((found * forward * 1e6 / H100.bytes - 1.0).abs() < 1e-9, "{found}");
        let exponentials = rate(&msab, Mode::Infer, 40, Rates { exponentials: 3.6e12, ..unbounded });
        assert!((exponentials * 1e6 * (6.0 * 8.0 * 40.0) / 3.6e12 - 1.0).abs() < 1e-9, "{exponentials}");
    }

    /// The operations of the table are those that are counted elsewhere, but for the score and, with inducing points, their
    /// own queries, and attention's backward pass, which computes its weights a second time.
    #[test]
    fn the_table_has_all_operations() {
        let rates = Rates { operations: 1.0, bytes: f64::INFINITY, exponentials: f64::INFINITY };
        let sizes = [3, 40, 7];
        let documents: f64 = 50.0;
        let linear = [Encoder::Msab, Encoder::Imsab].map(full);
        let rbf = ModelConfig { input: Input::Rbf, ..full(Encoder::Msab) };
        for config in linear.into_iter().chain([rbf]) {
            let forward = crate::model::flops::of_batch(&config, &sizes).forward;
            let [d, blocks, points] =
                [config.hidden_size, config.num_blocks, config.num_inducing].map(|value| value as f64);
            let queries = if config.encoder == Encoder::Imsab { blocks * 2.0 * points * d * d } else { 0.0 };
            let expected = forward - documents * 2.0 * d - queries;
            let found = seconds(&config, Mode::Infer, &sizes, rates);
            assert!((found / expected - 1.0).abs() < 1e-9, "{config:?}: {found} instead of {expected}");
        }
    }

    #[test]
    fn a_smaller_rate_is_never_faster() {
        for encoder in [Encoder::Msab, Encoder::Imsab] {
            for mode in [Mode::Train, Mode::Infer] {
                let of = |rates| rate(&full(encoder), mode, 100, rates);
                let all = of(H100);
                assert!(of(Rates { operations: 1e14, ..H100 }) < all);
                assert!(of(Rates { bytes: 1e12, ..H100 }) < all);
                assert!(of(Rates { exponentials: 1e10, ..H100 }) < all);
            }
        }
    }

    /// The centres learn: a step makes their activations three times.
    #[test]
    fn activations_of_the_rbf_input() {
        let config = ModelConfig { input: Input::Rbf, num_blocks: 0, ..full(Encoder::Msab) };
        let activations = 220.0 * 100.0;
        let unbounded =
            Rates { operations: f64::INFINITY, bytes: f64::INFINITY, exponentials: f64::INFINITY };
        let of = |mode, rates| seconds(&config, mode, &[5], rates) / 5.0;
        for (mode, times) in [(Mode::Infer, 1.0), (Mode::Train, 3.0)] {
            let exponentials = of(mode, Rates { exponentials: 1.0, ..unbounded });
            assert!((exponentials / (times * activations) - 1.0).abs() < 1e-9, "{exponentials}");
            let operations = of(mode, Rates { operations: 1.0, ..unbounded });
            let expected = times * (8.0 * activations * 256.0 + 8.0 * 256.0 * 256.0);
            assert!((operations / expected - 1.0).abs() < 1e-9, "{operations} instead of {expected}");
        }
        let bytes = of(Mode::Train, Rates { bytes: 1.0, ..unbounded });
        assert!((bytes - (6.0 * 220.0 + 49.0 * 512.0)).abs() < 1e-6, "{bytes}");
    }
}
