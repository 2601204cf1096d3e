//! Memory that a batch needs on a GPU, before anything runs.
//!
//! With C hidden and G inner width, H heads, L blocks, an attention block keeps of each of its output rows, 2 bytes a value:
//! q (C), the heads' results (C), LayerNorm's output (C) and the network's (C); 4 bytes a value: H log-sum-exps and the
//! statistics of two LayerNorms (2 each); of each row that it attends to, k and v (2C). A document costs 2·(6·L·C + (L +
//! 1)·C + G) + 4·(L·(H + 4) + 1) bytes in an MSAB model that trains, G for the inner rows of one network; of an IMSAB model
//! the documents and the M inducing rows of each set are both. Backward adds, for all blocks together: two gradients of a
//! row (2C each), that of the inner rows (G), that of q, k and v (3C), H sums. Scoring keeps one block's buffers and two
//! rows; q of the inducing points, the same for all sets, every block has of its own, as it has in backward q's gradient.
//! Attention that is not fused (`--fuse none`) needs, once for all blocks, 10 bytes for each of H heads and each pair of a
//! query and a key, 6 where nothing is learned, the keys of a query padded to a multiple of 8: Σ n·n pairs over the sets of
//! an MSAB model, and of an IMSAB model M·(N + 7·B), or N times the padded M, whichever is more. Where an IMSAB model has up
//! to 32 inducing points and a set has more than 1024 documents, what its parts leave is at most C/2 bytes a document.
//! Gradients of parameters are left in parts before they are added up: of a block's layers mostly, or C + 1 values of each
//! set. Every buffer begins at a multiple of 256 bytes.

use half::bf16;

use super::batch::{DeviceBatch, Source};
use crate::config::{Encoder, Input, ModelConfig, OrdinalAt};
pub use crate::data::batch::Extent;
use crate::data::batch::{PAIR_UNIT, padded};
use crate::device::choice::Fusion;
use crate::device::{Arena, Limits};
use crate::model::setrank::Keep;
use crate::ops::attention::{Heads, Parts, Roles, ScratchLen};
use crate::ops::layer_norm::NormShape;
use crate::ops::linear::{LinearShape, WeightsPlan};
use crate::ops::rbf::RbfShape;
use crate::ops::score::score_scratch_len;
use crate::ops::score_loss::score_loss_scratch_len;

impl Extent {
    /// Inducing rows of all sets, B·M.
    pub fn points(self, config: &ModelConfig) -> usize {
        self.sets * config.num_inducing
    }

    /// Pairs of a query and a key of a head, at most: those of documents of a set, or of its documents and its M points, which
    /// ask and are asked.
    pub(super) fn head_pairs(self, config: &ModelConfig) -> usize {
        match config.encoder {
            Encoder::Msab => self.pairs,
            Encoder::Imsab => {
                let induce = config.num_inducing * (self.documents + (PAIR_UNIT - 1) * self.sets);
                induce.max(self.documents * padded(config.num_inducing))
            }
        }
    }

    /// Documents or inducing rows, whichever are more.
    pub(super) fn most_rows(self, config: &ModelConfig) -> usize {
        match config.encoder {
            Encoder::Msab => self.documents,
            Encoder::Imsab => self.documents.max(self.points(config)),
        }
    }
}

/// Lists of lengths of buffers, by type.
#[derive(Debug, Default)]
struct Lens {
    bf16: Vec<usize>,
    f32: Vec<usize>,
}

impl Lens {
    fn bytes(&self) -> usize {
        let of = |lens: &[usize], size: usize| Arena::bytes_for(lens.iter().map(|len| len * size));
        of(&self.bf16, size_of::<bf16>()) + of(&self.f32, size_of::<f32>())
    }

    /// A network and its input.
    fn network(&mut self, config: &ModelConfig, rows: usize) {
        let c = config.hidden_size;
        self.bf16.extend([rows * c, rows * c]);
        self.f32.push(rows * 2);
    }

    /// An attention block of `rows` output rows; `projected` rows of C values are q, k and v.
    fn mab(&mut self, config: &ModelConfig, rows: usize, projected: &[usize], ffn: bool) {
        let c = config.hidden_size;
        self.bf16.extend(projected.iter().map(|rows| rows * c));
        self.bf16.push(rows * c);
        self.f32.extend([rows * config.num_heads, rows * 2]);
        if ffn {
            self.network(config, rows);
        }
    }
}

/// Whether ordinal embeddings are added to the input layer's output.
pub(super) fn adds_ordinals(config: &ModelConfig) -> bool {
    config.ordinal.is_some_and(|ordinal| ordinal.at == OrdinalAt::Input || config.num_blocks > 0)
}

/// Blocks whose buffers are kept, and rows between blocks.
pub(super) fn kept(config: &ModelConfig, keep: Keep) -> (usize, usize) {
    match keep {
        Keep::Nothing => (config.num_blocks.min(1), 2),
        Keep::ForBackward => (config.num_blocks, config.num_blocks + 1),
    }
}

/// Blocks whose inducing points' q are computed at once, and kept, as in backward the gradients of these are.
pub(super) fn point_queries(config: &ModelConfig) -> usize {
    if config.encoder == Encoder::Imsab { config.num_blocks } else { 0 }
}

/// Bytes of a step on a batch, the batch itself included; what stays from step to step is not. `features` is where its
/// features come from.
pub fn step(config: &ModelConfig, extent: Extent, limits: &Limits, features: Source) -> usize {
    DeviceBatch::bytes(config, extent, Keep::ForBackward, features, limits)
        + activations(config, extent, Keep::ForBackward, limits)
        + scratch(config, extent, limits)
        + losses(extent)
}

/// Bytes of [`Losses`](super::Losses).
pub fn losses(extent: Extent) -> usize {
    Arena::bytes_for([extent.sets, extent.documents].map(|len| len * size_of::<f32>()))
}

/// Bytes of scoring a batch, the batch itself included.
pub fn scoring(config: &ModelConfig, extent: Extent, limits: &Limits) -> usize {
    DeviceBatch::bytes(config, extent, Keep::Nothing, Source::Batch, limits)
        + activations(config, extent, Keep::Nothing, limits)
}

/// Bytes of [`Activations`](super::Activations).
pub fn activations(config: &ModelConfig, extent: Extent, keep: Keep, limits: &Limits) -> usize {
    let (n, c) = (extent.documents, config.hidden_size);
    let (blocks, rows) = kept(config, keep);
    let mut lens = Lens { f32: vec![n], bf16: vec![n * c; rows] };
    lens.bf16.push(inner(config, extent, keep));
    match config.input {
        Input::Linear if keep == Keep::ForBackward && adds_ordinals(config) => lens.bf16.push(n * c),
        Input::Linear => {}
        Input::Rbf => {
            lens.bf16.extend([n * 4 * c, n * 4 * c, n * c]);
            lens.f32.extend([n * 2, n * 2]);
        }
    }
    lens.bf16.extend(vec![config.num_inducing * c; point_queries(config)]);
    for _ in 0..blocks {
        match config.encoder {
            Encoder::Msab => lens.mab(config, n, &[3 * n], true),
            Encoder::Imsab => {
                let points = extent.points(config);
                // k and v of the former attention and q of the latter stand together.
                lens.mab(config, points, &[3 * n], config.inner_ffn);
                lens.bf16.push(points * c);
                // A network that stands outside is behind it too.
                lens.mab(config, n, &[2 * points], true);
            }
        }
    }
    lens.bytes() + attention(config, extent, limits).bytes(keep == Keep::ForBackward)
}

/// The scratch of attention, at most.
pub(super) fn attention(config: &ModelConfig, extent: Extent, limits: &Limits) -> ScratchLen {
    if config.num_blocks == 0 {
        return ScratchLen::default();
    }
    if limits.fuse == Fusion::None {
        let pairs = config.num_heads.saturating_mul(extent.head_pairs(config));
        return ScratchLen { pairs, ..ScratchLen::default() };
    }
    let roles = match config.encoder {
        Encoder::Msab => Roles::Documents,
        Encoder::Imsab => Roles::Induce { points: config.num_inducing },
    };
    let heads = Heads { count: config.num_heads, width: config.head_size() };
    let partials = Parts::numbers_bound(roles, extent.documents, extent.longest, heads, limits.fuse);
    ScratchLen { partials, ..ScratchLen::default() }
}

/// Bytes of [`Scratch`](super::Scratch).
pub fn scratch(config: &ModelConfig, extent: Extent, limits: &Limits) -> usize {
    let (n, c) = (extent.documents, config.hidden_size);
    let most = extent.most_rows(config);
    let mut lens = Lens {
        bf16: vec![n * c, n * c, d_hidden(config, extent), 3 * n * c],
        f32: vec![most * config.num_heads, sums(config, extent, limits)],
    };
    if config.encoder == Encoder::Imsab {
        let points = extent.points(config) * c;
        lens.bf16.extend([points, points, 3 * points]);
        lens.bf16.extend(vec![config.num_inducing * c; point_queries(config)]);
    }
    lens.bytes()
}

/// Values of the inner rows of a network.
pub(super) fn inner(config: &ModelConfig, extent: Extent, keep: Keep) -> usize {
    // Backward has those of both networks of a block at once.
    let both = keep == Keep::ForBackward && config.encoder == Encoder::Imsab && config.inner_ffn;
    let rows = if both { extent.documents + extent.points(config) } else { extent.most_rows(config) };
    rows * config.ffn_size
}

/// Values of the gradient of inner rows.
pub(super) fn d_hidden(config: &ModelConfig, extent: Extent) -> usize {
    let network = inner(config, extent, Keep::ForBackward);
    match config.input {
        Input::Linear => network,
        Input::Rbf => network.max(4 * extent.documents * config.hidden_size),
    }
}

/// Values of the parts of parameters' gradients that are added up at once: of a block of documents, and wherever one kernel
/// leaves more.
pub(super) fn sums(config: &ModelConfig, extent: Extent, limits: &Limits) -> usize {
    let (n, c, g) = (extent.documents, config.hidden_size, config.ffn_size);
    let points = extent.points(config);
    let of = |rows, inputs, outputs| LinearShape { rows, inputs, outputs };
    let linear = |rows, inputs, outputs| WeightsPlan::scratch_len_of(&[of(rows, inputs, outputs)]);
    let norm = |rows, width| NormShape { rows, width }.scratch_len(limits);
    // Of a block's LayerNorms, two where there is a network and one where there is none, and of all its layers.
    let block = |networks: &[(usize, bool)], projections: &[LinearShape]| {
        let norms: usize = networks.iter().map(|&(rows, ffn)| (1 + usize::from(ffn)) * norm(rows, c)).sum();
        let of_networks = networks.iter().filter(|(_, ffn)| *ffn);
        let mut layers: Vec<LinearShape> =
            of_networks.flat_map(|&(rows, _)| [of(rows, g, c), of(rows, c, g)]).collect();
        layers.extend(projections);
        norms + WeightsPlan::scratch_len_of(&layers)
    };
    let mut all = vec![score_scratch_len(n, c)];
    if limits.fuse == Fusion::All {
        all.push(score_loss_scratch_len(extent.sets, c));
    }
    match config.encoder {
        Encoder::Msab => all.push(block(&[(n, true)], &[of(n, c, 3 * c)])),
        Encoder::Imsab => {
            let projections = [of(points, c, 2 * c), of(config.num_inducing, c, c), of(n, c, 3 * c)];
            all.push(block(&[(n, true), (points, config.inner_ffn)], &projections));
        }
    }
    match config.input {
        Input::Linear => all.push(linear(n, input_width(config), c)),
        Input::Rbf => all.extend([rbf(config, n).scratch_len(limits), norm(n, 4 * c), linear(n, 4 * c, c)]),
    }
    all.into_iter().max().unwrap_or(0)
}

/// Columns of the features as kernels read them.
pub(super) fn input_width(config: &ModelConfig) -> usize {
    config.input_size().next_multiple_of(super::limits::WIDTH)
}

/// The rbf input of `rows` documents.
pub(super) fn rbf(config: &ModelConfig, rows: usize) -> RbfShape {
    RbfShape {
        rows,
        features: config.input_size(),
        stride: input_width(config),
        centers: config.rbf_centers,
        outputs: 4 * config.hidden_size,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::attention::AttentionPlan;

    #[test]
    fn pairs_are_at_most_what_is_counted() {
        let limits = Limits { fuse: Fusion::None, ..Limits::SM_90 };
        for sizes in [&[1, 7, 33, 2][..], &[1; 9], &[8, 300], &[]] {
            let extent = Extent::of_sizes(sizes.iter().copied());
            let mut offsets = vec![0];
            offsets.extend(sizes.iter().scan(0, |end, size| {
                *end += size;
                Some(*end)
            }));
            for points in [1, 5, 20, 128] {
                for (encoder, roles) in [
                    (Encoder::Msab, Roles::Documents),
                    (Encoder::Imsab, Roles::Induce { points }),
                    (Encoder::Imsab, Roles::Attend { points }),
                ] {
                    let config = ModelConfig { encoder, num_inducing: points, ..ModelConfig::default() };
                    let heads = Heads { count: 2, width: 32 };
                    let plan = AttentionPlan::new(roles, &offsets, heads, &limits).unwrap().naive.unwrap();
                    assert!(plan.head_pairs <= extent.head_pairs(&config), "{sizes:?}, {roles:?}");
                }
            }
        }
    }
}
