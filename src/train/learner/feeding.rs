//! How features of training data come to a GPU.

use std::fmt;

use crate::device::Bytes;

/// Where the features of batches come from, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feeding {
    /// All were uploaded once; each batch gathers its own on the GPU.
    Resident {
        /// Bytes that they take there.
        bytes: usize,
    },
    /// Each batch's are uploaded with it: all of them would be too much beside the largest batch.
    Streamed {
        /// Bytes of all features.
        features: usize,
        /// Bytes of the largest batch.
        batch: usize,
        /// Bytes that were free beside parameters, gradients and moments.
        free: usize,
    },
    /// Each batch's are uploaded with it: they are never the same twice.
    Noisy,
}

impl Feeding {
    /// What the features take, where all of them and the largest batch leave at least a tenth of the `free` memory to
    /// others, such as the driver and the kernels' code.
    pub fn of_constant(features: usize, batch: usize, free: usize) -> Self {
        if features.saturating_add(batch) <= free / 10 * 9 {
            return Feeding::Resident { bytes: features };
        }
        Feeding::Streamed { features, batch, free }
    }
}

impl fmt::Display for Feeding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Feeding::Resident { bytes } => write!(f, "features: {} resident on the GPU", Bytes(bytes)),
            Feeding::Streamed { features, batch, free } => write!(
                f,
                "features: streamed to the GPU batch by batch; all would need {} beside {} of the largest batch, and \
                 nine tenths of {} are free for both",
                Bytes(features),
                Bytes(batch),
                Bytes(free)
            ),
            Feeding::Noisy => {
                write!(f, "features: streamed to the GPU batch by batch, as --noise changes them every time")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_is_left_to_others() {
        let of =
            |features: usize, batch: usize| Feeding::of_constant(features << 20, batch << 20, 1000 << 20);
        assert_eq!(of(500, 400), Feeding::Resident { bytes: 500 << 20 });
        assert_eq!(of(500, 400).to_string(), "features: 500.0 MiB resident on the GPU");
        let streamed = of(500, 401).to_string();
        for part in ["streamed", "all would need 500.0 MiB beside 401.0 MiB", "of 1000.0 MiB are free"] {
            assert!(streamed.contains(part), "{streamed}");
        }
        assert!(matches!(Feeding::of_constant(usize::MAX, usize::MAX, usize::MAX), Feeding::Streamed { .. }));
    }
}
