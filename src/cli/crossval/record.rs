//! What the folder of a cross-validation says of itself: `crossval.toml`, the configuration that all runs share, and a
//! `result.json` beside each model, written last: a run that has it is whole.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use setrank::files::write_atomically;
use setrank::train::TrainConfig;

use crate::cli::train;

/// File name of the configuration in the folder.
const SETTINGS: &str = "crossval.toml";
/// File name of a run's result beside its model.
pub const RESULT: &str = "result.json";

/// Keys that change nothing in a run.
const FREE: [&str; 5] = ["threads", "device", "kernels", "fuse", "graphs"];

/// What a run was and what came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Number of the fold, from 1.
    pub fold: usize,
    pub seed: u64,
    /// Training queries.
    pub queries: usize,
    /// Steps taken.
    pub steps: u64,
    /// Epoch of the model that was kept.
    pub best_epoch: u64,
    /// The value that selected it.
    pub best: f64,
    /// Seconds of training, validations included.
    pub seconds: f64,
    /// Checksum of the training and validation data.
    pub data: u32,
}

/// Reads the record of the run in `folder`, if it is whole.
pub fn read(folder: &Path) -> anyhow::Result<Option<Record>> {
    let path = folder.join(RESULT);
    match std::fs::read_to_string(&path) {
        Ok(text) => serde_json::from_str(&text)
            .map(Some)
            .with_context(|| format!("{}: no result of a run; see --overwrite", path.display())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(setrank::Error::io("read", &path, e).into()),
    }
}

/// The folder of a run.
pub fn run_folder(folder: &Path, fold: usize, seed: u64) -> PathBuf {
    folder.join(format!("fold{fold}")).join(format!("seed{seed}"))
}

/// The configuration and the parts, as [`SETTINGS`] has them.
fn settings(config: &TrainConfig, parts: &[PathBuf]) -> anyhow::Result<toml::Table> {
    let mut table = toml::Table::try_from(config)?;
    FREE.iter().for_each(|key| {
        table.remove(*key);
    });
    // Decided here, fold by fold.
    ["train", "valid", "seed"].iter().for_each(|key| {
        table.remove(*key);
    });
    table.insert("parts".into(), toml::Value::try_from(parts)?);
    Ok(table)
}

/// Refuses a folder that holds something else, or runs of another configuration.
pub fn check(folder: &Path, config: &TrainConfig, parts: &[PathBuf], overwrite: bool) -> anyhow::Result<()> {
    let path = folder.join(SETTINGS);
    let shown = folder.display();
    if !path.exists() {
        if folder.exists() && folder.read_dir()?.next().is_some() {
            bail!("{shown} holds something else than a cross-validation: give another folder with -o");
        }
        return Ok(());
    }
    if overwrite {
        return Ok(());
    }
    let (before, now) = (train::read_toml(&path)?, settings(config, parts)?);
    let keys = before.keys().chain(now.keys());
    if let Some(key) = keys.into_iter().find(|key| before.get(*key) != now.get(*key)) {
        let value = |table: &toml::Table| table.get(key).map_or("not set".to_owned(), ToString::to_string);
        bail!(
            "the runs in {shown} have `{key}` {}, not {}: give another folder with -o, or --overwrite to replace them",
            value(&before),
            value(&now)
        );
    }
    Ok(())
}

/// Makes the folder one of this configuration; with `overwrite` without the runs that it holds.
pub fn write(folder: &Path, config: &TrainConfig, parts: &[PathBuf], overwrite: bool) -> anyhow::Result<()> {
    if overwrite {
        for entry in folder.read_dir().map_err(|e| setrank::Error::io("read", folder, e))? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() && name.strip_prefix("fold").is_some_and(|n| n.parse::<usize>().is_ok()) {
                std::fs::remove_dir_all(&path).map_err(|e| setrank::Error::io("remove", &path, e))?;
            }
        }
    }
    let text = settings(config, parts)?.to_string();
    Ok(write_atomically(&folder.join(SETTINGS), |w| w.write_all(text.as_bytes()))?)
}
