//! The row-wise network of a block, and backward through the rows of a block: network and LayerNorm.

use super::layout::{FfnSlots, NormSlots};
use super::mab::{Pass, Scratch};
use super::packed::PackedWeights;
use super::setrank::Keep;
use crate::ops::Scalar;
use crate::ops::feed_forward::{self, TileGradients};
use crate::ops::gemm::Aligned;
use crate::ops::layer_norm::{self, Saved};
use crate::ops::linear::{self, WeightJob};
use crate::ops::rows::{CHUNK, RowsMut, TILE, TileSums, for_tiles, free_tile};

/// What a network's forward keeps for backward.
#[derive(Clone, Debug, Default)]
pub struct FfnActivations<T> {
    /// `[rows, G]`
    pub(super) hidden: Vec<T>,
    pub(super) norm: Saved<T>,
}

impl<T: Scalar> FfnActivations<T> {
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.hidden) + self.norm.bytes()
    }
}

impl FfnSlots {
    pub(super) fn pack_forward<'a, T: Scalar>(
        &self,
        pass: &Pass<'a, T>,
        packed: &'a mut PackedWeights,
    ) -> feed_forward::Forward<'a, T> {
        let (params, norm) = (pass.params, self.norm.of(pass.params, pass.eps));
        let packed = packed.forward([&self.fc1, &self.fc2], params);
        feed_forward::Forward::new(self.fc1.of(params), self.fc2.of(params), norm, packed)
    }

    fn pack_backward<'a, T: Scalar>(
        &self,
        pass: &Pass<'a, T>,
        buffers: &'a mut [Aligned; 2],
    ) -> feed_forward::Backward<'a, T> {
        let norm = self.norm.of(pass.params, pass.eps);
        feed_forward::Backward::new(self.fc1.of(pass.params), self.fc2.of(pass.params), norm, buffers)
    }
}

/// out `[rows, C]` = LayerNorm(x + fc2(ReLU(fc1(x)))), where the network stands outside the attention blocks.
pub fn forward<T: Scalar>(
    pass: &Pass<'_, T>,
    scratch: &mut Scratch<T>,
    out: &mut Vec<T>,
    saved: &mut FfnActivations<T>,
    slots: &FfnSlots,
    x: &[T],
) {
    let c = pass.heads.hidden();
    let rows = x.len() / c;
    scratch.threads.prepare();
    let network = slots.pack_forward(pass, &mut scratch.packed);
    let g = network.hidden_width();
    out.resize(rows * c, T::ZERO);
    let kept = (pass.keep == Keep::ForBackward).then(|| {
        saved.hidden.resize(rows * g, T::ZERO);
        (RowsMut::new(&mut saved.hidden, g), saved.norm.make_room(rows, c))
    });
    if kept.is_none() {
        scratch.threads.reserve::<T>(TILE * g);
    }
    for_tiles(0..rows, free_tile(rows), (RowsMut::new(out, c), kept), &|tile, (out, kept)| {
        let x = &x[tile.start * c..tile.end * c];
        match kept {
            Some((hidden, norm)) => network.tile(out.data, hidden.data, x, Some(norm)),
            None => scratch.threads.with(tile.len() * g, |hidden| network.tile(out.data, hidden, x, None)),
        }
    });
}

/// In place d `[rows, C]`: gradient of [`forward`]'s output → gradient of x; parameters' gradients are added to.
pub fn backward<T: Scalar>(
    pass: &Pass<'_, T>,
    scratch: &mut Scratch<T>,
    d: &mut [T],
    saved: &FfnActivations<T>,
    slots: &FfnSlots,
    gradients: &mut [T],
    x: &[T],
) {
    scratch.threads.prepare();
    rows_backward(pass, scratch, d, Some((slots, saved, x)), None, gradients);
}

/// In place d `[rows, C]`: backward through the network on `x`, if there is one, then through the LayerNorm before
/// it, if there is one.
pub fn rows_backward<T: Scalar>(
    pass: &Pass<'_, T>,
    scratch: &mut Scratch<T>,
    d: &mut [T],
    ffn: Option<(&FfnSlots, &FfnActivations<T>, &[T])>,
    norm: Option<(&NormSlots, &Saved<T>)>,
    gradients: &mut [T],
) {
    let c = pass.heads.hidden();
    let rows = d.len() / c;
    let chunk_rows = rows.min(CHUNK);
    let Scratch { packed, threads, d_hidden, d_output, sums, sums2, .. } = scratch;
    let network =
        ffn.map(|(slots, saved, x)| (slots.pack_backward(pass, &mut packed.places), slots, saved, x));
    let g = network.as_ref().map_or(0, |(network, ..)| network.hidden_width());
    d_hidden.resize(chunk_rows * g, T::ZERO);
    d_output.resize(if g > 0 { chunk_rows * c } else { 0 }, T::ZERO);
    let tiles = chunk_rows.div_ceil(TILE);
    sums.resize(tiles * 2 * c, T::ZERO);
    sums2.resize(tiles * 2 * c, T::ZERO);
    for first in (0..rows).step_by(CHUNK) {
        let chunk = first..(first + CHUNK).min(rows);
        let (count, tiles) = (chunk.len(), chunk.len().div_ceil(TILE));
        let sums_of = |sums| TileSums(RowsMut::new(sums, 2 * c));
        let of_network = network.is_some().then(|| {
            let hidden = RowsMut::new(&mut d_hidden[..count * g], g);
            let output = RowsMut::new(&mut d_output[..count * c], c);
            ((hidden, output), sums_of(&mut sums2[..tiles * 2 * c]))
        });
        let d = RowsMut::new(&mut d[chunk.start * c..chunk.end * c], c);
        let buffers = (d, (sums_of(&mut sums[..tiles * 2 * c]), of_network));
        for_tiles(chunk.clone(), TILE, buffers, &|tile, (d, (sums, of_network))| {
            if let (Some((network, _, saved, _)), Some(((hidden, output), sums))) = (&network, of_network) {
                let into = TileGradients { output: output.data, hidden: hidden.data, norm: sums.0.data };
                network.tile(d.data, into, &saved.norm, &saved.hidden, tile.start);
            }
            if let Some((slots, saved)) = norm {
                layer_norm::backward_tile(
                    d.data,
                    saved,
                    tile.start,
                    slots.of(pass.params, pass.eps),
                    sums.0.data,
                );
            }
        });
        if let Some((slots, _)) = norm {
            layer_norm::add_tile_sums(slots.of_mut(gradients), &sums[..tiles * 2 * c]);
        }
        if let Some((_, slots, saved, x)) = &network {
            layer_norm::add_tile_sums(slots.norm.of_mut(gradients), &sums2[..tiles * 2 * c]);
            let (fc1, fc2) = slots.layers_mut(gradients);
            let hidden = &saved.hidden[chunk.start * g..chunk.end * g];
            let jobs = [
                WeightJob { gradients: fc2, dy: &d_output[..count * c], x: hidden },
                WeightJob {
                    gradients: fc1,
                    dy: &d_hidden[..count * g],
                    x: &x[chunk.start * c..chunk.end * c],
                },
            ];
            linear::backward_weights(jobs, threads);
        }
    }
}
