//! The parts of a cross-validation: opened, told apart, and fit for their roles in every fold before the first run.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use setrank::config::ModelConfig;
use setrank::data::batch::Batcher;
use setrank::data::concat::columns_of;
use setrank::data::letor::Labels;
use setrank::data::{Columns, Dataset, initial};
use setrank::eval::{Conventions, Metric, evaluate};
use setrank::train::TrainConfig;
use setrank::train::crossval::Fold;
use setrank::train::epoch::BatchSize;
use setrank::train::state::fingerprint;
use setrank::train::trainer::check_selection;

use crate::cli::{source, train};

/// The parts that folds need.
pub struct Parts<'a> {
    paths: &'a [PathBuf],
    /// `None` where no fold needs the part.
    data: Vec<Option<Dataset>>,
    /// Whether parts are tested on.
    test: bool,
}

impl<'a> Parts<'a> {
    /// Opens the parts that `folds` need; without `test` not those that are only tested on. Refuses a part that is given
    /// twice: a model would be measured on what it has learned.
    pub fn open(
        paths: &'a [PathBuf],
        folds: &[Fold],
        config: &TrainConfig,
        test: bool,
    ) -> anyhow::Result<Self> {
        let canonical: Vec<PathBuf> =
            paths.iter().map(|path| path.canonicalize().unwrap_or_else(|_| path.clone())).collect();
        refuse_equal(paths, &canonical, "are the same file")?;
        let is_needed = |part: usize| {
            folds
                .iter()
                .any(|fold| fold.train.contains(&part) || fold.valid == part || (fold.test == part && test))
        };
        let sources = initial::InitialSources { files: Vec::new(), features: config.init_feature.clone() };
        let open = |path: &Path| -> anyhow::Result<Dataset> {
            let mut data = source::open(&[path.to_path_buf()], &train::text_args(config), Labels::Required)?;
            initial::attach(&mut data, &sources)?;
            Ok(data)
        };
        let data = paths
            .iter()
            .enumerate()
            .map(|(part, path)| is_needed(part).then(|| open(path)).transpose())
            .collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Parts { paths, data, test })
    }

    /// Refuses parts of equal data, and parts that do not suit their roles in one of `folds`: what would otherwise end a
    /// later run, or the evaluation after all of them.
    pub fn check(
        &self,
        folds: &[Fold],
        config: &TrainConfig,
        metrics: &[Metric],
        conventions: &Conventions,
    ) -> anyhow::Result<()> {
        folds.iter().try_for_each(|fold| self.check_fold(fold, config, metrics, conventions))?;
        // Those that are not opened are equal to nothing.
        let prints: Vec<Result<u32, usize>> = self
            .data
            .iter()
            .enumerate()
            .map(|(part, data)| data.as_ref().map(fingerprint).ok_or(part))
            .collect();
        refuse_equal(self.paths, &prints, "hold the same data")
    }

    /// The data of the parts, `None` where no fold needs it.
    pub fn into_data(self) -> Vec<Option<Dataset>> {
        self.data
    }

    fn check_fold(
        &self,
        fold: &Fold,
        config: &TrainConfig,
        metrics: &[Metric],
        conventions: &Conventions,
    ) -> anyhow::Result<()> {
        let train: Vec<&Dataset> = fold.train.iter().map(|&part| self.part(part)).collect();
        let columns =
            columns_of(&train).with_context(|| format!("fold {}: the parts to train on", fold.number))?;
        if !train.iter().any(|data| data.has_relevant()) {
            bail!(
                "fold {} has no relevant document to train on: no label is above 0 (see --label-offset)",
                fold.number
            );
        }
        let rankings = train[0].num_initial();
        let model = ModelConfig {
            num_features: columns.count as usize,
            index_base: columns.first_index,
            absent: columns.absent,
            ordinal: config.ordinal_config(rankings),
            top_k: (config.top_k > 0 && rankings > 0).then_some(config.top_k),
            ..ModelConfig::default()
        };
        let measured = [(fold.valid, "validates on"), (fold.test, "tests on")];
        let measured = &measured[..if self.test { 2 } else { 1 }];
        for (part, does) in fold.train.iter().map(|&part| (part, "trains on")).chain(measured.iter().copied())
        {
            let data = self.part(part);
            let role =
                || format!("fold {} {does} part {}, {}", fold.number, part + 1, self.paths[part].display());
            // Alignment, rankings and the rows of ordinal tables.
            let batcher = match Batcher::new(data, &model) {
                Ok(batcher) => batcher,
                Err(error) => bail!("{}: {error}{}", role(), self.advice(data, columns)),
            };
            batcher.check_set_sizes(config.max_set_size).with_context(role)?;
            if does == "trains on" {
                BatchSize::of(config).check(&batcher).with_context(role)?;
                continue;
            }
            if !data.has_relevant() {
                bail!("{}: it has no relevant document: no label is above 0 (see --label-offset)", role());
            }
            if part == fold.valid {
                check_selection(config, data).with_context(role)?;
            }
            // Labels that a metric has no value for; the scores do not matter.
            evaluate(data, &vec![0.0f32; data.num_documents()], None, metrics, conventions)
                .with_context(role)?;
        }
        Ok(())
    }

    /// What to do where `data` has features that the training data, of `columns`, has not.
    fn advice(&self, data: &Dataset, columns: Columns) -> String {
        let of_data = data.columns();
        if of_data.least.is_some_and(|least| least < columns.first_index) {
            return "; read all parts with --index-base 0".to_owned();
        }
        let end = |columns: Columns| columns.first_index + columns.count;
        if of_data.largest.is_none_or(|largest| largest < end(columns)) {
            return String::new();
        }
        let widest = self.data.iter().flatten().map(|data| end(data.columns())).max().unwrap_or(0);
        format!(
            "; give --features {}, to `import` where the parts are .sets files",
            widest.saturating_sub(columns.first_index)
        )
    }

    fn part(&self, number: usize) -> &Dataset {
        self.data[number].as_ref().expect("opened, as a fold needs it")
    }
}

/// Refuses two parts of which `keys` says the same.
fn refuse_equal<K: PartialEq>(paths: &[PathBuf], keys: &[K], how: &str) -> anyhow::Result<()> {
    for (later, key) in keys.iter().enumerate() {
        if let Some(earlier) = keys[..later].iter().position(|other| other == key) {
            bail!(
                "the parts {} and {} {how}: {} and {}",
                earlier + 1,
                later + 1,
                paths[earlier].display(),
                paths[later].display()
            );
        }
    }
    Ok(())
}
