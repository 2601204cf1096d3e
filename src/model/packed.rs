//! Weights packed for the products of a forward pass.

use std::collections::BTreeMap;

use super::layout::LinearSlots;
use crate::ops::Scalar;
use crate::ops::gemm::{Aligned, Packed};

/// Places of packed weights: of two layers at a time, packed anew by each call; or, of parameters that stay as they are, of
/// all layers, each packed once.
#[derive(Clone, Debug, Default)]
pub struct PackedWeights {
    /// What a call packs is there until the next one does.
    pub places: [Aligned; 2],
    /// By where a layer's weight begins and ends among the parameters.
    kept: Option<BTreeMap<[usize; 2], Aligned>>,
}

impl PackedWeights {
    /// Those of parameters that are the same in every call.
    pub fn kept() -> Self {
        PackedWeights { kept: Some(BTreeMap::new()), ..Self::default() }
    }

    /// Wᵀ of one or two layers of `params`.
    pub fn forward<'a, T: Scalar, const N: usize>(
        &'a mut self,
        layers: [&LinearSlots; N],
        params: &[T],
    ) -> [Packed<'a, T>; N] {
        const { assert!(N <= 2) };
        let Some(kept) = &mut self.kept else {
            let mut places = self.places.iter_mut();
            return layers
                .map(|layer| layer.of(params).pack_forward(places.next().expect("a place for each")));
        };
        let key = |layer: &LinearSlots| {
            let [weight, _] = layer.ranges();
            [weight.start, weight.end]
        };
        for layer in layers {
            kept.entry(key(layer)).or_insert_with(|| {
                let mut place = Aligned::default();
                layer.of(params).pack_forward(&mut place);
                place
            });
        }
        layers.map(|layer| layer.of(params).packed_forward(&kept[&key(layer)]))
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.places.iter().chain(self.kept.iter().flat_map(BTreeMap::values)).map(Aligned::bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Encoder, Input, ModelConfig};
    use crate::data::normalize::{Kind, Normalize};
    use crate::model::layout::{Init, Parameter};
    use crate::model::setrank::{Inputs, Keep, SetRank, Workspace};

    fn configurations() -> Vec<ModelConfig> {
        let small = ModelConfig {
            num_features: 5,
            hidden_size: 16,
            num_heads: 2,
            num_blocks: 2,
            ffn_size: 24,
            num_inducing: 3,
            ..ModelConfig::default()
        };
        let of = |encoder, inner_ffn| ModelConfig { encoder, inner_ffn, ..small.clone() };
        let normalize = Normalize {
            kind: Kind::MinMax,
            center: vec![0.0; 5],
            scale: vec![1.0; 5],
            ..Normalize::default()
        };
        let rbf = ModelConfig { input: Input::Rbf, normalize, ..of(Encoder::Msab, true) };
        vec![of(Encoder::Msab, true), of(Encoder::Imsab, true), of(Encoder::Imsab, false), rbf]
    }

    #[test]
    fn weights_that_are_packed_once_give_the_same_bits() {
        for config in configurations() {
            let model = SetRank::new(config.clone()).unwrap();
            let parameters = model.layout().init(1);
            let mut once = Workspace::<f32>::of_same_parameters();
            let mut held = None;
            for (pass, offsets) in [vec![0, 3, 10], vec![0, 40], vec![0, 1, 2]].into_iter().enumerate() {
                let documents = *offsets.last().unwrap();
                let values = (0..documents * 5).map(|value| ((value * 7 + pass) % 11) as f32 / 11.0);
                let features: Vec<f32> = values.collect();
                let inputs = || Inputs { features: &features, offsets: &offsets, ordinals: &[] };
                let mut anew = Workspace::default();
                model.forward(&mut anew, &parameters, inputs(), Keep::Nothing, None);
                model.forward(&mut once, &parameters, inputs(), Keep::Nothing, None);
                assert_eq!(once.scores(), anew.scores(), "{config:?}, pass {pass}");
                // All layers are there after the first pass.
                let packed = once.packed_bytes();
                assert_eq!(*held.get_or_insert(packed), packed, "{config:?}, pass {pass}");
                // Then nothing is read of their weights.
                let mut spoiled = parameters.clone();
                let is_layer = |layer: &&Parameter| layer.init == Init::Glorot && layer.shape[0] > 1;
                for layer in model.layout().parameters().iter().filter(is_layer) {
                    spoiled[layer.range()].fill(f32::NAN);
                }
                model.forward(&mut once, &spoiled, inputs(), Keep::Nothing, None);
                assert_eq!(once.scores(), anew.scores(), "{config:?}, pass {pass}");
            }
        }
    }
}
