//! The model against the same model in PyTorch: scores, losses and all gradients of the committed fixtures
//! (written by `tools/peers/export_fixtures.py` in f64 from float32 weights).

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use setrank::model::setrank::{Inputs, Keep, Workspace};
use setrank::ops::Scalar;
use setrank::ops::loss::{Loss, Scratch};
use setrank::train::Checkpoint;

struct Fixture {
    checkpoint: Checkpoint,
    bytes: Vec<u8>,
}

fn fixtures() -> Vec<(String, Fixture)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut folders: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|p| p.is_dir())
        .collect();
    folders.sort();
    assert!(folders.len() >= 11, "the fixtures are committed");
    folders
        .into_iter()
        .map(|folder| {
            let bytes = std::fs::read(folder.join("batch.safetensors")).unwrap();
            let name = folder.file_name().unwrap().to_string_lossy().into_owned();
            (name, Fixture { checkpoint: Checkpoint::load(&folder).unwrap(), bytes })
        })
        .collect()
}

fn values<T: bytemuck::Pod>(bytes: &[u8], name: &str) -> Vec<T> {
    let tensors = SafeTensors::deserialize(bytes).unwrap();
    let data = tensors.tensor(name).unwrap().data();
    data.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

type LossAndGradient = (Loss, f64, Vec<f64>);

impl Fixture {
    fn values<T: bytemuck::Pod>(&self, name: &str) -> Vec<T> {
        values(&self.bytes, name)
    }

    /// Scores, and loss and gradient of each loss, in precision `T`.
    fn run<T: Scalar>(&self) -> (Vec<f64>, Vec<LossAndGradient>) {
        let model = &self.checkpoint.model;
        let cast = |values: &[f32]| values.iter().map(|&v| T::from_f64(f64::from(v))).collect::<Vec<T>>();
        let params = cast(&self.checkpoint.parameters);
        let features = cast(&self.values::<f32>("features"));
        let offsets: Vec<usize> = self.values::<i64>("offsets").into_iter().map(|o| o as usize).collect();
        let labels = self.values::<f32>("labels");
        let documents = labels.len();
        let ordinals: Vec<Vec<i32>> = match model.config().num_rankings() {
            0 => Vec::new(),
            _ => self.values::<i32>("ordinals").chunks(documents).map(<[i32]>::to_vec).collect(),
        };
        let inputs = Inputs { features: &features, offsets: &offsets, ordinals: &ordinals };
        let mut workspace = Workspace::default();
        model.forward(&mut workspace, &params, inputs, Keep::ForBackward, None);
        let scores: Vec<f64> = workspace.scores().iter().map(|s| s.to_f64()).collect();
        let sets = (offsets.len() - 1) as f64;
        let losses = [Loss::AttentionRank, Loss::SoftmaxCrossEntropy].map(|loss| {
            let mut d_scores = vec![0.0; documents];
            let mut total = 0.0;
            let mut scratch = Scratch::default();
            for set in offsets.windows(2) {
                let rows = set[0]..set[1];
                let (scores, labels) = (&scores[rows.clone()], &labels[rows.clone()]);
                total += loss.of_set(&mut scratch, scores, labels, &mut d_scores[rows]);
            }
            let d_scores: Vec<T> = d_scores.iter().map(|d| T::from_f64(d / sets)).collect();
            let mut gradients = vec![T::ZERO; params.len()];
            let mut workspace = workspace.clone();
            model.backward(&mut workspace, &params, &mut gradients, inputs, &d_scores, None);
            (loss, total / sets, gradients.iter().map(|g| g.to_f64()).collect())
        });
        (scores, losses.into())
    }

    fn assert_matches<T: Scalar>(&self, name: &str, tolerance: f64) {
        let (scores, losses) = self.run::<T>();
        assert_close(&format!("{name}: scores"), &scores, &self.values::<f64>("scores"), tolerance);
        for (loss, value, gradient) in losses {
            let key = serde_json::to_value(loss).unwrap();
            let key = key.as_str().unwrap();
            assert_close(
                &format!("{name}: {key}"),
                &[value],
                &self.values(&format!("loss.{key}")),
                tolerance,
            );
            for parameter in self.checkpoint.model.layout().parameters() {
                let expected = self.values::<f64>(&format!("grad.{key}.{}", parameter.name));
                let what = format!("{name}: {key}: gradient of {}", parameter.name);
                assert_close(&what, &gradient[parameter.range()], &expected, tolerance);
            }
        }
    }
}

/// Within `tolerance` of the largest magnitude of the two (and of 1, as rounding of cancelling sums is absolute).
fn assert_close(what: &str, actual: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    let magnitude = expected.iter().fold(1.0f64, |max, v| max.max(v.abs()));
    for (index, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        assert!(
            (actual - expected).abs() <= tolerance * magnitude,
            "{what}[{index}]: {actual} is not {expected}"
        );
    }
}

#[test]
fn f64_matches_to_the_last_digits() {
    for (name, fixture) in fixtures() {
        fixture.assert_matches::<f64>(&name, 1e-12);
    }
}

#[test]
fn f32_matches_within_its_rounding() {
    for (name, fixture) in fixtures() {
        fixture.assert_matches::<f32>(&name, 1e-5);
    }
}

#[test]
fn losses_and_their_gradients_by_the_scores_match() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/losses.safetensors");
    let bytes = std::fs::read(path).unwrap();
    let (scores, labels) = (values::<f64>(&bytes, "scores"), values::<f32>(&bytes, "labels"));
    let offsets: Vec<usize> = values::<i64>(&bytes, "offsets").into_iter().map(|o| o as usize).collect();
    let mut scratch = Scratch::default();
    for loss in Loss::ALL {
        let mut gradient = vec![f64::NAN; scores.len()];
        let sum: f64 = offsets
            .windows(2)
            .map(|set| {
                let rows = set[0]..set[1];
                let (scores, labels) = (&scores[rows.clone()], &labels[rows.clone()]);
                loss.of_set(&mut scratch, scores, labels, &mut gradient[rows])
            })
            .sum();
        let key = serde_json::to_value(loss).unwrap();
        let key = key.as_str().unwrap();
        assert_close(key, &[sum], &values(&bytes, &format!("loss.{key}")), 1e-12);
        assert_close(
            &format!("gradient of {key}"),
            &gradient,
            &values(&bytes, &format!("grad.{key}")),
            1e-12,
        );
    }
}

#[test]
fn normalisation_makes_the_same_features() {
    for (name, fixture) in fixtures() {
        let config = fixture.checkpoint.model.config();
        let raw = fixture.values::<f32>("raw");
        let mut features = Vec::new();
        let width = config.input_size();
        for set in fixture.values::<i64>("offsets").windows(2) {
            let mut rows = vec![f32::NAN; (set[1] - set[0]) as usize * width];
            let raw = &raw[set[0] as usize * config.num_features..];
            for (raw, out) in raw.chunks_exact(config.num_features).zip(rows.chunks_exact_mut(width)) {
                config.normalize.apply(raw, out);
            }
            let order: Vec<usize> = (0..rows.len() / width).collect();
            config.normalize.compare_within_set(&mut rows, config.num_features, &order);
            features.extend(rows.into_iter().map(f64::from));
        }
        let expected: Vec<f64> = fixture.values::<f32>("features").into_iter().map(f64::from).collect();
        assert_close(&format!("{name}: features"), &features, &expected, 1e-6);
    }
}

#[test]
fn a_checkpoint_survives_saving() {
    let folder = tempfile::tempdir().unwrap();
    for (name, fixture) in fixtures() {
        let path = folder.path().join(name);
        fixture.checkpoint.save(&path).unwrap();
        let again = Checkpoint::load(&path).unwrap();
        assert_eq!(again.parameters, fixture.checkpoint.parameters);
        assert_eq!(again.model.config(), fixture.checkpoint.model.config());
    }
}
