//! Steps of training as graphs, and launch by launch: the same bits.

use anyhow::bail;
use serde_json::json;
use setrank::config::Encoder;
use setrank::device::Gpu;
use setrank::model::setrank::SetRank;

use crate::outcome::Outcome;
use crate::step::{self, Results};

/// Takes the same steps with two learners. The first one loads the kernels; a later one finds its graphs instantiated, for
/// a batch of another size.
pub fn run(encoder: Encoder, small: bool) -> anyhow::Result<Outcome> {
    let (config, sizes) = step::problem(encoder, small);
    let batches = [sizes, sizes, &sizes[1..], sizes].map(|sizes| step::batch(&config, sizes));
    let model = SetRank::new(config)?;
    let taken = |graphs: bool| -> anyhow::Result<(Results, u64, u64)> {
        let mut learner = step::learner(Gpu::new(0)?.with_graphs(graphs), &model)?;
        let [mut losses, mut norms] = [Vec::new(), Vec::new()];
        let mut parameters = Vec::new();
        for batch in &batches {
            let [(_, of_sets), (_, norm), (_, after)] = step::step(&mut learner, batch)?;
            losses.extend(of_sets);
            norms.extend(norm);
            parameters = after;
        }
        let results = [("losses", losses), ("norms of the gradients", norms), ("parameters", parameters)];
        Ok((results, learner.gpu().launches(), learner.gpu().graph_launches()))
    };
    if !Gpu::new(0)?.with_graphs(true).launches_graphs() {
        return Ok(Outcome::Skipped(
            "CUDA_LAUNCH_BLOCKING=1: each launch is waited for, none is of a graph".into(),
        ));
    }
    let (plain, launches, _) = taken(false)?;
    let (with_graphs, same_launches, graphs) = taken(true)?;
    if launches != same_launches || graphs == 0 {
        bail!("{same_launches} kernels are launched in {graphs} graphs, {launches} without");
    }
    let mismatches = step::differing(&plain, &with_graphs, "of steps that are graphs, or not finite");
    Ok(Outcome::of(mismatches, json!({ "launches": launches, "graphs": graphs })))
}
