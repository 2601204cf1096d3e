//! What makes SetRank a set model: scores permute as documents do, and no set knows of another.

use proptest::prelude::*;
use setrank::config::{Encoder, Input, ModelConfig, OrdinalAt, OrdinalConfig, OrdinalStart};
use setrank::data::Normalize;
use setrank::data::normalize::Kind;
use setrank::model::setrank::{Inputs, Keep, SetRank, Workspace};
use setrank::rng::{Rng, Stream};

const FEATURES: usize = 4;

/// A model away from its trivial initial values, and its parameters.
fn model(encoder: Encoder, input: Input, rankings: usize, hidden: usize) -> (SetRank, Vec<f32>) {
    let unit = [[0.0; FEATURES], [1.0; FEATURES]].concat();
    let config = ModelConfig {
        num_features: FEATURES,
        hidden_size: hidden,
        num_heads: 4,
        num_blocks: 2,
        ffn_size: 2 * hidden,
        num_inducing: 5,
        rbf_centers: 6,
        encoder,
        input,
        normalize: Normalize::fit(Kind::MinMax, &unit, FEATURES, false).unwrap(),
        ordinal: (rankings > 0).then_some(OrdinalConfig {
            rankings,
            n_max: 200,
            at: OrdinalAt::Input,
            start: OrdinalStart::Sampled,
        }),
        ..ModelConfig::default()
    };
    let model = SetRank::new(config).unwrap();
    let mut rng = Rng::new(11, Stream::Synth, 0);
    let mut parameters: Vec<f32> = model.layout().init(11);
    parameters.iter_mut().for_each(|p| *p += (0.05 * rng.normal()) as f32);
    (model, parameters)
}

/// Sets with features and, for each of `rankings`, an untied ranking.
#[derive(Clone, Debug)]
struct Sets {
    offsets: Vec<usize>,
    features: Vec<f32>,
    ordinals: Vec<Vec<i32>>,
}

impl Sets {
    fn draw(sizes: &[usize], rankings: usize, seed: u64) -> Self {
        let mut rng = Rng::new(seed, Stream::Synth, 1);
        let mut sets = Sets { offsets: vec![0], features: Vec::new(), ordinals: vec![Vec::new(); rankings] };
        for &size in sizes {
            sets.features.extend((0..size * FEATURES).map(|_| rng.uniform() as f32));
            for ordinals in &mut sets.ordinals {
                let mut ranks: Vec<i32> = (0..size as i32).collect();
                rng.shuffle(&mut ranks);
                ordinals.extend(ranks);
            }
            sets.offsets.push(sets.offsets[sets.offsets.len() - 1] + size);
        }
        sets
    }

    /// The documents of set number `set` in another order, ranks travelling with them.
    fn permuted(&self, set: usize, order: &[usize]) -> Self {
        let mut other = self.clone();
        let first = self.offsets[set];
        for (to, &from) in order.iter().enumerate() {
            let (to, from) = (first + to, first + from);
            other.features[to * FEATURES..(to + 1) * FEATURES]
                .copy_from_slice(&self.features[from * FEATURES..(from + 1) * FEATURES]);
            for (other, own) in other.ordinals.iter_mut().zip(&self.ordinals) {
                other[to] = own[from];
            }
        }
        other
    }

    fn only(&self, set: usize) -> Self {
        let rows = self.offsets[set]..self.offsets[set + 1];
        Sets {
            offsets: vec![0, rows.len()],
            features: self.features[rows.start * FEATURES..rows.end * FEATURES].to_vec(),
            ordinals: self.ordinals.iter().map(|ordinals| ordinals[rows.clone()].to_vec()).collect(),
        }
    }

    fn scores(&self, model: &SetRank, parameters: &[f32], keep: Keep) -> Vec<f32> {
        let mut workspace = Workspace::default();
        let inputs = Inputs { features: &self.features, offsets: &self.offsets, ordinals: &self.ordinals };
        model.forward(&mut workspace, parameters, inputs, keep, None);
        workspace.scores().to_vec()
    }
}

fn encoder() -> impl Strategy<Value = Encoder> {
    prop_oneof![Just(Encoder::Msab), Just(Encoder::Imsab)]
}

fn input() -> impl Strategy<Value = Input> {
    prop_oneof![Just(Input::Linear), Just(Input::Rbf)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn scores_permute_as_documents_do(
        encoder in encoder(),
        input in input(),
        rankings in 0usize..3,
        sizes in prop::collection::vec(1usize..90, 1..4),
        seed in any::<u64>(),
    ) {
        let (model, parameters) = model(encoder, input, rankings, 16);
        let sets = Sets::draw(&sizes, rankings, seed);
        let before = sets.scores(&model, &parameters, Keep::Nothing);
        let mut order: Vec<usize> = (0..sizes[0]).collect();
        Rng::new(seed, Stream::DocumentOrder, 0).shuffle(&mut order);
        let after = sets.permuted(0, &order).scores(&model, &parameters, Keep::Nothing);
        for (to, &from) in order.iter().enumerate() {
            prop_assert!(
                (after[to] - before[from]).abs() <= 2e-5 * (1.0 + before[from].abs()),
                "document {from} moved to {to}: {} became {}", before[from], after[to]
            );
        }
        prop_assert_eq!(&after[sizes[0]..], &before[sizes[0]..], "the other sets did not change");
    }

    #[test]
    fn a_set_does_not_know_the_others_of_its_batch(
        encoder in encoder(),
        input in input(),
        hidden in prop_oneof![Just(8usize), Just(64), Just(256)],
        sizes in prop::collection::vec(1usize..70, 1..6),
        seed in any::<u64>(),
    ) {
        let (model, parameters) = model(encoder, input, 1, hidden);
        let sets = Sets::draw(&sizes, 1, seed);
        let together = sets.scores(&model, &parameters, Keep::ForBackward);
        for set in 0..sizes.len() {
            let alone = sets.only(set).scores(&model, &parameters, Keep::Nothing);
            prop_assert_eq!(&together[sets.offsets[set]..sets.offsets[set + 1]], &alone[..], "set {}", set);
        }
    }
}

#[test]
fn documents_matter_to_each_other() {
    // Without this, a model that ignored the set would pass everything above.
    for encoder in [Encoder::Msab, Encoder::Imsab] {
        let (model, parameters) = model(encoder, Input::Linear, 0, 16);
        let sets = Sets::draw(&[6], 0, 5);
        let mut changed = sets.clone();
        changed.features[5 * FEATURES] += 0.5;
        let (before, after) = [&sets, &changed].map(|s| s.scores(&model, &parameters, Keep::Nothing)).into();
        assert!(before[..5].iter().zip(&after[..5]).all(|(a, b)| a != b), "{encoder:?}");
    }
}

#[test]
fn ranks_matter() {
    let (model, parameters) = model(Encoder::Imsab, Input::Linear, 2, 16);
    let sets = Sets::draw(&[6], 2, 5);
    let mut changed = sets.clone();
    changed.ordinals[1].swap(0, 1);
    let (before, after) = [&sets, &changed].map(|s| s.scores(&model, &parameters, Keep::Nothing)).into();
    assert_ne!(before, after);
}

/// Everything that is cut into pieces has more than one here: rows, output columns, φ columns, ordinal columns.
#[test]
fn the_number_of_threads_makes_no_difference() {
    for (encoder, input) in [(Encoder::Msab, Input::Linear), (Encoder::Imsab, Input::Rbf)] {
        let (model, parameters) = model(encoder, input, 2, 256);
        let sets = Sets::draw(&[180, 1, 90, 150, 40, 200], 2, 3);
        let inputs = Inputs { features: &sets.features, offsets: &sets.offsets, ordinals: &sets.ordinals };
        let d_scores: Vec<f32> = (0..sets.ordinals[0].len()).map(|i| ((i * 37) % 11) as f32 - 5.0).collect();
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let mut workspace = Workspace::default();
                let mut gradients = vec![0.0; parameters.len()];
                model.forward(&mut workspace, &parameters, inputs, Keep::ForBackward, None);
                model.backward(&mut workspace, &parameters, &mut gradients, inputs, &d_scores, None);
                let norm = setrank::train::optimizer::global_norm(&gradients, &mut Vec::new());
                (workspace.scores().to_vec(), gradients, norm)
            })
        };
        let one = run(1);
        assert!(one.1.len() > 1 << 18 && one.2 > 0.0);
        assert!(run(4) == one, "{encoder:?}, {input:?}");
    }
}
