//! Scores of all documents of a data set.

use super::setrank::{Inputs, Keep, SetRank, Workspace};
use crate::data::batch::{Batch, Batcher};
use crate::{Error, Result};

/// Documents of one batch, about: enough to fill the machine, few enough to stay small in memory.
const BATCH_DOCUMENTS: usize = 4096;

/// Scores `[N]`, by row of the batcher's data set. Documents that the model does not see rank below those it
/// does, in initial order. `progress` is told the number of queries done.
///
/// A set's scores do not depend on the sets that share its batch.
pub fn score(
    model: &SetRank,
    parameters: &[f32],
    batcher: &Batcher<'_>,
    mut progress: impl FnMut(usize),
) -> Result<Vec<f32>> {
    let data = batcher.data();
    let mut scores = vec![0.0; data.num_documents()];
    let mut workspace = Workspace::default();
    let mut batch = Batch::default();
    let mut queries: Vec<usize> = Vec::new();
    let mut documents = 0;
    for (done, &query) in batcher.sets().iter().enumerate() {
        queries.push(query);
        documents += batcher.set_size(query);
        if documents < BATCH_DOCUMENTS && done + 1 < batcher.sets().len() {
            continue;
        }
        batcher.fill(&mut batch, &queries, None);
        let inputs = Inputs { features: &batch.features, offsets: &batch.offsets, ordinals: &batch.ordinals };
        model.forward(&mut workspace, parameters, inputs, Keep::Nothing, None);
        for (&row, &score) in batch.rows.iter().zip(workspace.scores()) {
            if !score.is_finite() {
                return Err(Error::NonFinite(format!(
                    "the score of document {} is {score}: its features or the model's weights are extreme",
                    data.positions()[row] + 1
                )));
            }
            scores[row] = score;
        }
        queries.clear();
        documents = 0;
        progress(query + 1);
    }
    batcher.rank_dropped_below(&mut scores);
    Ok(scores)
}
