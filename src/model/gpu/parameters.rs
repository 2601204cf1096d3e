//! A model's parameters on a GPU: flat arrays like the processor's, laid out for kernels.

use half::bf16;

use super::limits::WIDTH;
use crate::config::ModelConfig;
use crate::device::{Arena, Buffer, DeviceError};
use crate::model::ParamLayout;
use crate::model::layout::{LinearSlots, NormSlots, Slot};
use crate::ops::layer_norm::DeviceNorm;
use crate::ops::linear::DeviceLinear;

/// The table of parameters as the processor and checkpoints have it, and as kernels read it.
#[derive(Clone, Debug)]
pub struct Layouts {
    /// One parameter after the other.
    pub host: ParamLayout,
    /// Each at a multiple of 64 values; rows of the matrix that reads the features filled up with zeros; projections of the
    /// same rows one behind the other.
    pub device: ParamLayout,
}

impl Layouts {
    /// Both tables of the model of `config`.
    pub fn new(config: &ModelConfig) -> Self {
        Layouts { host: ParamLayout::new(config), device: ParamLayout::aligned(config, WIDTH) }
    }

    /// Values laid out as the processor has them → as the device has them; what is filled up is 0.
    pub fn to_device(&self, host: &[f32]) -> Vec<f32> {
        let mut device = vec![0.0; self.device.len()];
        self.for_rows(|from, to, len| device[to..to + len].copy_from_slice(&host[from..from + len]));
        device
    }

    /// Values laid out as the device has them → as the processor has them.
    pub fn to_host(&self, device: &[f32]) -> Vec<f32> {
        let mut host = vec![0.0; self.host.len()];
        self.for_rows(|to, from, len| host[to..to + len].copy_from_slice(&device[from..from + len]));
        host
    }

    /// Calls `each` with where a row stands on the host and on the device, and its length on the host.
    fn for_rows(&self, mut each: impl FnMut(usize, usize, usize)) {
        for (host, device) in self.host.parameters().iter().zip(self.device.parameters()) {
            let row = |shape: &[usize]| shape.last().copied().unwrap_or(0);
            let (len, stride) = (row(&host.shape), row(&device.shape));
            for number in 0..host.len() / len.max(1) {
                each(host.offset + number * len, device.offset + number * stride, len);
            }
        }
    }
}

/// Parameters in f32, and rounded to bf16 for products.
#[derive(Debug)]
pub struct Parameters {
    /// [`Layouts::device`]
    pub values: Buffer<f32>,
    /// The same, rounded.
    pub rounded: Buffer<bf16>,
}

/// A linear layer's part of the parameters.
#[derive(Debug)]
pub struct Layer {
    /// `[out, in]`
    pub weight: Buffer<bf16>,
    /// `[out]`
    pub bias: Buffer<f32>,
}

impl Layer {
    /// The layer.
    pub fn get(&self) -> DeviceLinear<'_> {
        DeviceLinear { weight: &self.weight, bias: &self.bias }
    }
}

/// A LayerNorm's part of the parameters.
#[derive(Debug)]
pub struct Norm {
    weight: Buffer<f32>,
    bias: Buffer<f32>,
    eps: f64,
}

impl Norm {
    /// The norm.
    pub fn get(&self) -> DeviceNorm<'_> {
        DeviceNorm { weight: &self.weight, bias: &self.bias, eps: self.eps }
    }
}

impl Parameters {
    /// Room for parameters laid out as `layout` says.
    pub fn new(arena: &mut Arena, layout: &ParamLayout) -> Result<Self, DeviceError> {
        Ok(Parameters { values: arena.take(layout.len())?, rounded: arena.take(layout.len())? })
    }

    /// Bytes that [`new`](Self::new) takes.
    pub fn bytes(layout: &ParamLayout) -> usize {
        Arena::bytes_for([size_of::<f32>(), size_of::<bf16>()].map(|bytes| bytes * layout.len()))
    }

    /// A linear layer.
    pub fn layer(&self, slots: &LinearSlots) -> Result<Layer, DeviceError> {
        let [weight, bias] = slots.ranges();
        Ok(Layer { weight: self.rounded.part(weight)?, bias: self.values.part(bias)? })
    }

    /// A LayerNorm.
    pub fn norm(&self, slots: &NormSlots, eps: f64) -> Result<Norm, DeviceError> {
        let [weight, bias] = slots.ranges();
        Ok(Norm { weight: self.values.part(weight)?, bias: self.values.part(bias)?, eps })
    }

    /// A parameter as a kernel multiplies it.
    pub fn rounded(&self, slot: &Slot) -> Result<Buffer<bf16>, DeviceError> {
        self.rounded.part(slot.range())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Encoder, Input};
    use crate::model::layout::BlockSlots;

    #[test]
    fn values_go_there_and_back() {
        for (encoder, input) in [(Encoder::Msab, Input::Linear), (Encoder::Imsab, Input::Rbf)] {
            let config = ModelConfig {
                num_features: 5,
                hidden_size: 64,
                num_heads: 2,
                num_blocks: 2,
                ffn_size: 64,
                num_inducing: 3,
                rbf_centers: 7,
                encoder,
                input,
                ..ModelConfig::default()
            };
            let layouts = Layouts::new(&config);
            let values: Vec<f32> = (1..=layouts.host.len()).map(|value| value as f32).collect();
            let device = layouts.to_device(&values);
            assert_eq!(layouts.to_host(&device), values);
            assert_eq!(device.iter().filter(|&&value| value != 0.0).count(), values.len());
            for (host, device_parameter) in layouts.host.parameters().iter().zip(layouts.device.parameters())
            {
                assert_eq!(host.name, device_parameter.name);
                assert!(device_parameter.offset.is_multiple_of(WIDTH));
                assert_eq!(device[device_parameter.offset], values[host.offset], "{}", host.name);
            }
        }
    }

    #[test]
    fn projections_of_the_same_rows_are_one_layer() {
        let config = ModelConfig {
            hidden_size: 64,
            num_heads: 2,
            ffn_size: 64,
            encoder: Encoder::Imsab,
            ..ModelConfig::default()
        };
        let Layouts { host, device } = Layouts::new(&config);
        let of = |layout: &ParamLayout| {
            let BlockSlots::Imsab { induce, attend, .. } = layout.blocks[1].clone() else {
                panic!("no IMSAB")
            };
            induce.projections.kv.joined(&attend.projections.q)
        };
        assert!(of(&host).is_none());
        let parameter = |name: &str| {
            let name = format!("blocks.1.{name}");
            device.parameters().iter().find(|parameter| parameter.name == name).unwrap().range()
        };
        for (which, range) in ["weight", "bias"].into_iter().zip(of(&device).unwrap().ranges()) {
            let parts = ["induce.attention.k", "induce.attention.v", "attend.attention.q"];
            let [k, v, q] = parts.map(|part| parameter(&format!("{part}.{which}")));
            assert_eq!((k.start, k.end, v.end, q.end), (range.start, v.start, q.start, range.end));
        }
    }

    #[test]
    fn rows_of_features_are_filled_up() {
        let config = ModelConfig { num_features: 5, hidden_size: 64, num_heads: 2, ..ModelConfig::default() };
        let layouts = Layouts::new(&config);
        let weight = |layout: &ParamLayout| layout.parameters()[0].shape.clone();
        assert_eq!((weight(&layouts.host), weight(&layouts.device)), (vec![64, 5], vec![64, 64]));
        let device = layouts.to_device(&vec![1.0; layouts.host.len()]);
        assert_eq!(device[..5], [1.0; 5]);
        assert_eq!(device[5..64], [0.0; 59]);
    }
}
