//! Problems of attention on a GPU, their exact answers, and what a kernel's answers are held against.

mod backward;
mod forward;
pub mod naive;
pub mod warpgroups;

use std::ops::Range;
use std::sync::OnceLock;

pub use backward::{BackwardProblem, Gradients};
pub use forward::Answer;
use half::bf16;
pub use naive::{Step, StepProblem};

use super::tiles::whole_sets;
use super::{
    Attention, AttentionPlan, AttentionScratch, BackwardWarpgroups, DeviceAttention, ForwardWarpgroups,
    Heads, Roles, Rows,
};
use crate::device::choice::Fusion;
use crate::device::{DeviceError, Gpu, Limits};
use crate::ops::check::rounding::to_bf16;
use crate::ops::check::{Checked, Deviation, SEED, deviation};
use crate::ops::dropout::Dropout;
use crate::ops::values::{narrow, transposed};
use crate::rng::{Rng, Stream};
use forward::Reference;

/// Attention of bf16 queries, keys and values.
#[derive(Clone, Debug)]
pub struct Problem {
    roles: Roles,
    offsets: Vec<usize>,
    heads: Heads,
    q: Vec<bf16>,
    kv: Vec<bf16>,
    dropout: Option<Dropout>,
    wgmma: bool,
    fuse: Fusion,
    reference: OnceLock<Reference>,
}

/// The rows of one set.
struct Set {
    number: usize,
    documents: usize,
    queries: Range<usize>,
    outputs: Range<usize>,
    keys: Range<usize>,
}

impl Problem {
    /// The problem of sets that `offsets` `[B + 1]` delimit, of heads, and of q `[H, Nq, D]`, or `[H, M, D]`, and kv
    /// `[2, H, Nk, D]`.
    ///
    /// # Errors
    ///
    /// What no plan takes, and q and kv of another size.
    pub fn new(
        roles: Roles,
        offsets: Vec<usize>,
        heads: Heads,
        q: Vec<bf16>,
        kv: Vec<bf16>,
    ) -> Result<Self, DeviceError> {
        let plan = AttentionPlan::new(roles, &offsets, heads, &Limits::SM_90)?;
        for (name, found, rows) in [("q", q.len(), plan.query_rows), ("kv", kv.len(), 2 * plan.key_rows)] {
            if found != rows * heads.hidden() {
                return Err(DeviceError::Shapes(format!(
                    "a problem of attention: {name} of {rows} rows and {} heads of {} does not have {found} values",
                    heads.count, heads.width
                )));
            }
        }
        Ok(Problem::of(roles, offsets, heads, q, kv))
    }

    /// Normally distributed numbers for sets of these sizes.
    ///
    /// # Panics
    ///
    /// Sizes that no plan takes.
    pub fn random(roles: Roles, sizes: &[usize], heads: Heads, seed: u64) -> Self {
        let mut offsets = vec![0];
        offsets.extend(sizes.iter().scan(0, |end, size| {
            *end += size;
            Some(*end)
        }));
        let plan =
            AttentionPlan::new(roles, &offsets, heads, &Limits::SM_90).expect("sizes that can be planned");
        let mut rng = Rng::new(seed, Stream::Synth, 0);
        let [q, kv] =
            [plan.query_rows, 2 * plan.key_rows].map(|rows| normal(&mut rng, rows * heads.hidden()));
        Problem::of(roles, offsets, heads, q, kv)
    }

    fn of(roles: Roles, offsets: Vec<usize>, heads: Heads, q: Vec<bf16>, kv: Vec<bf16>) -> Self {
        let (dropout, wgmma, fuse, reference) = (None, false, Fusion::All, OnceLock::new());
        Problem { roles, offsets, heads, q, kv, dropout, wgmma, fuse, reference }
    }

    /// The same with dropout at this rate.
    pub fn with_dropout(mut self, rate: f64) -> Self {
        self.dropout = Dropout::new(rate, 11, 3, 5);
        self.reference = OnceLock::new();
        self
    }

    /// The same by kernels of warpgroups' matrix instructions, where they take its sets.
    pub fn with_wgmma(mut self) -> Self {
        self.wgmma = true;
        self
    }

    /// The same by kernels that fuse so much.
    pub fn with_fusion(mut self, fuse: Fusion) -> Self {
        self.fuse = fuse;
        self.reference = OnceLock::new();
        self
    }

    /// Who attends to whom.
    pub fn roles(&self) -> Roles {
        self.roles
    }

    /// Where the sets begin and the last ends `[B + 1]`.
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// Heads.
    pub fn heads(&self) -> Heads {
        self.heads
    }

    /// Queries `[H, Nq, D]`, or `[H, M, D]`.
    pub fn q(&self) -> &[bf16] {
        &self.q
    }

    /// Keys and values `[2, H, Nk, D]`.
    pub fn kv(&self) -> &[bf16] {
        &self.kv
    }

    /// Queries, and keys and values, to be changed.
    pub fn qkv_mut(&mut self) -> [&mut [bf16]; 2] {
        self.reference = OnceLock::new();
        [&mut self.q, &mut self.kv]
    }

    /// Dropout of the weights.
    pub fn dropout(&self) -> Option<&Dropout> {
        self.dropout.as_ref()
    }

    /// Whether scores and weights go through memory.
    fn is_naive(&self) -> bool {
        self.fuse == Fusion::None
    }

    /// The plan on a card of these limits.
    ///
    /// # Errors
    ///
    /// A card that has too little shared memory.
    pub fn plan(&self, limits: &Limits) -> Result<AttentionPlan, DeviceError> {
        let limits = Limits { fuse: self.fuse, ..*limits };
        AttentionPlan::new(self.roles, &self.offsets, self.heads, &limits)
    }

    /// What blocks of warpgroups do in forward, if all sets are theirs.
    pub fn warpgroups(&self, limits: &Limits) -> ForwardWarpgroups {
        ForwardWarpgroups::new(whole_sets(self.roles, &self.offsets), self.heads, limits)
    }

    /// The same in backward.
    pub fn backward_warpgroups(&self) -> BackwardWarpgroups {
        BackwardWarpgroups::new(whole_sets(self.roles, &self.offsets), self.heads)
    }

    fn sets(&self) -> impl Iterator<Item = Set> {
        self.offsets.windows(2).enumerate().map(|(number, set)| {
            let documents = set[0]..set[1];
            let of_points = |points: usize| number * points..(number + 1) * points;
            let (queries, outputs, keys) = match self.roles {
                Roles::Documents => (documents.clone(), documents.clone(), documents.clone()),
                Roles::Induce { points } => (0..points, of_points(points), documents.clone()),
                Roles::Attend { points } => (documents.clone(), documents.clone(), of_points(points)),
            };
            Set { number, documents: documents.len(), queries, outputs, keys }
        })
    }

    /// Offsets `[B + 1]` of the sets among the results, and among the keys.
    fn row_offsets(&self) -> [Vec<usize>; 2] {
        let ends =
            |end: fn(&Set) -> usize| std::iter::once(0).chain(self.sets().map(|set| end(&set))).collect();
        [ends(|set| set.outputs.end), ends(|set| set.keys.end)]
    }

    /// Rows of q, of k, and of the results.
    fn rows(&self) -> [usize; 3] {
        let [outputs, keys] = self.row_offsets().map(|offsets| offsets[offsets.len() - 1]);
        [self.q.len() / self.heads.hidden(), keys, outputs]
    }

    fn singles(&self) -> Singles {
        Singles { heads: self.heads, q: narrow(&self.q), kv: narrow(&self.kv) }
    }

    /// What the weights of a query are multiplied by, but for 1/(1 − rate): 1, or 0 where they are dropped.
    fn kept(&self, set: &Set, head: usize, query: usize) -> Vec<f32> {
        let mut kept = vec![1.0f32; set.keys.len()];
        if let Some(dropout) = &self.dropout {
            dropout.apply(&mut kept, 0, [set.number, head, query]);
            kept.iter_mut().for_each(|kept| *kept = if *kept == 0.0 { 0.0 } else { 1.0 });
        }
        kept
    }

    /// 1/(1 − rate), or 1.
    fn keep(&self) -> f32 {
        self.dropout.as_ref().map_or(1.0, |dropout| dropout.numbers().keep)
    }

    /// log2(e) / √D
    fn scale_log2e(&self) -> f32 {
        (std::f64::consts::LOG2_E / (self.heads.width as f64).sqrt()) as f32
    }

    /// Calls `run` with the attention of the CPU in f64.
    fn on_cpu<R>(&self, run: impl FnOnce(&Attention<'_, f64>) -> R) -> R {
        let hidden = self.heads.hidden();
        let q = by_rows(&self.q, self.heads, 1);
        let kv = by_rows(&self.kv, self.heads, 2);
        let [query_offsets, key_offsets] = self.row_offsets();
        run(&Attention {
            heads: self.heads,
            q: Rows { data: &q, stride: hidden, column: 0 },
            k: Rows { data: &kv, stride: 2 * hidden, column: 0 },
            v: Rows { data: &kv, stride: 2 * hidden, column: hidden },
            query_offsets: &query_offsets,
            key_offsets: &key_offsets,
            shared_queries: matches!(self.roles, Roles::Induce { .. }),
            dropout: self.dropout,
        })
    }

    /// How far results are off that are stored in bf16; `places` is where those of a set stand. Results of long sets are
    /// smaller than those of short ones, or larger: sets are held against those of like size.
    fn by_size<Places: IntoIterator<Item = Range<usize>>>(
        &self,
        kernel: &[f64],
        plain: &[&[f64]],
        exact: &[f64],
        places: impl Fn(&Set) -> Places,
    ) -> Deviation {
        let mut worst = Deviation::default();
        for sizes in [0..16, 16..64, 64..256, 256..usize::MAX] {
            let sets = self.sets().filter(|set| sizes.contains(&set.documents));
            let places: Vec<Range<usize>> = sets.flat_map(|set| places(&set)).collect();
            let of_class = |values: &[f64]| -> Vec<f64> {
                let runs = places.iter().map(|run| values.get(run.clone()).unwrap_or(&[]));
                runs.flatten().copied().collect()
            };
            let plain: Vec<Vec<f64>> = plain.iter().map(|values| of_class(values)).collect();
            let plain: Vec<&[f64]> = plain.iter().map(|values| &values[..]).collect();
            worst = worst.worse(deviation(&of_class(kernel), &plain, &of_class(exact), to_bf16));
        }
        worst
    }
}

/// Queries, keys and values in f32, widened once for all plain products of them.
struct Singles {
    heads: Heads,
    q: Vec<f32>,
    kv: Vec<f32>,
}

impl Singles {
    fn query(&self, head: usize, row: usize) -> &[f32] {
        row_of(&self.q, self.heads, self.q.len() / self.heads.hidden(), head, row)
    }

    fn key(&self, head: usize, row: usize) -> &[f32] {
        row_of(&self.kv, self.heads, self.kv.len() / 2 / self.heads.hidden(), head, row)
    }

    fn value(&self, head: usize, row: usize) -> &[f32] {
        let half = self.kv.len() / 2;
        row_of(&self.kv[half..], self.heads, half / self.heads.hidden(), head, row)
    }

    /// Keys of a set, `[D, keys]`.
    fn key_columns(&self, head: usize, keys: &Range<usize>) -> Vec<f32> {
        self.columns(&self.kv[..self.kv.len() / 2], head, keys)
    }

    /// Values of a set, `[D, keys]`.
    fn value_columns(&self, head: usize, keys: &Range<usize>) -> Vec<f32> {
        self.columns(&self.kv[self.kv.len() / 2..], head, keys)
    }

    fn columns(&self, rows: &[f32], head: usize, keys: &Range<usize>) -> Vec<f32> {
        let width = self.heads.width;
        let begin = (head * (rows.len() / self.heads.hidden()) + keys.start) * width;
        transposed(&rows[begin..][..keys.len() * width], width)
    }
}

/// The scratch that attention takes on a GPU.
fn scratch_on(
    gpu: &Gpu,
    attention: &DeviceAttention,
    backward: bool,
) -> Result<AttentionScratch, DeviceError> {
    let len = attention.plan().scratch_len();
    AttentionScratch::new(&mut gpu.arena("the check of attention", len.bytes(backward))?, len, backward)
}

fn normal(rng: &mut Rng, len: usize) -> Vec<bf16> {
    (0..len).map(|_| bf16::from_f64(rng.normal())).collect()
}

/// D values of `[H, rows, D]`.
fn row_of<T>(values: &[T], heads: Heads, rows: usize, head: usize, row: usize) -> &[T] {
    &values[(head * rows + row) * heads.width..][..heads.width]
}

/// Values `[parts, H, rows, D]` as rows `[rows, parts·H·D]`.
fn by_rows(values: &[bf16], heads: Heads, parts: usize) -> Vec<f64> {
    let rows = values.len() / parts / heads.hidden();
    let mut to = vec![0.0; values.len()];
    for (at, run) in values.chunks_exact(heads.width).enumerate() {
        let begin = (at % rows * parts * heads.count + at / rows) * heads.width;
        to[begin..begin + heads.width].iter_mut().zip(run).for_each(|(to, value)| *to = value.to_f64());
    }
    to
}

/// Every role on a card, with few and with many points, and sets that reach every path but those of very long ones: one
/// document, less and more than a tile of keys or queries, several tiles; in backward, every number of warps, and a set that
/// does not stay on the chip; and one that is several blocks' beside few points.
const RUNS: [(&str, Roles, &[usize]); 5] = [
    ("documents", Roles::Documents, &[1, 2, 40, 65, 97, 200]),
    ("points to documents", Roles::Induce { points: 20 }, &[1, 2, 40, 200, 1030]),
    ("documents to points", Roles::Attend { points: 20 }, &[1, 2, 40, 200, 1030]),
    ("many points to documents", Roles::Induce { points: 40 }, &[1, 70]),
    ("documents to many points", Roles::Attend { points: 40 }, &[1, 70, 520]),
];

/// Runs attention on the device and holds it against the CPU.
pub fn run(gpu: &Gpu) -> Result<Vec<Checked>, DeviceError> {
    of_sizes(gpu, RUNS)
}

/// The same for a set of so many documents.
pub fn run_at(gpu: &Gpu, documents: usize) -> Result<Vec<Checked>, DeviceError> {
    let sizes = [documents];
    of_sizes(gpu, RUNS.map(|(who, roles, _)| (who, roles, &sizes[..])))
}

fn of_sizes(gpu: &Gpu, runs: [(&str, Roles, &[usize]); 5]) -> Result<Vec<Checked>, DeviceError> {
    let mut checked = Vec::new();
    for width in [32, 64] {
        for (who, roles, sizes) in runs {
            for dropout in [0.0, 0.2] {
                let problem =
                    Problem::random(roles, sizes, Heads { count: 2, width }, SEED).with_dropout(dropout);
                let what = format!("head width {width}, dropout {dropout}, {who}");
                // Where less is fused, others have what otherwise few points have kernels of their own for.
                if width == 32 && dropout > 0.0 {
                    let (problem, what) =
                        (problem.clone().with_fusion(Fusion::Flash), format!("streamed, {what}"));
                    checked.extend(problem.hold(gpu, &what)?);
                    checked.extend(BackwardProblem::new(problem, true, SEED + 1).hold(gpu, &what)?);
                }
                checked.extend(problem.hold(gpu, &what)?);
                checked.extend(BackwardProblem::new(problem, dropout > 0.0, SEED + 1).hold(gpu, &what)?);
            }
        }
    }
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused() {
        let heads = Heads { count: 2, width: 32 };
        let new = |roles, offsets: &[usize], [q, kv]: [usize; 2]| {
            let zeros = |rows| vec![bf16::ZERO; rows * 64];
            Problem::new(roles, offsets.to_vec(), heads, zeros(q), zeros(kv)).map(|problem| problem.rows())
        };
        assert_eq!(new(Roles::Documents, &[0, 2, 2, 3], [3, 6]).unwrap(), [3, 3, 3]);
        assert_eq!(new(Roles::Induce { points: 4 }, &[0, 2, 3], [4, 6]).unwrap(), [4, 3, 8]);
        assert_eq!(new(Roles::Attend { points: 4 }, &[0, 2, 3], [3, 16]).unwrap(), [3, 8, 3]);
        for (offsets, rows, part) in [
            (&[1, 2][..], [1, 2], "begins at document 1"),
            (&[0, 3], [2, 6], "q of 3 rows and 2 heads of 32 does not have 128 values"),
            (&[0, 3], [3, 7], "kv of 6 rows and 2 heads of 32 does not have 448 values"),
        ] {
            let message = new(Roles::Documents, offsets, rows).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn rows_of_all_heads_stand_together() {
        let values: Vec<bf16> = (0..2 * 2 * 3 * 4).map(|at| bf16::from_f64(f64::from(at))).collect();
        let rows = by_rows(&values, Heads { count: 2, width: 4 }, 2);
        // Row 1: its two heads of k, then of v.
        let begins = [4.0, 16.0, 28.0, 40.0];
        let expected: Vec<f64> =
            begins.iter().flat_map(|begin| (0..4).map(move |d| begin + f64::from(d))).collect();
        assert_eq!(rows[16..32], expected[..]);
    }
}
