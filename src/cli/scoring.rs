//! Scores of a data set by one model or the mean of several, for the commands that rank.

use std::path::{Path, PathBuf};

use anyhow::bail;
use indicatif::{ProgressBar, ProgressStyle};
use setrank::data::Dataset;
use setrank::data::batch::Batcher;
use setrank::data::initial::{self, InitialFeature, InitialSources};
use setrank::data::letor::Labels;
use setrank::device::choice::{Asked, Device};
use setrank::eval::ensemble::mean_of_standardised;
use setrank::model::scorer;
use setrank::train::Checkpoint;

use super::compute;
use super::source::{self, TextArgs};

/// Initial rankings of the data that is ranked.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Initial rankings")]
pub struct InitialArgs {
    /// Scores of an initial ranking, one a document, higher = better, NULL = not in the ranking; may be repeated,
    /// in the order of training. Takes the place of what a .sets file stores
    #[arg(long, value_name = "FILE")]
    pub init: Vec<PathBuf>,

    /// A raw feature that serves as initial ranking, `I`, `I:desc` or `I:asc` (smaller is better); may be
    /// repeated, after those of --init
    #[arg(long, value_name = "I[:asc|desc]")]
    pub init_feature: Vec<InitialFeature>,

    /// Rerank only the first K documents of the first initial ranking, the others follow in its order; 0 = all
    /// [default: as the model was trained]
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,

    /// Refuse data with a set of more than N documents, after --top-k, which cuts sets; 0 = any [default: 0]
    #[arg(long, value_name = "N", help_heading = "Computing")]
    pub max_set_size: Option<usize>,
}

impl InitialArgs {
    /// Gives `data` the rankings.
    pub fn attach(&self, data: &mut Dataset) -> setrank::Result<()> {
        let sources = InitialSources { files: self.init.clone(), features: self.init_feature.clone() };
        initial::attach(data, &sources)
    }

    /// Warns where the features that rank are not those that the model in `folder` was trained with.
    fn warn_of_others(&self, folder: &Path, trained: Option<&serde_json::Value>) {
        let given = self.init_feature.iter().map(ToString::to_string);
        let trained: Vec<&str> =
            trained.and_then(|t| t.as_array()).into_iter().flatten().filter_map(|f| f.as_str()).collect();
        if !trained.is_empty() && !self.init_feature.is_empty() && !given.eq(trained.iter().copied()) {
            log::warn!(
                "{} was trained with --init-feature {}",
                folder.display(),
                trained.join(" --init-feature ")
            );
        }
    }

    /// The rows of `data` that --top-k keeps, where it is given.
    pub fn kept(&self, data: &Dataset) -> anyhow::Result<Option<Vec<bool>>> {
        let Some(k) = self.top_k.filter(|&k| k > 0) else { return Ok(None) };
        if data.num_initial() == 0 {
            bail!(
                "--top-k cuts the first initial ranking, but the data has none: give --init or --init-feature"
            );
        }
        Ok(Some(initial::kept(data, k)))
    }
}

/// A data set and what models say of it.
pub struct Scored {
    pub data: Dataset,
    /// `[N]` by row
    pub scores: Vec<f32>,
    /// The rows that the models reranked; `None` = all
    pub kept: Option<Vec<bool>>,
}

/// The models that rank together, each with the device that computes it.
pub struct Models(Vec<(Checkpoint, Device)>);

impl Models {
    /// Loads the models in `folders`, which have to read the same data.
    pub fn load(folders: &[PathBuf], initial: &InitialArgs, asked: Asked) -> anyhow::Result<Self> {
        let mut models =
            folders.iter().map(|folder| Checkpoint::load(folder)).collect::<Result<Vec<_>, _>>()?;
        for checkpoint in &mut models {
            if let Some(k) = initial.top_k {
                checkpoint.model.set_top_k((k > 0).then_some(k));
            }
        }
        let reads = |checkpoint: &Checkpoint| {
            let config = checkpoint.model.config();
            (config.raw_features(), config.top_k)
        };
        if let Some((folder, _)) = folders.iter().zip(&models).find(|(_, m)| reads(m) != reads(&models[0])) {
            bail!(
                "{} and {} do not read the same data: features, index base, meaning of absent features and top_k \
                 of an ensemble have to agree",
                folders[0].display(),
                folder.display()
            );
        }
        for (folder, checkpoint) in folders.iter().zip(&models) {
            initial.warn_of_others(folder, checkpoint.model.config().training.get("init_feature"));
        }
        let on_device = |checkpoint: Checkpoint| {
            let device = compute::choose(asked, checkpoint.model.config())?;
            Ok((checkpoint, device))
        };
        models.into_iter().map(on_device).collect::<anyhow::Result<_>>().map(Models)
    }

    /// Opens data for the models.
    pub fn open(
        &self,
        data: &[PathBuf],
        text: &TextArgs,
        initial: &InitialArgs,
        labels: Labels,
    ) -> anyhow::Result<Dataset> {
        let features = self.0[0].0.model.config().raw_features();
        let mut data = source::open_for_model(data, text, labels, features)?;
        initial.attach(&mut data)?;
        if let Some(most) = initial.max_set_size {
            Batcher::new(&data, self.0[0].0.model.config())?.check_set_sizes(most)?;
        }
        Ok(data)
    }

    /// Scores `[N]` by row, of several models the mean of their scores, standardised within each set; and the rows that
    /// were reranked, `None` = all. `progress` is told the number of queries done, each counted once a model.
    pub fn score(
        &self,
        data: &Dataset,
        progress: impl Fn(usize),
    ) -> setrank::Result<(Vec<f32>, Option<Vec<bool>>)> {
        let mut of_models = Vec::with_capacity(self.0.len());
        let mut kept = None;
        for (number, (Checkpoint { model, parameters }, device)) in self.0.iter().enumerate() {
            let batcher = Batcher::new(data, model.config())?;
            let mut scorer = scorer::on(*device, model, parameters)?;
            let done_before = number * data.num_queries();
            of_models.push(scorer::score(&mut *scorer, &batcher, |done| progress(done_before + done))?);
            kept = batcher.kept().map(<[bool]>::to_vec);
        }
        let mut scores = mean_of_standardised(data, &of_models, kept.as_deref());
        if let Some(kept) = &kept {
            initial::rank_dropped_below(data, kept, &mut scores);
        }
        Ok((scores, kept))
    }

    /// Hands out the scores in the order of the original file as they are computed, if they come in that order: of one
    /// model that ranks all documents. Otherwise says `false` and has done nothing.
    pub fn stream(
        &self,
        data: &Dataset,
        mut out: impl FnMut(&[f32]) -> std::io::Result<()>,
    ) -> anyhow::Result<bool> {
        let [(Checkpoint { model, parameters }, device)] = &self.0[..] else { return Ok(false) };
        let batcher = Batcher::new(data, model.config())?;
        let in_order = data.positions().iter().enumerate().all(|(row, &position)| row as u64 == position);
        if !in_order || batcher.kept().is_some() {
            return Ok(false);
        }
        let mut scorer = scorer::on(*device, model, parameters)?;
        let bar = progress(data.num_queries());
        scorer::score_in_batches(&mut *scorer, &batcher, |batch, scores| -> anyhow::Result<()> {
            bar.set_position(batch.queries.last().map_or(0, |&query| query as u64 + 1));
            Ok(out(scores)?)
        })?;
        bar.finish_and_clear();
        Ok(true)
    }

    /// [`score`](Self::score) with a progress bar.
    pub fn score_with_progress(&self, data: &Dataset) -> setrank::Result<(Vec<f32>, Option<Vec<bool>>)> {
        let bar = progress(data.num_queries() * self.0.len());
        let scored = self.score(data, |done| bar.set_position(done as u64))?;
        bar.finish_and_clear();
        Ok(scored)
    }
}

/// Opens data for the models in `folders` and scores it.
pub fn score(
    folders: &[PathBuf],
    data: &[PathBuf],
    text: &TextArgs,
    initial: &InitialArgs,
    labels: Labels,
    asked: Asked,
) -> anyhow::Result<Scored> {
    let models = Models::load(folders, initial, asked)?;
    let data = models.open(data, text, initial, labels)?;
    let (scores, kept) = models.score_with_progress(&data)?;
    Ok(Scored { data, scores, kept })
}

fn progress(queries: usize) -> ProgressBar {
    ProgressBar::new(queries as u64).with_style(
        ProgressStyle::with_template("scoring {pos} of {len} queries {wide_bar} {eta} left")
            .expect("a valid template"),
    )
}
