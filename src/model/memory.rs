//! Memory that a batch needs, estimated from the sizes of the buffers of [`Workspace`](super::Workspace).
//!
//! With C hidden, G inner and F input width, H heads, L blocks, 4 bytes a value, a document keeps
//! 7C + G + H + 2 values in a block: q, k, v (or q, k and v of itself), the heads' outputs and log-sum-exps, the
//! normalised rows of both LayerNorms, the input of the network and its hidden rows. An inducing point keeps
//! 8C + G + H + 2 in each induced block and set. Training keeps the blocks of all L, and the input of each (C);
//! scoring keeps one and two.

use super::setrank::Keep;
use crate::config::{Encoder, Input, ModelConfig};

/// Bytes of a value of the f32 path.
const VALUE: usize = size_of::<f32>();

/// Bytes of a batch's buffers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Activations {
    /// Bytes that each document needs.
    pub per_document: f64,
    /// Bytes that each set needs beyond those of its documents.
    pub per_set: f64,
}

impl Activations {
    /// The buffers of a forward pass of the model of `config`, and of backward where `keep` says that it follows.
    pub fn new(config: &ModelConfig, keep: Keep) -> Self {
        let [c, g, heads, blocks] =
            [config.hidden_size, config.ffn_size, config.num_heads, config.num_blocks]
                .map(|size| size as f64);
        let input = match config.input {
            // The rows behind the ReLU.
            Input::Linear => c,
            // Hidden rows of 4C, their LayerNorm's, that one's output, and the second LayerNorm's.
            Input::Rbf => 3.0 * 4.0 * c + c + 2.0,
        };
        // Two norms' and attention's statistics.
        let row = 7.0 * c + g + heads + 2.0;
        let (kept, inputs_of_blocks, within_a_call) = match keep {
            // The output of the network before its residual.
            Keep::Nothing => (blocks.min(1.0), 2.0 * c, c),
            // The same, and gradients of the hidden rows, of q, k and v, of a block's input and of its output.
            Keep::ForBackward => {
                (blocks, (blocks + 1.0) * c, c + g + gradients_of_attention(config) + 2.0 * c)
            }
        };
        let per_document = input + kept * row + inputs_of_blocks + within_a_call + 1.0;
        let points = match config.encoder {
            Encoder::Msab => 0.0,
            Encoder::Imsab => config.num_inducing as f64,
        };
        let gradients_of_points = if keep == Keep::ForBackward { 2.0 * c } else { 0.0 };
        let per_set = points * (kept * (row + c) + gradients_of_points);
        Activations { per_document: VALUE as f64 * per_document, per_set: VALUE as f64 * per_set }
    }

    /// Bytes of a batch.
    pub fn of_batch(&self, documents: usize, sets: usize) -> f64 {
        self.per_document * documents as f64 + self.per_set * sets as f64
    }
}

/// Values a document of the gradients of q, k and v.
fn gradients_of_attention(config: &ModelConfig) -> f64 {
    let c = config.hidden_size as f64;
    match config.encoder {
        // q's stands alone first.
        Encoder::Msab => 4.0 * c,
        Encoder::Imsab => 3.0 * c,
    }
}
