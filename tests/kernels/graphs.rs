//! Graphs: passes that are recorded and launched in one piece compute what they compute launch by launch.

use half::bf16;
use setrank::config::{Encoder, ModelConfig, OrdinalAt, OrdinalConfig, OrdinalStart};
use setrank::data::batch::{Batch, Batcher, Shuffle};
use setrank::data::initial::{self, InitialSources};
use setrank::data::normalize::Kind;
use setrank::data::synth::{self, Like};
use setrank::data::{Dataset, Normalize};
use setrank::device::{Arena, DeviceError, Gpu};
use setrank::model::setrank::{SetRank, TrainingStep};
use setrank::ops::loss::Loss;
use setrank::ops::optimizer::round_parameters;
use setrank::train::Learner;
use setrank::train::learner::{GpuLearner, Objective};
use setrank::train::optimizer::AdamConfig;
use setrank::train::state::Weights;
use setrank_emulator::driver::{self, Configuration, Driver, Streams};

use crate::device::on_gpu;

/// Sets of the batches of a step: three of very different sizes, of which some steps have two.
const STEPS: [&[usize]; 7] = [&[2], &[5, 1], &[1], &[6], &[2, 2], &[1, 5], &[3]];

fn data(queries: usize) -> Dataset {
    let mut data = synth::dataset(Like::Yahoo, queries, 1, Some(9)).unwrap();
    let sources = InitialSources { files: Vec::new(), features: vec!["3".parse().unwrap()] };
    initial::attach(&mut data, &sources).unwrap();
    data
}

fn model_of(data: &Dataset, encoder: Encoder) -> ModelConfig {
    let features = data.num_features();
    let ordinal = OrdinalConfig { rankings: 1, n_max: 40, at: OrdinalAt::Input, start: OrdinalStart::Zero };
    ModelConfig {
        num_features: features,
        encoder,
        hidden_size: 64,
        num_heads: 2,
        num_blocks: 2,
        ffn_size: 64,
        num_inducing: 5,
        dropout: 0.2,
        normalize: Normalize::fit(Kind::ZScore, data.features(), features, true).unwrap(),
        top_k: Some(20),
        ordinal: Some(ordinal),
        ..ModelConfig::default()
    }
}

fn learner(gpu: Gpu, model: &ModelConfig) -> GpuLearner {
    let adam = AdamConfig { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };
    let objective = Objective { loss: Loss::LambdaLoss, clip: 1.0, adam, ema: 0.9 };
    let model = SetRank::new(model.clone()).unwrap();
    let parameters: Vec<f32> = model.layout().init(1);
    let weights = Weights { average: Some(parameters.clone()), ..Weights::new(parameters) };
    GpuLearner::new(gpu, model, weights, objective).unwrap()
}

/// What a run gives, and the kernels and graphs that it launched.
#[derive(Debug, PartialEq)]
struct Run {
    losses: Vec<f64>,
    norms: Vec<f64>,
    /// Parameters, their average, and moments.
    weights: [Vec<f32>; 4],
    scores: Vec<f32>,
    launches: u64,
    graphs: u64,
}

/// Queues step number `step`, of batches of so many sets each.
fn queue(
    learner: &mut GpuLearner,
    batcher: &Batcher<'_>,
    step: u64,
    batches: &[usize],
) -> setrank::Result<()> {
    let shuffle = Some(Shuffle { seed: 7, epoch: step });
    let (mut batch, mut first) = (Batch::default(), step as usize % 4);
    let sets = batches.iter().sum();
    learner.begin()?;
    for (number, &count) in batches.iter().enumerate() {
        let queries = &batcher.sets()[first..first + count];
        first += count;
        batcher.fill(&mut batch, queries, shuffle);
        let training = TrainingStep { seed: 1, step: 10 * step + number as u64 };
        learner.accumulate(&batch, sets, training)?;
    }
    learner.finish(1e-2)
}

/// Steps of which two are always under way, and scores of other data.
fn run(gpu: Gpu, encoder: Encoder) -> Run {
    let (data, other) = (data(12), data(20));
    let config = model_of(&data, encoder);
    let batcher = Batcher::new(&data, &config).unwrap();
    let mut learner = learner(gpu, &config);
    let (mut losses, mut norms) = (Vec::new(), Vec::new());
    for (step, batches) in STEPS.iter().enumerate() {
        queue(&mut learner, &batcher, step as u64, batches).unwrap();
        if let Some(outcome) = learner.outcome(step >= 2).unwrap() {
            losses.extend(outcome.losses);
            norms.push(outcome.gradient_norm);
        }
    }
    while let Some(outcome) = learner.outcome(true).unwrap() {
        losses.extend(outcome.losses);
        norms.push(outcome.gradient_norm);
    }
    let scores = learner.score(&Batcher::new(&other, &config).unwrap()).unwrap();
    let Weights { parameters, adam, average } = learner.snapshot().unwrap().clone();
    let weights = [parameters, average.unwrap(), adam.first, adam.second];
    let (launches, graphs) = (learner.gpu().launches(), learner.gpu().graph_launches());
    Run { losses, norms, weights, scores, launches, graphs }
}

/// Runs on a card, too.
#[test]
fn graphs_change_no_bit() {
    for encoder in [Encoder::Msab, Encoder::Imsab] {
        let mut runs = Vec::new();
        for graphs in [false, true] {
            on_gpu(|gpu| runs.push(run(gpu.with_graphs(graphs), encoder)));
        }
        let (with_graphs, plain) = (runs.pop().unwrap(), runs.pop().unwrap());
        assert!(plain.losses.len() == 28 && plain.norms.iter().all(|norm| *norm > 0.0), "{:?}", plain.losses);
        assert_eq!(plain.graphs, 0);
        // A graph for each batch and each step, but those that loaded kernels.
        let (batches, steps) = (STEPS.iter().map(|step| step.len()).sum::<usize>(), STEPS.len());
        let most = (batches + steps + 1) as u64;
        assert!((most - 6..=most).contains(&with_graphs.graphs), "{} of {most}", with_graphs.graphs);
        assert_eq!(Run { graphs: 0, ..with_graphs }, plain, "{encoder:?}");
    }
}

fn on<R>(configuration: Configuration, run: impl FnOnce(&'static Driver, Gpu) -> R) -> R {
    driver::with(&configuration, |driver| {
        let result = run(driver, Gpu::new(0).unwrap().with_graphs(true));
        let left = driver.counters();
        assert_eq!((left.live_allocations, left.live_graph_instances), (0, 0), "not all was given back");
        result
    })
    .unwrap()
}

/// However late the copies between the graphs run.
#[test]
fn graphs_are_ordered_as_launches_are() {
    let expected = on(Configuration::default(), |_, gpu| run(gpu, Encoder::Imsab));
    for seed in 1..3 {
        let random = Configuration { streams: Streams::Random, seed, ..Configuration::default() };
        assert_eq!(on(random, |_, gpu| run(gpu, Encoder::Imsab)), expected);
    }
}

/// Once kernels are loaded a batch is one graph, and so is the optimiser's step; instances are used again for batches of
/// other sizes, and no step waits for more than it does without.
#[test]
fn instances_are_used_again_and_nothing_waits() {
    on(Configuration::default(), |driver, gpu| {
        let data = data(12);
        let config = model_of(&data, Encoder::Msab);
        let batcher = Batcher::new(&data, &config).unwrap();
        let mut learner = learner(gpu, &config);
        let steps = [6, 1, 5, 2].into_iter().enumerate();
        for (step, sets) in steps.clone() {
            queue(&mut learner, &batcher, step as u64, &[sets]).unwrap();
        }
        while learner.outcome(true).unwrap().is_some() {}
        // Of a batch, and of the optimiser's step.
        assert_eq!(driver.counters().live_graph_instances, 2);
        for (step, sets) in steps {
            let before = driver.counters();
            queue(&mut learner, &batcher, step as u64, &[sets]).unwrap();
            let after = driver.counters();
            assert_eq!(after.graph_launches - before.graph_launches, 2);
            assert_eq!(after.graph_instances, before.graph_instances, "{sets} sets");
            assert!(after.launches - before.launches > 30, "{after:?}");
            assert_eq!(after.synchronizations - before.synchronizations, 1);
            learner.outcome(true).unwrap().unwrap();
        }
    });
}

#[test]
fn a_kernel_that_fails_in_a_graph_is_told_with_the_graph() {
    let data = data(12);
    let config = model_of(&data, Encoder::Msab);
    let batcher = Batcher::new(&data, &config).unwrap();
    let mut of_first = 0;
    on(Configuration::default(), |_, gpu| {
        let mut learner = learner(gpu, &config);
        queue(&mut learner, &batcher, 0, &[4]).unwrap();
        of_first = learner.gpu().launches();
    });
    for (error, parts) in [
        (719, ["CUDA_ERROR_LAUNCH_FAILED", "in its graph (the optimiser's step, 3 kernels)", "or before it"]),
        (701, ["CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "launching the graph of a batch's forward", "on GPU 0"]),
    ] {
        let failing = Configuration {
            launch_fails_at: Some(of_first + 7),
            launch_error: error,
            ..Configuration::default()
        };
        on(failing, |driver, gpu| {
            let mut learner = learner(gpu, &config);
            queue(&mut learner, &batcher, 0, &[4]).unwrap();
            let second = queue(&mut learner, &batcher, 1, &[4]);
            let told = second.and_then(|()| {
                while learner.outcome(true)?.is_some() {}
                Ok(())
            });
            let told = told.unwrap_err().to_string();
            for part in parts {
                assert!(told.contains(part), "{told}");
            }
            assert!(driver.report().contains("(of a graph)"), "{}", driver.report());
        });
    }
}

/// Where launches are timed one by one, they are launched one by one.
#[test]
fn what_is_timed_is_no_graph() {
    on(Configuration::default(), |driver, gpu| {
        let data = data(12);
        let config = model_of(&data, Encoder::Msab);
        let batcher = Batcher::new(&data, &config).unwrap();
        let mut learner = learner(gpu, &config);
        queue(&mut learner, &batcher, 0, &[4]).unwrap();
        let before = driver.counters();
        learner.gpu().start_profile();
        queue(&mut learner, &batcher, 1, &[4]).unwrap();
        let times = learner.gpu().end_profile().unwrap();
        let after = driver.counters();
        assert_eq!(after.graph_launches, before.graph_launches);
        let timed: usize = times.iter().map(|time| time.launches).sum();
        assert_eq!(timed as u64, after.launches - before.launches);
        queue(&mut learner, &batcher, 2, &[4]).unwrap();
        assert_eq!(driver.counters().graph_launches - after.graph_launches, 2);
    });
}

/// Buffers of four numbers.
fn numbers(gpu: &Gpu) -> (Arena, [setrank::device::Buffer<f32>; 2]) {
    let mut arena = gpu.arena("numbers", Arena::bytes_for([16, 16])).unwrap();
    let mut buffers = [arena.take(4).unwrap(), arena.take(4).unwrap()];
    gpu.upload(&mut buffers[0], &[1.0, 2.0, 3.0, 4.0]).unwrap();
    gpu.upload(&mut buffers[1], &[5.0; 4]).unwrap();
    (arena, buffers)
}

#[test]
fn instances_are_kept_by_topology_and_not_for_ever() {
    on(Configuration::default(), |driver, gpu| {
        let (_arena, [from, mut to]) = numbers(&gpu);
        let mut copies = |count: usize| {
            let queue = || (0..count).try_for_each(|_| gpu.copy(&mut to, &from));
            gpu.graph("copies", queue).unwrap();
            driver.counters()
        };
        assert_eq!(copies(0).graph_launches, 0, "nothing is no graph");
        assert_eq!((copies(1).graph_instances, copies(1).graph_instances), (1, 1));
        for count in 2..=16 {
            copies(count);
        }
        assert_eq!((copies(1).graph_instances, copies(1).live_graph_instances), (16, 16));
        // The one launched longest ago makes room.
        assert_eq!((copies(17).graph_instances, copies(17).live_graph_instances), (17, 16));
        assert_eq!((copies(1).graph_instances, copies(2).graph_instances), (17, 18));
        assert_eq!(gpu.download(&to).unwrap(), [1.0, 2.0, 3.0, 4.0]);
        // The driver updates no memset to another size: the graph is instantiated anew.
        let clear = |count: usize| {
            gpu.graph("zeros", || gpu.zero(&mut to.part(0..count)?)).unwrap();
            driver.counters().graph_instances
        };
        assert_eq!([clear(1), clear(1), clear(3)], [19, 19, 20]);
        assert_eq!(gpu.download(&to).unwrap(), [0.0, 0.0, 0.0, 4.0]);
    });
}

/// No kernel can be loaded in the middle of a recording: what was recorded before is a graph, and the rest none.
#[test]
fn a_new_kernel_ends_a_graph_once() {
    on(Configuration::default(), |driver, gpu| {
        let mut arena = gpu.arena("numbers", Arena::bytes_for([256, 256, 128])).unwrap();
        let (mut from, mut to) = (arena.take(64).unwrap(), arena.take(64).unwrap());
        let mut rounded = arena.take(64).unwrap();
        gpu.upload(&mut from, &[3.0; 64]).unwrap();
        for time in 1..=3 {
            gpu.zero(&mut rounded).unwrap();
            gpu.graph("numbers", || {
                gpu.copy(&mut to, &from)?;
                round_parameters(&gpu, &mut rounded, &to)
            })
            .unwrap();
            assert_eq!(gpu.download(&rounded).unwrap(), [bf16::from_f32(3.0); 64]);
            let counters = driver.counters();
            assert_eq!((counters.launches, counters.graph_launches), (time, time));
            // The copy alone, and then both.
            assert_eq!(counters.graph_instances, time.min(2));
            assert_eq!((gpu.launches(), gpu.graph_launches()), (time, time));
        }
    });
}

/// An error in the middle is the error; nothing of the graph has run, and the GPU goes on.
#[test]
fn a_graph_that_is_not_finished_is_none() {
    on(Configuration::default(), |driver, gpu| {
        let (_arena, [from, mut to]) = numbers(&gpu);
        let own = || DeviceError::Shapes("my own".into());
        let failed = gpu.graph("numbers", || gpu.copy(&mut to, &from).and_then(|()| Err::<(), _>(own())));
        assert_eq!(failed.unwrap_err().to_string(), "my own");
        let panics = std::panic::AssertUnwindSafe(|| gpu.graph("numbers", || panic!("on purpose")));
        std::panic::catch_unwind(panics).map(|none: Result<(), _>| none.unwrap()).unwrap_err();
        assert_eq!(gpu.download(&to).unwrap(), [5.0; 4]);
        gpu.graph("numbers", || gpu.copy(&mut to, &from)).unwrap();
        assert_eq!(gpu.download(&to).unwrap(), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(driver.counters().graph_launches, 1);
    });
}

/// Bugs of host code, written out: what is no launch in the middle of a graph.
mod planted {
    use super::*;

    /// Has `bug` be part of a graph; what it is told, by the driver or before.
    fn told(bug: impl FnOnce(&Gpu) -> Result<(), DeviceError>) -> String {
        on(Configuration::default(), |_, gpu| {
            let (_arena, [from, mut to]) = numbers(&gpu);
            let queue = || gpu.copy(&mut to, &from).and_then(|()| bug(&gpu));
            let told = gpu.graph("numbers", queue).unwrap_err().to_string();
            assert_eq!(gpu.download(&to).unwrap(), [5.0; 4]);
            gpu.graph("numbers", || gpu.copy(&mut to, &from)).unwrap();
            assert_eq!(gpu.download(&to).unwrap(), [1.0, 2.0, 3.0, 4.0]);
            told
        })
    }

    #[test]
    fn the_driver_refuses_to_wait() {
        let refused =
            "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: operation not permitted when stream is capturing";
        let allocate = |gpu: &Gpu| gpu.arena("more numbers", 256).map(drop);
        for told in [told(allocate), told(Gpu::synchronize), told(|gpu| gpu.staging::<f32>(4).map(drop))] {
            assert!(told.contains(refused), "{told}");
        }
    }

    #[test]
    fn uploads_and_downloads_are_refused() {
        on(Configuration::default(), |driver, gpu| {
            let (_arena, [mut to, _]) = numbers(&gpu);
            for upload in [true, false] {
                let refused = gpu.graph("numbers", || match upload {
                    true => gpu.upload(&mut to, &[1.0; 4]),
                    false => gpu.download(&to).map(drop),
                });
                let refused = refused.unwrap_err().to_string();
                assert!(refused.contains("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"), "{refused}");
                assert!(driver.report().contains("the capture invalid"), "{}", driver.report());
            }
            // Pinned memory the driver would take into the graph, and nobody would know when it is read or written.
            let mut pinned = gpu.staging::<f32>(4).unwrap();
            let told = "cannot be part of the graph of numbers: do it before or after";
            for refused in [
                gpu.graph("numbers", || gpu.upload_staged(&mut to, &pinned)),
                gpu.graph("numbers", || gpu.download_staged(&mut pinned, &to)),
                gpu.graph("numbers", || gpu.record().map(drop)),
                gpu.graph("numbers", || gpu.graph("others", || Ok(()))),
            ] {
                let refused = refused.unwrap_err().to_string();
                assert!(refused.contains(told), "{refused}");
            }
        });
    }

    #[test]
    fn a_refusal_that_nobody_heard_of_is_told_at_the_end() {
        let told = told(|gpu| {
            let _ = gpu.synchronize();
            Ok(())
        });
        assert!(told.starts_with("recording the graph of numbers on GPU 0 failed"), "{told}");
        assert!(told.contains("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"), "{told}");
    }
}
