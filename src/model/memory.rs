//! Memory that a batch needs: the sizes of the buffers of [`Workspace`](super::Workspace) as a formula.
//!
//! With C hidden and G inner width, H heads, L blocks, 4 bytes a value, a document keeps 7C + G + H + 2 values in a
//! block while it trains: q, k, v, the heads' outputs and log-sum-exps, the normalised rows of both LayerNorms, the
//! input of the network and its hidden rows; beside that the input of each block and the output of the last (C
//! each), what the input layer keeps (C), and within a call the gradients of q, k, v (3C) and of a block's output
//! (C). Scoring keeps 4C of one block at a time, and two times C. Of an IMSAB each set has M inducing points more.
//! What does not grow with the batch comes on top: one chunk's hidden gradients and tiles of each thread, bounded by [`fixed`],
//! and the weights that a call packs, by [`packed_anew`]; those that are packed once are as many as the parameters, about.

use super::setrank::Keep;
use crate::config::{Encoder, Input, ModelConfig};
use crate::ops::rows::{CHUNK, TILE};

/// Bytes of a value of the f32 path.
const VALUE: usize = size_of::<f32>();

/// Bytes of a batch's buffers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Activations {
    /// Bytes that each document needs.
    pub per_document: usize,
    /// Bytes that each set needs beyond those of its documents.
    pub per_set: usize,
    /// Bytes that each batch needs: q of the inducing points, which all sets share.
    pub per_batch: usize,
}

impl Activations {
    /// The buffers of a forward pass of the model of `config`, and of backward where `keep` says that it follows.
    pub fn new(config: &ModelConfig, keep: Keep) -> Self {
        let [c, g, heads, blocks] =
            [config.hidden_size, config.ffn_size, config.num_heads, config.num_blocks];
        let train = keep == Keep::ForBackward;
        let input = match (config.input, train) {
            // Where ReLU cut.
            (Input::Linear, true) => c,
            (Input::Linear, false) => 0,
            // ReLU's output of 4C, its normalised rows, γ and β on them, and the second LayerNorm's rows.
            (Input::Rbf, _) => 3 * 4 * c + c + 2,
        };
        let input_gradients = if train && config.input == Input::Rbf { 4 * c } else { 0 };
        let outer_ffn = config.encoder == Encoder::Imsab && !config.inner_ffn;
        let (document, point) = match (train, outer_ffn) {
            (true, false) => (7 * c + g + heads + 2, 7 * c + g + heads + 2),
            // The first norm's output is its own buffer, and the points have no network.
            (true, true) => (7 * c + g + heads + 2, 5 * c + heads + 1),
            (false, false) => (4 * c, 4 * c),
            (false, true) => (5 * c, 4 * c),
        };
        // A score each; the inputs of all blocks and the last's output, or two rows in turn.
        let rows = 1 + if train { (blocks + 1) * c } else { 2 * c };
        let kept = if train { blocks } else { blocks.min(1) };
        let gradients = if train { 3 * c + c } else { 0 };
        let points = match config.encoder {
            Encoder::Msab => 0,
            Encoder::Imsab => config.num_inducing,
        };
        let point_gradients = if train { c } else { 0 };
        Activations {
            per_document: VALUE * (input + input_gradients + kept * document + rows + gradients),
            per_set: VALUE * points * (kept * point + point_gradients),
            per_batch: VALUE * points * kept * c,
        }
    }

    /// Bytes of a batch.
    pub fn of_batch(&self, documents: usize, sets: usize) -> usize {
        let documents = self.per_document.saturating_mul(documents);
        documents.saturating_add(self.per_set.saturating_mul(sets)).saturating_add(self.per_batch)
    }
}

/// Bytes of packed weights, at most, where each call packs those that it takes, two layers at a time.
pub fn packed_anew(config: &ModelConfig) -> usize {
    let [c, g, f] = [config.hidden_size, config.ffn_size, config.input_size()];
    // A panel's missing columns are filled up.
    let packed = |k: usize, n: usize| k * n.next_multiple_of(32);
    // A layer's weight, for forward or for backward.
    let either = |k: usize, n: usize| packed(k, n).max(packed(n, k));
    let input = match config.input {
        Input::Linear => packed(f, c),
        Input::Rbf => packed(f * config.rbf_centers, 4 * c).max(either(4 * c, c)),
    };
    VALUE * (either(c, 3 * c).max(either(c, g)).max(input) + either(c, g))
}

/// Bytes beside the batch's and packed weights, at most, on `threads` threads, for sets of at most `largest` documents.
pub fn fixed(config: &ModelConfig, threads: usize, largest: usize) -> usize {
    let [c, g] = [config.hidden_size, config.ffn_size];
    let sums = 2 * 2 * 4 * c * CHUNK.div_ceil(TILE);
    let chunk = CHUNK * (g + c) + sums + config.num_inducing * c * (6 + 3 * config.num_blocks);
    let network = TILE * (g + c);
    // Blocks of weight gradients, and the packed rows that they are made of.
    let gradients = 2 * 256 * 264 + 3 * 256 * 4 * c;
    let width = (c / config.num_heads).next_multiple_of(32);
    let keys = largest.max(config.num_inducing).min(512).next_multiple_of(32) + 16;
    let attention = 3 * keys * width + 3 * 48 * keys + 2 * 48 * width + 4 * largest;
    VALUE * (chunk + threads * network.max(gradients).max(attention))
}
