//! Reading data, for every command that does: options of text files, and one `open` for text and stores.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::bail;
use indicatif::{ProgressBar, ProgressStyle};
use setrank::data::letor::{self, IndexBase, Labels, LetorOptions};
use setrank::data::{Absent, Dataset, RawFeatures, store};
use setrank::train::checkpoint::{CONFIG, WEIGHTS};

use super::interrupt;

/// How text files are read; a .sets file has all this settled.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Reading text")]
pub struct TextArgs {
    /// File with the sizes of the sets, one a line, for text without `qid:`; given once for all input files
    /// together, or once for each
    #[arg(long, value_name = "FILE")]
    pub query_sizes: Vec<PathBuf>,

    /// Number of features; without it the largest index decides. An index beyond it is an error
    #[arg(long, value_name = "N")]
    pub features: Option<u32>,

    /// First feature index; `auto` is 0 where index 0 occurs, else 1 [default: auto]
    #[arg(long, value_name = "BASE")]
    pub index_base: Option<IndexBase>,

    /// What a feature that a line does not mention means: not known, or 0 as in sparse files [default: missing]
    #[arg(long, value_name = "MEANING")]
    pub absent: Option<Absent>,

    /// Added to every label; what is negative then is unjudged
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub label_offset: Option<f32>,
}

impl TextArgs {
    /// The options for the reader.
    pub fn letor_options(&self, labels: Labels) -> LetorOptions {
        LetorOptions {
            index_base: self.index_base.unwrap_or_default(),
            features: self.features,
            absent: self.absent.unwrap_or_default(),
            label_offset: self.label_offset.unwrap_or(0.0),
            query_sizes: self.query_sizes.clone(),
            labels,
            ..LetorOptions::default()
        }
    }

    /// Refuses options that contradict what the store `path` holds.
    fn check_store(&self, path: &Path, data: &Dataset) -> anyhow::Result<()> {
        let columns = data.columns();
        let path = path.display();
        if !self.query_sizes.is_empty() {
            bail!("--query-sizes: {path} is a .sets file and knows the sizes of its sets");
        }
        if self.label_offset.is_some_and(|offset| offset != 0.0) {
            bail!(
                "--label-offset: {path} is a .sets file, whose labels are settled; import the text with it"
            );
        }
        if let Some(features) = self.features.filter(|&features| features != columns.count) {
            bail!("--features {features}: {path} is a .sets file of {} features", columns.count);
        }
        let first = match self.index_base {
            None | Some(IndexBase::Auto) => columns.first_index,
            Some(IndexBase::Zero) => 0,
            Some(IndexBase::One) => 1,
        };
        if first != columns.first_index {
            bail!(
                "--index-base {first}: {path} is a .sets file whose features are counted from {}",
                columns.first_index
            );
        }
        if self.absent.is_some_and(|absent| absent != columns.absent) {
            let (read_as, asked) = match columns.absent {
                Absent::Missing => ("missing", "zero"),
                Absent::Zero => ("zero", "missing"),
            };
            bail!("--absent {asked}: {path} is a .sets file, imported with --absent {read_as}");
        }
        Ok(())
    }
}

/// Opens data: one .sets file, recognised by its first bytes, or text files read as one.
pub fn open(paths: &[PathBuf], text: &TextArgs, labels: Labels) -> anyhow::Result<Dataset> {
    open_with(paths, text, &text.letor_options(labels))
}

/// Opens data for a model: text is read with its first index, width and meaning of absent features, so that an
/// index it does not have is an error at its line; a store has to fit, which [`Dataset::aligned_to`] checks.
pub fn open_for_model(
    paths: &[PathBuf],
    text: &TextArgs,
    labels: Labels,
    model: RawFeatures,
) -> anyhow::Result<Dataset> {
    let asked = text.letor_options(labels);
    let index_base = if model.first_index == 0 { IndexBase::Zero } else { IndexBase::One };
    if let Some(features) = text.features.filter(|&features| features != model.count) {
        bail!("--features {features}: the model reads {} features", model.count);
    }
    if asked.index_base != IndexBase::Auto && asked.index_base != index_base {
        bail!("--index-base: the model counts its features from {}", model.first_index);
    }
    if text.absent.is_some_and(|absent| absent != model.absent) {
        bail!("--absent: the model was trained with the other meaning of an absent feature");
    }
    let options = LetorOptions { index_base, features: Some(model.count), absent: model.absent, ..asked };
    let data = open_with(paths, text, &options)?;
    data.aligned_to(model)?;
    let last = (u64::from(model.first_index) + u64::from(model.count)).saturating_sub(1);
    if data.columns().largest.is_none_or(|largest| u64::from(largest) < last) {
        log::warn!(
            "the model reads features up to {last}, the data {}: the others are taken as absent",
            data.columns()
                .largest
                .map_or("has none".to_owned(), |largest| format!("has them up to {largest}"))
        );
    }
    Ok(data)
}

fn open_with(paths: &[PathBuf], text: &TextArgs, options: &LetorOptions) -> anyhow::Result<Dataset> {
    let Some(path) = store_among(paths)? else {
        let progress = Progress::new(paths);
        return Ok(letor::read_with(paths, options, &|bytes| progress.at(bytes))?);
    };
    let data = store::open(path)?;
    text.check_store(path, &data)?;
    if options.labels == Labels::Required && !data.has_labels() {
        bail!("{}: the documents have no labels", path.display());
    }
    Ok(data)
}

/// The store among the inputs, which must be the only one then.
pub fn store_among(paths: &[PathBuf]) -> anyhow::Result<Option<&Path>> {
    for path in paths {
        if store::is_store(path)? {
            if paths.len() > 1 {
                bail!("{} is a .sets file: it cannot be read together with other files", path.display());
            }
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Refuses to write over what is read, files and those of model folders: it would be gone.
pub fn refuse_to_overwrite<'a>(
    inputs: impl IntoIterator<Item = &'a PathBuf>,
    output: &Path,
) -> anyhow::Result<()> {
    // What does not exist yet cannot be lost.
    let Ok(output) = output.canonicalize() else { return Ok(()) };
    for input in inputs {
        let Ok(path) = input.canonicalize() else { continue };
        if output == path && !path.is_dir() {
            bail!("{} is both input and output: write to another file", input.display());
        }
        if [CONFIG, WEIGHTS].iter().any(|file| output == path.join(file)) {
            bail!("{} is a part of the model {}: write to another file", output.display(), input.display());
        }
    }
    Ok(())
}

/// A bar for long reads; nothing where stderr is no terminal.
pub struct Progress {
    bar: ProgressBar,
    interrupted: Option<&'static AtomicBool>,
}

impl Progress {
    /// A bar for reading `paths`; without end where their size is not known.
    pub fn new(paths: &[PathBuf]) -> Self {
        let sizes = paths.iter().map(|path| match std::fs::metadata(path) {
            Ok(file) if file.is_file() => Some(file.len()),
            _ => None,
        });
        let bar = match sizes.sum::<Option<u64>>() {
            Some(total) => ProgressBar::new(total).with_style(
                ProgressStyle::with_template(
                    "{bytes} of {total_bytes} {wide_bar} {bytes_per_sec}, {eta} left",
                )
                .expect("a valid template"),
            ),
            None => ProgressBar::new_spinner().with_style(
                ProgressStyle::with_template("{bytes} {bytes_per_sec}").expect("a valid template"),
            ),
        };
        Progress { bar, interrupted: None }
    }

    /// A signal from here on ends the reading at its next step, so that its temporary files are removed.
    pub fn stopping_at_signals(mut self) -> Self {
        self.interrupted = Some(interrupt::cooperate());
        self
    }

    /// So many bytes are read.
    pub fn at(&self, bytes: u64) -> setrank::Result<()> {
        if self.interrupted.is_some_and(|asked| asked.load(Ordering::Relaxed)) {
            return Err(setrank::Error::data("interrupted"));
        }
        self.bar.set_position(bytes);
        Ok(())
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
