//! A model on disk: a folder with `model.safetensors` (float32 master weights) and `config.json`, enough to score
//! raw feature rows with nothing else.

use std::collections::HashMap;
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};

use crate::config::{FORMAT_VERSION, ModelConfig};
use crate::files::write_atomically;
use crate::model::SetRank;
use crate::{Error, Result};

/// File name of the weights in a model folder.
pub const WEIGHTS: &str = "model.safetensors";
/// File name of the configuration in a model folder.
pub const CONFIG: &str = "config.json";

/// A model and its parameters.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The model.
    pub model: SetRank,
    /// Its parameters, laid out as the model's [`ParamLayout`](crate::model::ParamLayout) says.
    pub parameters: Vec<f32>,
}

impl Checkpoint {
    /// Reads the model in `folder`.
    pub fn load(folder: &Path) -> Result<Self> {
        let model = SetRank::new(load_config(folder)?)?;
        let path = folder.join(WEIGHTS);
        let bytes = std::fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
        let (tensors, _) = parse(&path, &bytes)?;
        let layout = model.layout();
        let mut parameters = vec![0.0; layout.len()];
        for parameter in layout.parameters() {
            read_tensor(
                &path,
                &tensors,
                &parameter.name,
                &parameter.shape,
                &mut parameters[parameter.range()],
            )?;
        }
        let known: std::collections::HashSet<&str> =
            layout.parameters().iter().map(|p| p.name.as_str()).collect();
        if let Some(unknown) = tensors.names().into_iter().find(|name| !known.contains(name)) {
            return Err(Error::damaged(
                &path,
                format!("holds `{unknown}`, which the model of {CONFIG} has not"),
            ));
        }
        Ok(Checkpoint { model, parameters })
    }

    /// Writes the model to `folder`, which is created where needed: weights first, then the configuration.
    pub fn save(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder).map_err(|e| Error::io("create", folder, e))?;
        let named = self.model.layout().parameters().iter().map(|parameter| {
            (parameter.name.clone(), parameter.shape.clone(), &self.parameters[parameter.range()])
        });
        write_tensors(&folder.join(WEIGHTS), named, serde_json::Value::Null)?;
        let json = serde_json::to_string_pretty(self.model.config()).expect("a configuration is plain data");
        write_atomically(&folder.join(CONFIG), |w| writeln!(w, "{json}"))
    }
}

/// Reads the configuration of the model in `folder`.
pub fn load_config(folder: &Path) -> Result<ModelConfig> {
    let path = folder.join(CONFIG);
    if !path.exists() && folder.exists() {
        return Err(Error::data(format!("{} is not a model folder: it has no {CONFIG}", folder.display())));
    }
    let text = std::fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
    let value: serde_json::Value =
        serde_json::from_slice(&text).map_err(|e| Error::damaged(&path, e.to_string()))?;
    if let Some(version) = value.get("format_version").and_then(serde_json::Value::as_u64)
        && version > u64::from(FORMAT_VERSION)
    {
        return Err(Error::damaged(
            &path,
            format!(
                "format_version is {version}: this setrank reads up to {FORMAT_VERSION}; a newer one is needed"
            ),
        ));
    }
    let config = ModelConfig::deserialize(&value).map_err(|error| {
        let place = wrong_key(&value).map(|key| format!("key `{key}`: ")).unwrap_or_default();
        Error::damaged(&path, format!("{place}{error}"))
    })?;
    config.validate().map_err(|e| Error::damaged(&path, e.to_string()))?;
    Ok(config)
}

/// The first key of a configuration that is not understood, by its path. Every key may be absent, so that each can be read
/// alone.
fn wrong_key(config: &serde_json::Value) -> Option<String> {
    let alone = |key: &str, value| serde_json::Value::Object([(key.to_owned(), value)].into_iter().collect());
    let is_wrong = |config: &serde_json::Value| ModelConfig::deserialize(config).is_err();
    let (key, value) =
        config.as_object()?.iter().find(|(key, value)| is_wrong(&alone(key, (*value).clone())))?;
    let inner = value.as_object().and_then(|inner| {
        inner.iter().find(|(name, value)| is_wrong(&alone(key, alone(name, (*value).clone()))))
    });
    Some(inner.map_or_else(|| key.clone(), |(name, _)| format!("{key}.{name}")))
}

/// What this program adds to a safetensors file, as its metadata entry [`METADATA`]; other writers have none.
#[derive(Serialize, Deserialize)]
struct Metadata {
    /// Sum of the CRC-32C of each tensor's name and bytes, and of `progress` where there is any.
    checksum: u32,
    /// How far a training run is.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    progress: serde_json::Value,
}

/// One entry for all: several would stand in random order, and equal files are to have equal bytes.
const METADATA: &str = "setrank";

/// Indexes the bytes of a safetensors file and checks its checksum where it has one; also the progress in it.
pub(super) fn parse<'a>(path: &Path, bytes: &'a [u8]) -> Result<(SafeTensors<'a>, serde_json::Value)> {
    let not_whole = |e| Error::damaged(path, format!("not a whole safetensors file: {e}"));
    let tensors = SafeTensors::deserialize(bytes).map_err(not_whole)?;
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(not_whole)?;
    let Some(entry) = header.metadata().as_ref().and_then(|entries| entries.get(METADATA)) else {
        return Ok((tensors, serde_json::Value::Null));
    };
    let metadata: Metadata = serde_json::from_str(entry)
        .map_err(|e| Error::damaged(path, format!("metadata entry `{METADATA}`: {e}")))?;
    let parts = tensors.iter().map(|(name, tensor)| (name, tensor.data()));
    if checksum(parts, &metadata.progress) != metadata.checksum {
        return Err(Error::damaged(
            path,
            "its checksum does not fit: the file was altered after it was written",
        ));
    }
    Ok((tensors, metadata.progress))
}

/// Does not depend on the order of the tensors.
fn checksum<'a>(tensors: impl Iterator<Item = (&'a str, &'a [u8])>, progress: &serde_json::Value) -> u32 {
    let of_progress = if progress.is_null() { 0 } else { crc32c::crc32c(progress.to_string().as_bytes()) };
    tensors
        .map(|(name, data)| crc32c::crc32c_append(crc32c::crc32c(name.as_bytes()), data))
        .fold(of_progress, u32::wrapping_add)
}

/// Copies the float32 tensor `name` of `shape` to `out`.
pub(super) fn read_tensor(
    path: &Path,
    tensors: &SafeTensors<'_>,
    name: &str,
    shape: &[usize],
    out: &mut [f32],
) -> Result<()> {
    let tensor = tensors.tensor(name).map_err(|_| Error::damaged(path, format!("lacks `{name}`")))?;
    if tensor.shape() != shape || tensor.dtype() != Dtype::F32 {
        return Err(Error::damaged(
            path,
            format!(
                "`{name}` is {:?} {:?}, but {CONFIG} asks for F32 {shape:?}",
                tensor.dtype(),
                tensor.shape()
            ),
        ));
    }
    for (out, bytes) in out.iter_mut().zip(tensor.data().chunks_exact(4)) {
        *out = f32::from_le_bytes(bytes.try_into().expect("four bytes"));
    }
    if let Some(index) = out.iter().position(|v| !v.is_finite()) {
        return Err(Error::damaged(path, format!("`{name}` holds {} at {index}", out[index])));
    }
    Ok(())
}

/// Writes float32 tensors, their checksum and the progress of a run as a safetensors file.
pub(super) fn write_tensors<'a>(
    path: &Path,
    tensors: impl Iterator<Item = (String, Vec<usize>, &'a [f32])>,
    progress: serde_json::Value,
) -> Result<()> {
    let views: Vec<(String, TensorView<'a>)> = tensors
        .map(|(name, shape, values)| {
            let view = TensorView::new(Dtype::F32, shape, bytemuck::cast_slice(values));
            (name, view.expect("a shape of the layout"))
        })
        .collect();
    let checksum = checksum(views.iter().map(|(name, view)| (name.as_str(), view.data())), &progress);
    let metadata = serde_json::to_string(&Metadata { checksum, progress }).expect("plain data");
    let entry = HashMap::from([(METADATA.to_owned(), metadata)]);
    let bytes = safetensors::serialize(views, Some(entry)).expect("names are unique and shapes fit");
    write_atomically(path, |w| w.write_all(&bytes))
}
