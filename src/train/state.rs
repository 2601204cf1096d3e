//! A run that can be taken up again: `state.safetensors` in the model folder holds the current parameters, the
//! optimiser's moments and how far the run is. A resumed run gives the same bits as one that never stopped.

use std::path::Path;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::checkpoint::{parse, read_tensor, write_tensors};
use super::optimizer::Adam;
use crate::data::Dataset;
use crate::{Error, Result};

/// File name of the state in a model folder.
pub const STATE: &str = "state.safetensors";

/// How far a run is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Steps taken.
    pub step: u64,
    /// Epochs completed.
    pub epoch: u64,
    /// Steps of the current epoch completed.
    pub step_in_epoch: u64,
    /// Sum of the losses of the sets since the last validation.
    pub loss_sum: f64,
    /// Number of those sets.
    pub loss_sets: u64,
    /// Validations since the best.
    pub validations_since_best: u64,
    /// The best validation so far.
    pub best: Option<Best>,
    /// Stands for the data: a run is not resumed on another.
    pub data: u32,
    /// Stands for the configuration: a run is not resumed under another.
    pub config: u32,
}

/// The best validation so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// Value of what selects.
    pub value: f64,
    /// Step at which it was measured.
    pub step: u64,
    /// Epoch at which it was measured.
    pub epoch: u64,
}

/// What a learner changes: arrays laid out as the model's table of parameters says.
#[derive(Clone, Debug)]
pub struct Weights {
    /// Parameters after the last step.
    pub parameters: Vec<f32>,
    /// Moments after the last step, and the number of steps.
    pub adam: Adam,
    /// Running average of the parameters, where one is kept.
    pub average: Option<Vec<f32>>,
}

impl Weights {
    /// Parameters that no step was taken on.
    pub fn new(parameters: Vec<f32>) -> Self {
        let adam = Adam::new(parameters.len());
        Weights { parameters, adam, average: None }
    }

    /// The parameters to validate and to keep: the average, or where none is kept those after the last step.
    pub fn evaluated(&self) -> &[f32] {
        self.average.as_deref().unwrap_or(&self.parameters)
    }
}

/// Everything that changes while training.
#[derive(Clone, Debug)]
pub struct State {
    /// What the learner changes; its steps are those of `progress`.
    pub weights: Weights,
    /// How far the run is.
    pub progress: Progress,
}

impl State {
    /// A run that has not begun.
    pub fn new(parameters: Vec<f32>, data: u32, config: u32) -> Self {
        State {
            weights: Weights::new(parameters),
            progress: Progress { data, config, ..Progress::default() },
        }
    }

    /// Reads the state of a model of `len` parameter values from `folder`.
    pub fn load(folder: &Path, len: usize) -> Result<Self> {
        let path = folder.join(STATE);
        let bytes = std::fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
        let (tensors, progress) = parse(&path, &bytes)?;
        let read = |name| -> Result<Vec<f32>> {
            let mut values = vec![0.0; len];
            read_tensor(&path, &tensors, name, &[len], &mut values)?;
            Ok(values)
        };
        let progress: Progress = serde_json::from_value(progress)
            .map_err(|e| Error::damaged(&path, format!("how far the run is: {e}")))?;
        let weights = Weights {
            parameters: read("parameters")?,
            average: tensors.tensor("average").is_ok().then(|| read("average")).transpose()?,
            adam: Adam { first: read("adam.first")?, second: read("adam.second")?, step: progress.step },
        };
        Ok(State { weights, progress })
    }
}

/// Writes the state of a run into `folder`.
pub fn save(folder: &Path, weights: &Weights, progress: &Progress) -> Result<()> {
    let Weights { parameters, adam, average } = weights;
    let len = vec![parameters.len()];
    let tensors =
        [("parameters", &parameters[..]), ("adam.first", &adam.first), ("adam.second", &adam.second)]
            .into_iter()
            .chain(average.iter().map(|average| ("average", &average[..])))
            .map(|(name, values)| (name.to_owned(), len.clone(), values));
    let progress = serde_json::to_value(progress).expect("plain data");
    write_tensors(&folder.join(STATE), tensors, progress)
}

/// A checksum of everything that training reads of a data set.
pub fn fingerprint(data: &Dataset) -> u32 {
    /// Bytes of one piece: pieces are taken in parallel.
    const PIECE: usize = 1 << 24;
    let whole = |bytes: &[u8]| {
        let pieces: Vec<(u32, usize)> =
            bytes.par_chunks(PIECE).map(|piece| (crc32c::crc32c(piece), piece.len())).collect();
        pieces.into_iter().fold(0, |crc, (piece, len)| crc32c::crc32c_combine(crc, piece, len))
    };
    let columns = data.columns();
    let sizes: Vec<u64> = data.queries().map(|query| query.len() as u64).collect();
    let mut crc = crc32c::crc32c(format!("{} {:?}", columns.first_index, columns.absent).as_bytes());
    crc = crc32c::crc32c_append(crc, bytemuck::cast_slice(&sizes));
    crc = crc32c::crc32c_append(crc, bytemuck::cast_slice(data.labels().unwrap_or(&[])));
    for query in data.queries() {
        for ranking in 0..data.num_initial() {
            crc = crc32c::crc32c_append(crc, bytemuck::cast_slice(query.initial_scores(ranking)));
        }
    }
    crc32c::crc32c_append(crc, &whole(bytemuck::cast_slice(data.features())).to_le_bytes())
}
