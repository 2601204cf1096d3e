//! `setrank demo`.

use std::path::{Path, PathBuf};

use anyhow::bail;
use serde_json::json;
use setrank::data::Dataset;
use setrank::data::batch::Batcher;
use setrank::data::initial::{self, InitialFeature};
use setrank::data::store;
use setrank::data::synth::{self, Like};
use setrank::eval::report::describe;
use setrank::eval::{Conventions, Evaluation, Metric, evaluate, mean_ndcg};
use setrank::files::write_atomically;
use setrank::model::scorer::{self, CpuScorer};
use setrank::rng::{Rng, Stream};
use setrank::train::config::Preset;
use setrank::train::{Checkpoint, TrainConfig};

use super::compute::ComputeArgs;
use super::train::{self, Data};

/// File name of the results, by which a folder of this command is known.
const RESULTS: &str = "results.json";

/// Documents of a query at most: small sets, so that the demo ends soon.
const MAX_DOCUMENTS: usize = 40;

/// Arguments of `setrank demo`.
#[derive(clap::Args)]
pub struct Args {
    /// Folder for data, model and results; that of an earlier demo is written anew
    #[arg(short, long, value_name = "DIR", default_value = "setrank-demo")]
    output: PathBuf,

    /// Training queries; validation and test have an eighth of them each
    #[arg(long, value_name = "N", default_value_t = 1600, value_parser = clap::value_parser!(u32).range(8..100_000))]
    queries: u32,

    /// Seed of data and training
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: u64,

    /// Epochs at most
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: u64,

    #[command(flatten)]
    compute: ComputeArgs,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    args.compute.set_up()?;
    let folder = &args.output;
    if folder.exists() && !folder.is_dir() {
        bail!("{} is a file: give a folder with -o", folder.display());
    }
    if folder.exists() && !folder.join(RESULTS).exists() && folder.read_dir()?.next().is_some() {
        bail!("{} holds something else than an earlier demo: give another folder with -o", folder.display());
    }
    std::fs::create_dir_all(folder).map_err(|e| setrank::Error::io("create", folder, e))?;
    write_results(folder, &json!({}))?;

    tell!("Making up queries after MSLR-WEB: 136 features, up to {MAX_DOCUMENTS} documents each.");
    let queries = args.queries as usize;
    let make = |name: &str, queries: usize, seed: u64| -> anyhow::Result<Dataset> {
        let data = synth::dataset(Like::Mslr, queries, seed, Some(MAX_DOCUMENTS))?;
        store::write(&data, &folder.join(name))?;
        tell!("  {name}: {} queries, {} documents", data.num_queries(), data.num_documents());
        Ok(data)
    };
    // Different seeds are samples of one distribution.
    let train = make("train.sets", queries, args.seed.wrapping_mul(3))?;
    let valid = make("valid.sets", queries / 8, args.seed.wrapping_mul(3).wrapping_add(1))?;
    let test = make("test.sets", queries / 8, args.seed.wrapping_mul(3).wrapping_add(2))?;

    let config = TrainConfig {
        train: vec![folder.join("train.sets")],
        valid: vec![folder.join("valid.sets")],
        hidden: 64,
        heads: 2,
        blocks: 2,
        ffn: 128,
        inducing: 8,
        lr: 1e-3,
        batch_sets: 8,
        epochs: args.epochs,
        patience: 0,
        seed: args.seed,
        threads: usize::from(args.compute.threads.unwrap_or(0)),
        device: args.compute.asked().device,
        kernels: args.compute.asked().kernels.matrix,
        fuse: args.compute.asked().kernels.fuse,
        graphs: args.compute.asked().kernels.graphs,
        ..TrainConfig::preset(Preset::Default)
    };
    tell!("Training an IMSAB model: C 64, 2 heads, 2 blocks, 8 inducing points.");
    let model_folder = folder.join("model");
    let data = Data { train, valid: Some(valid) };
    let (model, state) = train::new_run(&config, &data)?;
    train::train(&config, &model_folder, &data, model, state)?;

    let Checkpoint { model, parameters } = Checkpoint::load(&model_folder)?;
    let batcher = Batcher::new(&test, model.config())?;
    let scores = scorer::score(&mut CpuScorer::new(&model, &parameters), &batcher, |_| {})?;
    let feature = best_feature(&data.train)?;
    let by_feature = feature_scores(&test, feature)?;
    let mut rng = Rng::new(args.seed, Stream::RandomScores, 0);
    let random: Vec<f32> = (0..test.num_documents()).map(|_| rng.uniform() as f32).collect();

    let rows = [
        ("random order".to_owned(), random),
        (format!("best single feature ({feature})"), by_feature),
        ("SetRank".to_owned(), scores),
    ];
    let metrics = [1, 5, 10].map(|k| Metric::Ndcg(Some(k)));
    println!("\n{:<32}{:>8}{:>8}{:>8}", "test queries", "ndcg@1", "ndcg@5", "ndcg@10");
    let conventions = Conventions::default();
    let mut results = serde_json::Map::new();
    for (name, scores) in rows {
        let evaluation = evaluate(&test, &scores, None, &metrics, &conventions)?;
        let means = means(&evaluation);
        println!("{name:<32}{:>8.4}{:>8.4}{:>8.4}", means[0], means[1], means[2]);
        results.insert(name, json!({"ndcg@1": means[0], "ndcg@5": means[1], "ndcg@10": means[2]}));
    }
    println!("({})", describe(metrics[0], &conventions));
    results.insert("conventions".into(), json!(describe(metrics[0], &conventions)));
    write_results(folder, &serde_json::Value::Object(results))?;
    let shown = folder.display();
    println!(
        "\nModel, log and learning curve: {shown}/model (config.json, model.safetensors, log.jsonl, curve.svg).\n\
         Next: setrank eval --model {shown}/model --data {shown}/test.sets\n\
         \x20     setrank rank --model {shown}/model --data {shown}/test.sets --format trec"
    );
    Ok(())
}

fn write_results(folder: &Path, results: &serde_json::Value) -> setrank::Result<()> {
    write_atomically(&folder.join(RESULTS), |w| writeln!(w, "{results:#}"))
}

fn means(evaluation: &Evaluation) -> Vec<f64> {
    (0..evaluation.metrics().len()).map(|metric| evaluation.summary(metric).mean).collect()
}

/// The feature that ranks the training queries best by NDCG@10.
fn best_feature(train: &Dataset) -> anyhow::Result<InitialFeature> {
    let first = train.columns().first_index;
    let mut best = (InitialFeature { index: first, ascending: false }, f64::NEG_INFINITY);
    for index in first..first + train.columns().count {
        for ascending in [false, true] {
            let feature = InitialFeature { index, ascending };
            let scores = feature_scores(train, feature)?;
            let value = mean_ndcg(train, &scores, None, 10, &Conventions::default())?;
            if value > best.1 {
                best = (feature, value);
            }
        }
    }
    Ok(best.0)
}

/// Scores `[N]` that rank as `feature` does, missing values last.
fn feature_scores(data: &Dataset, feature: InitialFeature) -> setrank::Result<Vec<f32>> {
    let scores = initial::feature_scores(data, feature)?;
    Ok(scores.into_iter().map(|score| if score.is_nan() { f32::MIN } else { score }).collect())
}
