//! Arithmetic of a forward and of a training step: products of matrices only, a×b by b×c being 2abc operations.
//!
//! Counted over the sets as they are, without padding. Backward costs twice its forward, but the linear input
//! layer once, since the data need no gradient. (The rbf input costs twice: its centres are learned, so the
//! gradient of its activations is computed as well.) Numbers are exact below 2⁵³.

use crate::config::{Encoder, Input, ModelConfig};

/// Operations of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flops {
    /// Of scoring it.
    pub forward: f64,
    /// Of forward and backward.
    pub training: f64,
}

/// Operations of a batch of sets of these `sizes` `[B]` by the model of `config`.
pub fn of_batch(config: &ModelConfig, sizes: &[usize]) -> Flops {
    let documents: f64 = sizes.iter().map(|&n| n as f64).sum();
    let input = documents * input_layer(config);
    let backward_of_input = match config.input {
        Input::Linear => input,
        Input::Rbf => 2.0 * input,
    };
    let blocks = config.num_blocks as f64 * block(config, sizes, documents);
    let score = linear(documents, config.hidden_size, 1);
    let forward = input + blocks + score;
    Flops { forward, training: input + backward_of_input + 3.0 * (blocks + score) }
}

/// rows × inputs by inputs × outputs
fn linear(rows: f64, inputs: usize, outputs: usize) -> f64 {
    2.0 * rows * inputs as f64 * outputs as f64
}

/// The input layer's, a document.
fn input_layer(config: &ModelConfig) -> f64 {
    let (features, c) = (config.input_size(), config.hidden_size);
    match config.input {
        Input::Linear => linear(1.0, features, c),
        Input::Rbf => linear(config.rbf_centers as f64, features, 4 * c) + linear(1.0, 4 * c, c),
    }
}

/// One block's, of all sets.
fn block(config: &ModelConfig, sizes: &[usize], documents: f64) -> f64 {
    let c = config.hidden_size;
    // Logits and weighted values, of `queries` rows that ask `keys` rows.
    let attention = |queries: f64, keys: f64| 4.0 * queries * keys * c as f64;
    let ffn = |rows: f64| 2.0 * linear(rows, c, config.ffn_size);
    match config.encoder {
        Encoder::Msab => {
            let attentions: f64 = sizes.iter().map(|&n| attention(n as f64, n as f64)).sum();
            linear(documents, c, 3 * c) + attentions + ffn(documents)
        }
        Encoder::Imsab => {
            let points = config.num_inducing as f64;
            let induced = points * sizes.len() as f64;
            // The inducing points are projected to queries once for all sets.
            let induce = linear(points, c, c) + linear(documents, c, 2 * c) + attention(points, documents);
            let attend = linear(documents, c, c) + linear(induced, c, 2 * c) + attention(documents, points);
            let ffns = ffn(documents) + if config.inner_ffn { ffn(induced) } else { 0.0 };
            induce + attend + ffns
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiny(encoder: Encoder) -> ModelConfig {
        ModelConfig {
            num_features: 3,
            hidden_size: 4,
            num_heads: 2,
            num_blocks: 2,
            ffn_size: 5,
            num_inducing: 2,
            encoder,
            ..ModelConfig::default()
        }
    }

    #[test]
    fn a_small_msab_is_counted_by_hand() {
        // Sets of 1 and 3: 4 documents. Input 4·3·4 = 48 products; a block: q, k, v 4·4·12 = 192, logits
        // (1 + 9)·4 = 40, values 40, network 4·4·5·2 = 160: 432; score 4·4 = 16.
        let flops = of_batch(&tiny(Encoder::Msab), &[1, 3]);
        assert_eq!(flops.forward, 2.0 * (48.0 + 2.0 * 432.0 + 16.0));
        assert_eq!(flops.training, 2.0 * (2.0 * 48.0 + 3.0 * (2.0 * 432.0 + 16.0)));
    }

    #[test]
    fn a_small_imsab_is_counted_by_hand() {
        // Inducing: q 2·4·4 = 32, k and v 4·4·8 = 128, attention 2·(2·1 + 2·3)·4 = 64, network of 4 rows 160;
        // attending: q 4·4·4 = 64, k and v of 4 rows 128, attention 64, network 160.
        let config = tiny(Encoder::Imsab);
        let block = 32.0 + 128.0 + 64.0 + 160.0 + 64.0 + 128.0 + 64.0 + 160.0;
        assert_eq!(of_batch(&config, &[1, 3]).forward, 2.0 * (48.0 + 2.0 * block + 16.0));
        let authors = ModelConfig { inner_ffn: false, ..config };
        assert_eq!(of_batch(&authors, &[1, 3]).forward, 2.0 * (48.0 + 2.0 * (block - 160.0) + 16.0));
    }

    #[test]
    fn a_small_rbf_input_is_counted_by_hand() {
        // 4 documents, 3 features of 7 centres to 16, then 16 to 4: 4·(336 + 64) = 1600 products.
        let config = ModelConfig { num_blocks: 0, input: Input::Rbf, rbf_centers: 7, ..tiny(Encoder::Msab) };
        let flops = of_batch(&config, &[4]);
        assert_eq!(flops.forward, 2.0 * (1600.0 + 16.0));
        assert_eq!(flops.training, 3.0 * flops.forward);
    }

    #[test]
    fn the_full_model_costs_what_is_known_of_it() {
        let training = |encoder, n| {
            let config = ModelConfig { num_features: 220, encoder, ..ModelConfig::default() };
            let sizes = [n; 32];
            of_batch(&config, &sizes).training / (32 * n) as f64 / 1e6
        };
        for (encoder, n, expected) in [
            (Encoder::Msab, 40, 27.0),
            (Encoder::Msab, 500, 35.0),
            (Encoder::Imsab, 40, 39.0),
            (Encoder::Imsab, 500, 28.0),
        ] {
            let found = training(encoder, n);
            assert!((found - expected).abs() <= 0.5, "{encoder:?} of {n}: {found} MFLOP a document");
        }
        let rbf =
            ModelConfig { num_features: 201, input: Input::Rbf, num_blocks: 0, ..ModelConfig::default() };
        assert!((of_batch(&rbf, &[1]).forward / 1e6 - 42.0).abs() < 0.5);
    }
}
