//! What a whole step costs, kernel by kernel: the table that `setrank bench --ablate` and `docs/fusion.md` have, and its budget.

use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

use setrank::bench::ablation::{
    Ablation, Counts, ENCODERS, Kernels, REFERENCE_SIZES, RUNGS, Rung, Table, label, reference,
};
use setrank::config::{Encoder, ModelConfig};
use setrank::data::batch::Batch;
use setrank::device::Gpu;
use setrank::device::choice::{Fusion, KernelChoice, MatrixKernels};
use setrank::model::gpu::GpuScorer;
use setrank::model::scorer::Scorer;
use setrank::model::setrank::{SetRank, TrainingStep};
use setrank::ops::loss::Loss;
use setrank::rng::{Rng, Stream};
use setrank::train::Learner;
use setrank::train::learner::{GpuLearner, Objective};
use setrank::train::optimizer::AdamConfig;
use setrank::train::state::Weights;
use setrank_emulator::driver::{self, Configuration, Driver};

use crate::family::ACCEPT_COUNTERS as ACCEPT;

/// Multiprocessors of a card on which one set and more of this size are a large batch, and the inducing points of one of 384
/// documents are not, as on a large card; of 40 documents a set, points are half as many rows as documents.
fn multiprocessors(size: usize) -> u32 {
    if size < 100 { 1 } else { 3 }
}

/// Runs on a card for sets of this size.
fn on_card<R>(size: usize, run: impl FnOnce(&Driver) -> R) -> R {
    let multiprocessors = Some(multiprocessors(size));
    let card = Configuration { multiprocessors, workers: 2, count: true, ..Configuration::default() };
    driver::with(&card, run).unwrap()
}

/// `sets` sets of `size` documents.
fn batch(config: &ModelConfig, [sets, size]: [usize; 2]) -> Batch {
    let mut rng = Rng::new(1, Stream::Synth, 0);
    let documents = sets * size;
    Batch {
        queries: (0..sets).collect(),
        offsets: (0..=sets).map(|set| set * size).collect(),
        rows: (0..documents).collect(),
        features: (0..documents * config.input_size()).map(|_| rng.normal() as f32).collect(),
        feature_dropout: None,
        labels: (0..documents).map(|_| rng.below(5) as f32).collect(),
        ordinals: Vec::new(),
    }
}

/// Takes one training step of the model on `sets` sets of `size` documents, and gives what `found` finds before and after it.
fn step<R>(
    driver: &Driver,
    config: &ModelConfig,
    kernels: KernelChoice,
    [sets, size]: [usize; 2],
    found: impl Fn(&Driver) -> R,
) -> [R; 2] {
    let model = SetRank::new(config.clone()).unwrap();
    let batch = batch(config, [sets, size]);
    let weights = Weights::new(model.layout().init(1));
    let adam = AdamConfig { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };
    let objective = Objective { loss: Loss::AttentionRank, clip: 1.0, adam, ema: 0.0 };
    let gpu = Gpu::first(kernels).unwrap();
    let mut learner = GpuLearner::new(gpu, model, weights, objective).unwrap();
    let before = found(driver);
    learner.begin().unwrap();
    learner.accumulate(&batch, sets, TrainingStep { seed: 1, step: 0 }).unwrap();
    learner.finish(1e-3).unwrap();
    learner.outcome(true).unwrap();
    [before, found(driver)]
}

/// What each kernel has done.
fn kernels(driver: &Driver) -> Kernels {
    let of_each = driver.launched().into_iter().map(|launched| {
        let (kernel, of) = (launched.kernel(), &launched.emulator);
        // Parts of weights' gradients are as many however many documents there are.
        let of_weights = ["linear_wide_weights", "linear_wgmma_weights"].contains(&&*kernel);
        let written = |bytes: u64| if of_weights { 0 } else { bytes };
        let counts = Counts {
            requested: (of.requested_read + written(of.requested_written)) as f64,
            unique: (of.unique_read + written(of.unique_written)) as f64,
            products: of.mma as f64,
            exponentials: of.exponentials as f64,
            wavefronts: of.wavefronts as f64,
        };
        (kernel, counts)
    });
    of_each.collect()
}

/// What is more in one than in the other. Left out are kernels that touch no more bytes, and sums of parts, of which there are as
/// many however many documents there are, but for the score's of each set: 4·C bytes.
fn less(mut more: Kernels, than: &Kernels) -> Kernels {
    for (kernel, counts) in &mut more {
        if let Some(than) = than.get(kernel) {
            *counts = counts.zip(than, |more, than| more - than);
        }
    }
    more.retain(|kernel, counts| kernel != "partial_sums" && counts.unique > 0.0);
    more
}

/// What each document costs: what more sets cost besides, so that what a step does once is left out.
fn of_document(driver: &Driver, config: &ModelConfig, choice: KernelChoice, size: usize) -> Kernels {
    // No set has much more documents than a multiprocessor has of them; and so many more that tiles of 128 rows fit them exactly.
    let few = if size < 100 { 1 } else { 2 };
    let more = few + if size.is_multiple_of(128) { 1 } else { 640 / size };
    let of_sets = |sets| {
        let [before, after] = step(driver, config, choice, [sets, size], kernels);
        less(after, &before)
    };
    let of_more = of_sets(more);
    let mut kernels = less(of_more.clone(), &of_sets(few));
    let sets = (more - few) as f64;
    for (kernel, counts) in &mut kernels {
        // A few sets' points fill as many blocks of 32 rows as one set more, so that unique bytes alone grow: of all else a set
        // has its share.
        if kernel.starts_with("feed_forward") && kernel.contains("few_rows") {
            let share = of_more[kernel].zip(counts, |count, _| count * sets / more as f64);
            *counts = Counts { unique: counts.unique, ..share };
        }
    }
    let documents = sets * size as f64;
    kernels.values_mut().for_each(|counts| *counts = counts.zip(counts, |count, _| count / documents));
    kernels
}

/// Launches of a step of six blocks, and the zeroing of gradients. The model is narrow, which changes none.
fn launches(driver: &Driver, encoder: Encoder, kernels: KernelChoice, size: usize) -> f64 {
    let reference = reference(encoder);
    let config = ModelConfig { num_features: 9, hidden_size: 64, num_heads: 2, ffn_size: 64, ..reference };
    let sets = if size < 100 { 4 } else { 1 };
    let [before, after] = step(driver, &config, kernels, [sets, size], |driver| driver.counters().launches);
    (after - before + 1) as f64
}

/// The batches that are counted.
fn batches() -> impl Iterator<Item = (Encoder, usize)> {
    ENCODERS.into_iter().flat_map(|encoder| REFERENCE_SIZES.map(|size| (encoder, size)))
}

/// What a rung costs, after those above it. A launch like one before is not run again, since what it does depends on sizes alone.
/// Only what losses do depends on scores, and so on all launches before: models of one block take true steps on the two rungs
/// whose kernels of losses are their own.
fn rung(driver: &Driver, encoder: Encoder, size: usize, (fuse, matrix): (Fusion, MatrixKernels)) -> Rung {
    let choice = KernelChoice { fuse, matrix, ..KernelChoice::default() };
    let of_blocks =
        |num_blocks| of_document(driver, &ModelConfig { num_blocks, ..reference(encoder) }, choice, size);
    driver.skip_repeats(fuse < Fusion::Attention || matrix == MatrixKernels::Wgmma);
    let first = of_blocks(1);
    driver.skip_repeats(true);
    // What another block adds.
    let block = less(of_blocks(2), &first);
    let launches = launches(driver, encoder, choice, size);
    Rung { encoder, size, fuse, matrix, launches, first, block }
}

fn table() -> Table {
    let of_size = |size| {
        on_card(size, |driver| {
            let mut order = RUNGS;
            order.reverse();
            // By warpgroups last, when what it shares with the others has run.
            order.rotate_left(1);
            let of_rungs = |encoder| order.map(|kernels| rung(driver, encoder, size, kernels));
            ENCODERS.into_iter().flat_map(of_rungs).collect::<Vec<Rung>>()
        })
    };
    let mut rungs: Vec<Rung> = REFERENCE_SIZES.into_iter().flat_map(of_size).collect();
    let place = |rung: &Rung| {
        let encoder = ENCODERS.iter().position(|&encoder| encoder == rung.encoder);
        (encoder, rung.size, RUNGS.iter().position(|&kernels| kernels == rung.kernels()))
    };
    rungs.sort_by_key(place);
    let mut table = Table::default();
    rungs.into_iter().for_each(|rung| table.add(rung));
    table
}

/// After a change `tools/page/page.py` has to write docs/benchmarks.html anew, too.
#[test]
fn a_step_costs_what_the_table_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bench/ablation/counts.tsv");
    let found = table().to_string();
    if env::var_os(ACCEPT).is_some() {
        fs::write(&path, found).unwrap();
        return;
    }
    let budget = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == budget, "the counts changed; if that is meant, set {ACCEPT}=1. Now:\n{found}");
}

/// Of sets that warpgroups take, the network's LayerNorms and projections included.
#[test]
fn warpgroups_launch_as_many_kernels() {
    for encoder in ENCODERS {
        let of = |matrix| {
            let choice = KernelChoice { matrix, ..KernelChoice::default() };
            on_card(384, |driver| {
                driver.skip_repeats(true);
                launches(driver, encoder, choice, 384)
            })
        };
        assert_eq!(of(MatrixKernels::Wgmma), of(MatrixKernels::Mma), "{encoder:?}");
    }
}

/// A part of docs/fusion.md between two empty lines, behind a mark.
fn between<'a>(page: &'a str, mark: &str) -> &'a str {
    let begin = page.find(mark).unwrap_or_else(|| panic!("docs/fusion.md has no {mark}")) + mark.len() + 1;
    &page[begin..begin + page[begin..].find("\n\n").expect("a line behind it") + 1]
}

/// The rungs of every batch that is counted.
fn rungs() -> String {
    let head = [
        "batch",
        "`--fuse`",
        "launches",
        "requested",
        "unique",
        "MFLOP",
        "M docs/s predicted",
        "of the floor",
    ];
    let mut text = format!("\n| {} |\n|---|---|---|---|---|---|---|---|\n", head.join(" | "));
    for (encoder, size) in batches() {
        let name = if encoder == Encoder::Msab { "MSAB" } else { "IMSAB" };
        for rung in Ablation::new(&reference(encoder), &[size]).rungs {
            let cost = rung.counted.unwrap();
            writeln!(
                text,
                "| {name}, sets of {size} | {} | {} | {:.0} | {:.0} | {:.1} | {:.1} | {:.0} % |",
                label((rung.fuse, rung.matrix)),
                cost.launches,
                cost.counts.requested / 1e3,
                cost.counts.unique / 1e3,
                cost.counts.operations() / 1e6,
                cost.predicted_docs_per_s / 1e6,
                100.0 * cost.share_of_floor,
            )
            .unwrap();
        }
    }
    text
}

/// What takes the time where all is fused, by these matrix instructions.
fn longest(matrix: MatrixKernels) -> String {
    let found = Ablation::new(&reference(Encoder::Msab), &[384]);
    let all = found.rungs.iter().find(|rung| (rung.fuse, rung.matrix) == (Fusion::All, matrix));
    let cost = all.and_then(|rung| rung.counted.as_ref()).unwrap();
    let mut text =
        "\n| kernel | ns | limit | requested KB | unique KB | MFLOP |\n|---|---|---|---|---|---|\n"
            .to_owned();
    for kernel in &cost.kernels {
        let counts = &kernel.counts;
        writeln!(
            text,
            "| `{}` | {:.2} | {} | {:.1} | {:.1} | {:.2} |",
            kernel.kernel,
            kernel.least_ns,
            kernel.limit,
            counts.requested / 1e3,
            counts.unique / 1e3,
            counts.operations() / 1e6
        )
        .unwrap();
    }
    text
}

#[test]
fn the_documented_rungs_are_what_was_counted() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/fusion.md");
    let mut page = fs::read_to_string(&path).unwrap();
    for (mark, text) in [
        ("<!-- rungs -->", rungs()),
        ("<!-- kernels -->", longest(MatrixKernels::Mma)),
        ("<!-- kernels by wgmma -->", longest(MatrixKernels::Wgmma)),
    ] {
        let found = between(&page, mark).to_owned();
        if env::var_os(ACCEPT).is_some() {
            page = page.replacen(&format!("{mark}\n{found}"), &format!("{mark}\n{text}"), 1);
        } else {
            assert!(found == text, "set {ACCEPT}=1 if that is meant. Now:\n{text}");
        }
    }
    if env::var_os(ACCEPT).is_some() {
        fs::write(&path, page).unwrap();
    }
}

/// Of a document and layer of the last rung: bytes of the design that `src/bench/floor.rs` has, and its products, may be exceeded
/// by so much.
const MOST_BYTES: f64 = 1.15;
const MOST_OPERATIONS: f64 = 1.05;

#[test]
fn the_last_rung_costs_little_more_than_the_design() {
    let (d, f, points) = (256.0, 1024.0, 20.0);
    let u = 2.0 * d;
    let table = Table::counted();
    for (encoder, size) in batches() {
        let all = (Fusion::All, MatrixKernels::Mma);
        let is_it = |rung: &&Rung| (rung.encoder, rung.size, rung.kernels()) == (encoder, size, all);
        let rung = table.rungs().iter().find(is_it).unwrap();
        let sum = |sum: Counts, more: &Counts| sum.zip(more, |sum, more| sum + more);
        let found = rung.block.values().fold(Counts::default(), sum);
        let n = size as f64;
        // Points are rows, too.
        let (share, attention) = match encoder {
            Encoder::Msab => (0.0, 4.0 * n * d),
            Encoder::Imsab => (points / n, 8.0 * points * d),
        };
        let bytes = ((32.0 + 4.0 * f / d) * u + 64.0) * (1.0 + share);
        assert!(found.unique <= MOST_BYTES * bytes, "{encoder:?} {size}: {} bytes of {bytes}", found.unique);
        let operations = (18.0 * d * d + 14.0 * d * f) * (1.0 + share) + 3.5 * attention;
        // Sets of 40 fill three quarters of attention's tiles, 20 points of 32 two thirds.
        let tiles = if size == 40 || encoder == Encoder::Imsab { 3.5 * attention / 2.0 } else { 0.0 };
        let most = MOST_OPERATIONS * (operations + tiles);
        assert!(found.operations() <= most, "{encoder:?} {size}: {} of {operations}", found.operations());
    }
}

/// A single query on a large card: its networks are a launch for each layer, which has the LayerNorm in front of it. Without, the bits
/// are the same.
#[test]
fn a_query_is_few_launches() {
    for (encoder, launches) in [(Encoder::Msab, [27, 38]), (Encoder::Imsab, [52, 75])] {
        let config = ModelConfig {
            num_features: 20,
            encoder,
            hidden_size: 64,
            num_heads: 2,
            ffn_size: 128,
            num_inducing: 5,
            ..ModelConfig::default()
        };
        let parameters: Vec<f32> = SetRank::new(config.clone()).unwrap().layout().init(1);
        let card = Configuration { multiprocessors: Some(132), ..Configuration::default() };
        let [fused, apart] = [Fusion::All, Fusion::Attention].map(|fuse| {
            driver::with(&card, |driver| {
                let gpu = Gpu::new(0).unwrap().with_fusion(fuse);
                let mut scorer = GpuScorer::new(gpu, &config, &parameters).unwrap();
                let before = driver.counters().launches;
                scorer.begin(&batch(&config, [1, 40])).unwrap();
                let scores = scorer.finish().unwrap().to_vec();
                (scores, driver.counters().launches - before)
            })
            .unwrap()
        });
        assert_eq!([fused.1, apart.1], launches, "{encoder:?}");
        assert_eq!(fused.0, apart.0, "{encoder:?}");
    }
}
