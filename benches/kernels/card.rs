//! The GPU that is measured, and the sizes of what it computes.

use std::env;

use setrank::device::choice::MatrixKernels;
use setrank::device::{DeviceError, Gpu, probe};
use setrank::ops::attention::Heads;

/// C, G, and the documents' features.
pub const HIDDEN: usize = 256;
pub const INNER: usize = 1024;
pub const FEATURES: usize = 220;
/// Features as kernels read them: filled up with zeros.
pub const FEATURE_COLUMNS: usize = 256;
pub const HEADS: Heads = Heads { count: 8, width: 32 };
/// Blocks, and inducing points of each.
pub const BLOCKS: usize = 6;
pub const POINTS: usize = 20;
/// Documents of a single query.
pub const QUERY: usize = 500;
/// Documents of a set.
pub const SIZES: [usize; 2] = [40, 384];

/// Documents for each multiprocessor, where nobody says how many there are: enough to fill the card many times over.
const DOCUMENTS: usize = 256;

const DEVICE_VARIABLE: &str = "SETRANK_BENCH_DEVICE";
const DOCUMENTS_VARIABLE: &str = "SETRANK_BENCH_DOCUMENTS";

/// A GPU with one kind of matrix instructions.
pub struct Card {
    pub gpu: Gpu,
    pub documents: usize,
    /// Bytes of the L2 cache.
    pub l2_bytes: usize,
}

impl Card {
    /// The GPU by each kind of matrix instructions that it has; none, which is said, where there is no GPU. What was asked for
    /// and is not there is an error.
    pub fn all() -> Result<Vec<Card>, String> {
        let [device, documents] = [number(DEVICE_VARIABLE)?, number(DOCUMENTS_VARIABLE)?];
        let found = match device {
            Some(ordinal) => probe::gpu(ordinal).map_err(|why| format!("{DEVICE_VARIABLE}: {why}"))?,
            None => match probe::first_usable() {
                Ok(found) => found,
                Err(why) => {
                    eprintln!("no kernel is measured, since there is no GPU: {why}");
                    return Ok(Vec::new());
                }
            },
        };
        let documents = documents.unwrap_or(DOCUMENTS * found.multiprocessors as usize);
        if documents == 0 {
            return Err(format!("{DOCUMENTS_VARIABLE} is 1 or more"));
        }
        let card = |gpu: Result<Gpu, DeviceError>| {
            let gpu = gpu?;
            Ok(Card { l2_bytes: gpu.l2_bytes()?, documents, gpu })
        };
        let mut cards = vec![card(Gpu::new(found.ordinal))];
        if found.check_wgmma().is_ok() {
            cards.push(card(Gpu::new(found.ordinal).and_then(Gpu::with_wgmma)));
        }
        cards.into_iter().collect::<Result<_, DeviceError>>().map_err(|error| error.to_string())
    }

    /// The name of a group of measurements: that of a family, and of its matrix instructions where they are not mma.
    pub fn group(&self, family: &str) -> String {
        match self.gpu.kernels().matrix {
            MatrixKernels::Mma => family.to_owned(),
            MatrixKernels::Wgmma => format!("{family}, wgmma"),
        }
    }

    /// Sets of this size that have all documents, at least one.
    pub fn sets(&self, size: usize) -> usize {
        (self.documents / size).max(1)
    }
}

/// Where each of so many sets of a size begins, and the last ends.
pub fn offsets(sets: usize, size: usize) -> Vec<usize> {
    (0..=sets).map(|set| set * size).collect()
}

fn number(variable: &str) -> Result<Option<usize>, String> {
    let Some(value) = env::var_os(variable) else { return Ok(None) };
    let number = value.to_str().and_then(|text| text.parse().ok());
    number.map(Some).ok_or_else(|| format!("{variable} is a number, not {value:?}"))
}
