//! The estimate of a batch's memory against what the buffers of a step really hold.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

use setrank::config::{Encoder, Input, ModelConfig};
use setrank::data::normalize::{Kind, Normalize};
use setrank::model::memory::Activations;
use setrank::model::setrank::{Keep, Workspace};
use setrank::model::{Inputs, SetRank};

/// Bytes that are allocated and not yet freed.
static LIVE: AtomicIsize = AtomicIsize::new(0);

struct Tracking;

// SAFETY: every call goes to the system's allocator as it is; tracking touches nothing but an atomic number.
unsafe impl GlobalAlloc for Tracking {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Tracking = Tracking;

/// Bytes that a workspace holds after a step on `sets` sets of `size` documents.
fn held(config: &ModelConfig, keep: Keep, sets: usize, size: usize) -> f64 {
    let model = SetRank::new(config.clone()).unwrap();
    let parameters: Vec<f32> = model.layout().init(1);
    let mut gradients = vec![0.0f32; parameters.len()];
    let features = vec![0.5f32; sets * size * config.input_size()];
    let offsets: Vec<usize> = (0..=sets).map(|set| set * size).collect();
    let d_scores = vec![1.0f32; sets * size];
    let inputs = Inputs { features: &features, offsets: &offsets, ordinals: &[] };
    let before = LIVE.load(Ordering::Relaxed);
    let mut workspace = Workspace::default();
    model.forward(&mut workspace, &parameters, inputs, keep, None);
    if keep == Keep::ForBackward {
        model.backward(&mut workspace, &parameters, &mut gradients, inputs, &d_scores, None);
    }
    (LIVE.load(Ordering::Relaxed) - before) as f64
}

// One test, so that nothing else allocates meanwhile.
#[test]
fn the_estimate_is_what_a_step_holds() {
    let config = |encoder, input| {
        let minmax = Normalize {
            kind: Kind::MinMax,
            center: vec![0.0; 10],
            scale: vec![1.0; 10],
            ..Normalize::default()
        };
        ModelConfig {
            num_features: 10,
            hidden_size: 64,
            num_heads: 4,
            num_blocks: 3,
            ffn_size: 160,
            num_inducing: 7,
            rbf_centers: 4,
            encoder,
            input,
            normalize: if input == Input::Rbf { minmax } else { Normalize::default() },
            ..ModelConfig::default()
        }
    };
    // Threads start, and take the buffers that they keep for products.
    held(&config(Encoder::Msab, Input::Linear), Keep::ForBackward, 4, 500);
    for encoder in [Encoder::Msab, Encoder::Imsab] {
        for input in [Input::Linear, Input::Rbf] {
            for keep in [Keep::Nothing, Keep::ForBackward] {
                for (sets, size) in [(4, 500), (100, 20)] {
                    let config = config(encoder, input);
                    let held = held(&config, keep, sets, size);
                    let estimate = Activations::new(&config, keep).of_batch(sets * size, sets);
                    // What is held per thread, and the room that growing vectors leave, are not in the estimate.
                    assert!(
                        (held / estimate - 1.0).abs() < 0.12,
                        "{encoder:?} {input:?} {keep:?}, {sets} sets of {size}: {held} held, {estimate} estimated"
                    );
                }
            }
        }
    }
}
