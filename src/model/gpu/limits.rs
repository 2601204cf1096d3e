//! Which models the kernels compute.

use crate::config::ModelConfig;
use crate::device::DeviceError;
use crate::ops::sizes::MAX_WIDTH;

/// Widths are multiples of this many values: of a tile of products.
pub const WIDTH: usize = 64;

const MAX_HIDDEN: usize = 512;
const MAX_INDUCING: usize = 128;
const MAX_FEATURES: usize = 4096;
const MAX_CENTERS: usize = 1024;

/// Refuses a model that no kernel computes; says what would be possible.
pub fn check(config: &ModelConfig) -> Result<(), DeviceError> {
    let refuse = |what: String| {
        Err(DeviceError::Shapes(format!("the model cannot be computed on a GPU: {what}; use --device cpu")))
    };
    let ModelConfig { hidden_size, ffn_size, num_inducing, rbf_centers, .. } = *config;
    if !hidden_size.is_multiple_of(WIDTH) || hidden_size > MAX_HIDDEN {
        return refuse(format!(
            "hidden_size is {hidden_size}, and has to be a multiple of {WIDTH} up to {MAX_HIDDEN}"
        ));
    }
    if !matches!(config.head_size(), 32 | 64) {
        return refuse(format!(
            "a head is {} wide (hidden_size {hidden_size} / num_heads {}), and has to be 32 or 64",
            config.head_size(),
            config.num_heads
        ));
    }
    if !ffn_size.is_multiple_of(WIDTH) || ffn_size > MAX_WIDTH {
        return refuse(format!(
            "ffn_size is {ffn_size}, and has to be a multiple of {WIDTH} up to {MAX_WIDTH}"
        ));
    }
    for (name, value, most) in [
        ("num_inducing", num_inducing, MAX_INDUCING),
        ("the number of features, those made by normalisation included,", config.input_size(), MAX_FEATURES),
        ("rbf_centers", rbf_centers, MAX_CENTERS),
    ] {
        if value > most {
            return refuse(format!("{name} is {value}, and has to be {most} or less"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_kernel_computes_is_refused() {
        let config = ModelConfig { num_features: 220, ..ModelConfig::default() };
        check(&config).unwrap();
        check(&ModelConfig { ffn_size: 64 * 101, ..config.clone() }).unwrap();
        for (config, part) in [
            (ModelConfig { hidden_size: 96, num_heads: 3, ..config.clone() }, "hidden_size is 96"),
            (ModelConfig { hidden_size: 1024, num_heads: 16, ..config.clone() }, "multiple of 64 up to 512"),
            (
                ModelConfig { num_heads: 16, ..config.clone() },
                "a head is 16 wide (hidden_size 256 / num_heads 16)",
            ),
            (ModelConfig { ffn_size: 100, ..config.clone() }, "ffn_size is 100"),
            (ModelConfig { ffn_size: 1 << 21, ..config.clone() }, "multiple of 64 up to 1048576"),
            (ModelConfig { num_inducing: 129, ..config.clone() }, "num_inducing is 129"),
            (ModelConfig { num_features: 5000, ..config.clone() }, "has to be 4096 or less"),
        ] {
            let message = check(&config).unwrap_err().to_string();
            assert!(message.contains(part) && message.ends_with("use --device cpu"), "{message}");
        }
    }
}
