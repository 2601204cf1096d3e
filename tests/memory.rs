//! The estimate of a batch's memory against what the buffers of a step really hold.

use setrank::config::{Encoder, Input, ModelConfig};
use setrank::data::normalize::{Kind, Normalize};
use setrank::model::memory::{Activations, fixed, packed_anew};
use setrank::model::setrank::{Keep, Workspace};
use setrank::model::{Inputs, SetRank};

/// Bytes that a workspace holds after a step on `sets` sets of `size` documents: of the batch, of packed weights, and others.
fn held(
    mut workspace: Workspace<f32>,
    config: &ModelConfig,
    keep: Keep,
    [sets, size]: [usize; 2],
) -> [usize; 3] {
    let model = SetRank::new(config.clone()).unwrap();
    let parameters: Vec<f32> = model.layout().init(1);
    let mut gradients = vec![0.0f32; parameters.len()];
    let features = vec![0.5f32; sets * size * config.input_size()];
    let offsets: Vec<usize> = (0..=sets).map(|set| set * size).collect();
    let d_scores = vec![1.0f32; sets * size];
    let inputs = Inputs { features: &features, offsets: &offsets, ordinals: &[] };
    model.forward(&mut workspace, &parameters, inputs, keep, None);
    if keep == Keep::ForBackward {
        model.backward(&mut workspace, &parameters, &mut gradients, inputs, &d_scores, None);
    }
    let (of_batch, others) = workspace.bytes();
    [of_batch, workspace.packed_bytes(), others - workspace.packed_bytes()]
}

#[test]
fn the_estimate_is_what_a_step_holds() {
    let config = |hidden_size, encoder, input, inner_ffn| {
        let minmax = Normalize {
            kind: Kind::MinMax,
            center: vec![0.0; 10],
            scale: vec![1.0; 10],
            ..Normalize::default()
        };
        ModelConfig {
            num_features: 10,
            hidden_size,
            num_heads: 4,
            num_blocks: 3,
            ffn_size: 160,
            num_inducing: 7,
            rbf_centers: 4,
            encoder,
            input,
            inner_ffn,
            normalize: if input == Input::Rbf { minmax } else { Normalize::default() },
            ..ModelConfig::default()
        }
    };
    for (encoder, inner_ffn) in [(Encoder::Msab, true), (Encoder::Imsab, true), (Encoder::Imsab, false)] {
        for input in [Input::Linear, Input::Rbf] {
            for keep in [Keep::Nothing, Keep::ForBackward] {
                // Panels of weights are filled up where widths are no multiples of 32.
                for (hidden, sets, size) in [(64, 4, 700), (64, 100, 20), (64, 1, 3), (80, 4, 20)] {
                    let config = config(hidden, encoder, input, inner_ffn);
                    let [of_batch, packed, others] = held(Workspace::default(), &config, keep, [sets, size]);
                    let what = format!("{encoder:?} {inner_ffn} {input:?} {keep:?}, {sets} sets of {size}");
                    // One set has its points' gradients in other buffers.
                    if sets > 1 {
                        assert_eq!(
                            of_batch,
                            Activations::new(&config, keep).of_batch(sets * size, sets),
                            "{what}"
                        );
                    }
                    let bound = fixed(&config, rayon::current_num_threads(), size);
                    assert!(others <= bound, "{what}: {others} held, at most {bound} expected");
                    let bound = packed_anew(&config);
                    assert!(packed <= bound, "{what}: {packed} of weights, at most {bound} expected");
                    if keep == Keep::Nothing {
                        let once = held(Workspace::of_same_parameters(), &config, keep, [sets, size]);
                        assert_eq!((once[0], once[2]), (of_batch, others), "{what}, packed once");
                        let parameters =
                            size_of::<f32>() * SetRank::new(config.clone()).unwrap().layout().len();
                        assert!(
                            parameters / 2 < once[1] && once[1] < parameters * 3 / 2,
                            "{what}: {} of weights packed once, {parameters} of parameters",
                            once[1]
                        );
                    }
                }
            }
        }
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn a_peak_that_begins_anew_is_without_what_was_freed() {
    use setrank::bench::machine::{peak_rss, restart_peak_rss};

    // Pieces that are too small to be mapped one by one, and a last one that keeps the heap from shrinking by itself.
    let pieces: Vec<Vec<u8>> = (0..2048).map(|_| std::hint::black_box(vec![1; 64 << 10])).collect();
    let last = std::hint::black_box(vec![1u8; 64 << 10]);
    let before = peak_rss().unwrap();
    drop(pieces);
    restart_peak_rss();
    let after = peak_rss().unwrap();
    assert!(after + (64 << 20) < before, "{after} of {before}");
    drop(last);
}
