//! Every kernel that a training step of full size launches, and what a single query has besides, alone and on a GPU, and a whole
//! step, by the GPU's own time. On the first GPU, or number `SETRANK_BENCH_DEVICE`; where there is none, there is nothing to
//! measure.

mod attention;
mod card;
mod features;
mod gradients;
mod linear;
mod memory;
mod network;
mod scores;
mod step;
mod timing;

use std::process::ExitCode;
use std::time::Duration;

use criterion::Criterion;
use setrank::device::choice::MatrixKernels;

use crate::card::Card;

/// Criterion's warm-up, in which a card that has idled raises its clock and all copies of operands are made, and its
/// measurement.
const TIMES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(1)];

fn main() -> ExitCode {
    let cards = match Card::all() {
        Ok(cards) => cards,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::FAILURE;
        }
    };
    let [warm_up, measurement] = TIMES;
    let criterion = Criterion::default().sample_size(10).warm_up_time(warm_up).measurement_time(measurement);
    let criterion = &mut criterion.configure_from_args();
    for card in &cards {
        // By warpgroups, what there are such kernels for.
        if card.gpu.kernels().matrix == MatrixKernels::Mma {
            features::gathering(criterion, card);
            features::ordinals(criterion, card);
            linear::points(criterion, card);
            network::layer_norm(criterion, card);
            network::query(criterion, card);
            scores::head(criterion, card);
            scores::losses(criterion, card);
            gradients::sums(criterion, card);
            gradients::optimizer(criterion, card);
        }
        features::rbf(criterion, card);
        linear::layers(criterion, card);
        attention::attention(criterion, card);
        network::networks(criterion, card);
        step::steps(criterion, card);
    }
    criterion.final_summary();
    ExitCode::SUCCESS
}
