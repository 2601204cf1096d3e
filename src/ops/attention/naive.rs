//! Attention whose scores and weights go through memory, a kernel for every product: its plan, and its launches.

use super::plan::dropout_numbers;
use super::scratch::Pointers;
use super::tiles::{key_tiles, query_tiles};
use super::{DeviceAttention, Heads};
use crate::data::batch::{PAIR_UNIT, padded};
use crate::device::abi::{
    ATTENTION_NAIVE_ROWS, ATTENTION_NAIVE_THREADS, ATTENTION_NAIVE_UNIT, AttentionNaiveProduct,
    AttentionNaiveScores, AttentionNaiveWeights, AttentionPairs, AttentionTile,
};
use crate::device::{Arena, Buffer, DeviceError, Gpu, Operands, Package, Parameter, Plan, parameter};
use crate::ops::dropout::Dropout;

/// Rows of a tile of queries or of keys.
pub(super) const ROWS: usize = ATTENTION_NAIVE_ROWS as usize;

parameter!(AttentionNaiveScores, AttentionNaiveWeights, AttentionNaiveProduct: |self| shapes(self.head_pairs, self.heads));

fn shapes(pairs: i64, heads: i32) -> String {
    format!("{pairs} pairs of queries and keys and {heads} heads")
}

/// What a kernel makes of rows of pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowKernel {
    /// Weights of scores, and log-sum-exps.
    Softmax,
    /// The weights again, of scores and log-sum-exps.
    Weights,
    /// The scores' gradients.
    DScores,
}

/// The plan of attention that is not fused.
#[derive(Clone, Debug)]
pub struct NaivePlan {
    /// Heads.
    pub heads: Heads,
    /// Rows of q, of k and of v, and of the results.
    pub rows: [usize; 3],
    /// Where each set's pairs of a query and a key stand in those of a head.
    pub pairs: Vec<AttentionPairs>,
    /// Pairs of a head, those between included by which rows of a set's pairs are padded.
    pub head_pairs: usize,
    /// Tiles of 64 queries: one for each block of a head.
    pub query_tiles: Vec<AttentionTile>,
    /// Tiles of 64 keys.
    pub key_tiles: Vec<AttentionTile>,
}

const _: () = assert!(PAIR_UNIT == ATTENTION_NAIVE_UNIT as usize, "what batches count is what kernels have");

impl NaivePlan {
    /// Of whole sets in the order of the batch, and the rows of q, of k and of v, and of the results.
    pub(super) fn new(sets: Vec<AttentionTile>, heads: Heads, rows: [usize; 3]) -> Self {
        let mut head_pairs = 0;
        let pairs_of = |set: &AttentionTile| {
            let [queries, keys] = [set.query_rows, set.key_rows].map(|rows| rows.unsigned_abs() as usize);
            let begin = head_pairs;
            head_pairs += queries * padded(keys);
            AttentionPairs { begin: begin as i64, stride: padded(keys) as i64 }
        };
        let pairs = sets.iter().map(pairs_of).collect();
        let query_tiles = query_tiles(sets.clone(), ROWS);
        NaivePlan { heads, rows, pairs, head_pairs, query_tiles, key_tiles: key_tiles(sets, ROWS) }
    }

    /// Values of each of the buffers of pairs.
    pub fn values(&self) -> usize {
        self.heads.count * self.head_pairs
    }

    /// The launch of the kernel for products of rows of both sides; `None` where there is nothing to do, here as below.
    pub fn scores(&self) -> Option<Plan> {
        let kernel =
            if self.heads.width == 32 { "attention_naive_scores_d32" } else { "attention_naive_scores_d64" };
        self.launch(kernel, &self.query_tiles, 2 * ROWS * self.row_bytes())
    }

    /// The launch of a kernel for rows of pairs.
    pub fn weights(&self, kernel: RowKernel, dropout: bool) -> Option<Plan> {
        let kernel = match (kernel, dropout) {
            (RowKernel::Softmax, false) => "attention_naive_softmax",
            (RowKernel::Softmax, true) => "attention_naive_softmax_dropout",
            (RowKernel::Weights, false) => "attention_naive_weights",
            (RowKernel::Weights, true) => "attention_naive_weights_dropout",
            (RowKernel::DScores, false) => "attention_naive_d_scores",
            (RowKernel::DScores, true) => "attention_naive_d_scores_dropout",
        };
        self.launch(kernel, &self.query_tiles, 0)
    }

    /// The launch of the kernel for weights · rows of keys, or for weightsᵀ · rows of queries.
    pub fn product(&self, transposed: bool) -> Option<Plan> {
        let kernel = match (transposed, self.heads.width) {
            (false, 32) => "attention_naive_product_d32",
            (false, _) => "attention_naive_product_d64",
            (true, 32) => "attention_naive_product_transposed_d32",
            (true, _) => "attention_naive_product_transposed_d64",
        };
        let tiles = if transposed { &self.key_tiles } else { &self.query_tiles };
        self.launch(kernel, tiles, ROWS * (2 * ROWS + self.row_bytes()))
    }

    /// Bytes of a row of q.
    fn row_bytes(&self) -> usize {
        2 * self.heads.width
    }

    fn launch(&self, kernel: &'static str, tiles: &[AttentionTile], shared_bytes: usize) -> Option<Plan> {
        (!tiles.is_empty()).then_some(Plan {
            family: "attention_naive",
            kernel,
            grid: [tiles.len() as u32, self.heads.count as u32, 1],
            block: ATTENTION_NAIVE_THREADS,
            shared_bytes: shared_bytes as u32,
        })
    }

    /// Every launch there may be.
    pub(super) fn launches(&self) -> impl Iterator<Item = Plan> {
        let of_rows = [RowKernel::Softmax, RowKernel::Weights, RowKernel::DScores]
            .map(|kernel| self.weights(kernel, true));
        let of_products = [self.scores(), self.product(false), self.product(true)];
        of_rows.into_iter().chain(of_products).flatten()
    }

    /// The parameter of the kernel of scores but for its pointers, which are null: of q, or of the results' gradient.
    pub fn scores_numbers(&self, of_q: bool) -> AttentionNaiveScores {
        let [query_rows, key_rows, _] = self.rows;
        AttentionNaiveScores {
            queries: std::ptr::null(),
            keys: std::ptr::null(),
            tiles: std::ptr::null(),
            pairs: std::ptr::null(),
            scores: std::ptr::null_mut(),
            head_pairs: self.head_pairs as i64,
            query_rows: query_rows as i32,
            key_rows: key_rows as i32,
            heads: self.heads.count as i32,
            by_heads: of_q.into(),
        }
    }

    /// The same of the kernels for rows of pairs.
    pub fn weights_numbers(&self, dropout: Option<&Dropout>) -> AttentionNaiveWeights {
        let [_, _, output_rows] = self.rows;
        AttentionNaiveWeights {
            scores: std::ptr::null(),
            d_weights: std::ptr::null(),
            output: std::ptr::null(),
            d_output: std::ptr::null(),
            tiles: std::ptr::null(),
            pairs: std::ptr::null(),
            log_sum_exp: std::ptr::null_mut(),
            weights: std::ptr::null_mut(),
            head_pairs: self.head_pairs as i64,
            output_rows: output_rows as i32,
            heads: self.heads.count as i32,
            width: self.heads.width as i32,
            scale_log2e: (std::f64::consts::LOG2_E * self.heads.scale()) as f32,
            dropout: dropout_numbers(dropout),
            unused: 0,
        }
    }

    /// The same of the kernels for sums of weighted rows. `by_heads`: what is of queries is laid out as q, and weights are
    /// scores' gradients; else it is laid out as the results.
    pub fn product_numbers(&self, by_heads: bool) -> AttentionNaiveProduct {
        let [query_rows, key_rows, output_rows] = self.rows.map(|rows| rows as i32);
        AttentionNaiveProduct {
            weights: std::ptr::null(),
            rows: std::ptr::null(),
            tiles: std::ptr::null(),
            pairs: std::ptr::null(),
            relu: std::ptr::null(),
            output: std::ptr::null_mut(),
            head_pairs: self.head_pairs as i64,
            query_rows,
            key_rows,
            output_rows,
            heads: self.heads.count as i32,
            by_heads: by_heads.into(),
            factor: if by_heads { self.heads.scale() as f32 } else { 1.0 },
        }
    }
}

/// The tables of a plan on a GPU.
#[derive(Debug)]
pub(super) struct DeviceTables {
    pairs: Buffer<AttentionPairs>,
    query_tiles: Buffer<AttentionTile>,
    key_tiles: Buffer<AttentionTile>,
}

impl DeviceTables {
    pub fn new(package: &mut Package<'_>, plan: &NaivePlan) -> Result<Self, DeviceError> {
        Ok(DeviceTables {
            pairs: package.put(&plan.pairs)?,
            query_tiles: package.put(&plan.query_tiles)?,
            key_tiles: package.put(&plan.key_tiles)?,
        })
    }

    /// Bytes of those of so many sets with so many tiles of queries and of keys, at most.
    pub fn bytes_bound(sets: usize, query_tiles: usize, key_tiles: usize) -> usize {
        let tiles = [query_tiles, key_tiles].map(|tiles| tiles.saturating_mul(size_of::<AttentionTile>()));
        Arena::bytes_for([sets.saturating_mul(size_of::<AttentionPairs>())].into_iter().chain(tiles))
    }
}

/// Where the inputs of forward, and what it writes, stand.
pub(super) struct Forward {
    pub q: *const u16,
    pub kv: *const u16,
    pub heads: *mut u16,
    pub log_sum_exp: *mut f32,
}

/// The same of backward.
pub(super) struct Backward {
    pub q: *const u16,
    pub kv: *const u16,
    pub heads: *const u16,
    pub d_heads: *const u16,
    pub log_sum_exp: *const f32,
    pub d_q: *mut u16,
    pub d_kv: *mut u16,
    pub relu: bool,
}

/// The launches of a batch's attention, all of whose buffers have been checked but for the tables.
pub(super) struct Launches<'a> {
    gpu: &'a Gpu,
    plan: &'a NaivePlan,
    dropout: Option<&'a Dropout>,
    tables: &'a DeviceTables,
    scratch: Pointers,
}

impl<'a> Launches<'a> {
    /// Notes the tables among the operands; `None` where the plan is a fused one.
    pub fn new(
        gpu: &'a Gpu,
        attention: &'a DeviceAttention,
        scratch: Pointers,
        operands: &mut Operands<'_>,
        dropout: Option<&'a Dropout>,
    ) -> Result<Option<Self>, DeviceError> {
        let Some((plan, tables)) = attention.naive() else { return Ok(None) };
        operands.reads("pairs", &tables.pairs, plan.pairs.len())?;
        operands.reads("tiles of queries", &tables.query_tiles, plan.query_tiles.len())?;
        operands.reads("tiles of keys", &tables.key_tiles, plan.key_tiles.len())?;
        Ok(Some(Launches { gpu, plan, dropout, tables, scratch }))
    }

    pub fn forward(&self, of: &Forward) -> Result<(), DeviceError> {
        let Forward { q, kv, heads, log_sum_exp } = *of;
        self.scores(true, q, kv, self.scratch.scores)?;
        self.weigh(RowKernel::Softmax, AttentionNaiveWeights { log_sum_exp, ..self.row_numbers() })?;
        let rows = self.values_of(kv);
        let product = AttentionNaiveProduct { rows, output: heads, ..self.plan.product_numbers(false) };
        self.product(false, product)
    }

    pub fn backward(&self, of: &Backward) -> Result<(), DeviceError> {
        let Backward { q, kv, heads, d_heads, log_sum_exp, d_q, d_kv, relu } = *of;
        let plan = self.plan;
        let behind = |relu_of: *const u16| if relu { relu_of } else { std::ptr::null() };
        let (k, v, d_k) = (kv, self.values_of(kv), d_kv);
        let d_v = self.values_of(d_kv).cast_mut();
        let rows = AttentionNaiveWeights { log_sum_exp: log_sum_exp.cast_mut(), ..self.row_numbers() };
        self.scores(true, q, k, self.scratch.scores)?;
        self.weigh(RowKernel::Weights, rows)?;
        let of_outputs = plan.product_numbers(false);
        let product = AttentionNaiveProduct { rows: d_heads, output: d_v, relu: behind(v), ..of_outputs };
        self.product(true, product)?;
        self.scores(false, d_heads, v, self.scratch.d_weights)?;
        let rows = AttentionNaiveWeights {
            d_weights: self.scratch.d_weights,
            output: heads,
            d_output: d_heads,
            ..rows
        };
        self.weigh(RowKernel::DScores, rows)?;
        let by_heads = plan.product_numbers(true);
        let product = AttentionNaiveProduct { rows: k, output: d_q, relu: behind(q), ..by_heads };
        self.product(false, product)?;
        let product = AttentionNaiveProduct { rows: q, output: d_k, relu: behind(k), ..by_heads };
        self.product(true, product)
    }

    /// Where v stands, behind k.
    fn values_of(&self, keys: *const u16) -> *const u16 {
        let [_, key_rows, _] = self.plan.rows;
        keys.wrapping_add(key_rows * self.plan.heads.hidden())
    }

    fn row_numbers(&self) -> AttentionNaiveWeights {
        let (tiles, pairs) = (self.tables.query_tiles.pointer(), self.tables.pairs.pointer());
        let (scores, weights) = (self.scratch.scores.cast_const(), self.scratch.weights);
        AttentionNaiveWeights { scores, weights, tiles, pairs, ..self.plan.weights_numbers(self.dropout) }
    }

    fn scores(
        &self,
        of_q: bool,
        queries: *const u16,
        keys: *const u16,
        scores: *mut f32,
    ) -> Result<(), DeviceError> {
        let (tiles, pairs) = (self.tables.query_tiles.pointer(), self.tables.pairs.pointer());
        let numbers = self.plan.scores_numbers(of_q);
        self.launch(
            self.plan.scores(),
            &AttentionNaiveScores { queries, keys, tiles, pairs, scores, ..numbers },
        )
    }

    fn weigh(&self, kernel: RowKernel, parameter: AttentionNaiveWeights) -> Result<(), DeviceError> {
        self.launch(self.plan.weights(kernel, self.dropout.is_some()), &parameter)
    }

    fn product(&self, transposed: bool, parameter: AttentionNaiveProduct) -> Result<(), DeviceError> {
        let tiles = if transposed { &self.tables.key_tiles } else { &self.tables.query_tiles };
        let (tiles, pairs, weights) = (tiles.pointer(), self.tables.pairs.pointer(), self.scratch.weights);
        let parameter = AttentionNaiveProduct { weights, tiles, pairs, ..parameter };
        self.launch(self.plan.product(transposed), &parameter)
    }

    fn launch<P: Parameter>(&self, launch: Option<Plan>, parameter: &P) -> Result<(), DeviceError> {
        match launch {
            // SAFETY: the buffers have the kernel's sizes, tiles and pairs lie inside of the batch, and memory that is given
            // back is freed in the stream's order.
            Some(launch) => unsafe { self.gpu.launch(&launch, parameter) },
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Limits;
    use crate::ops::attention::Roles;
    use crate::ops::attention::tiles::whole_sets;

    const HEADS: Heads = Heads { count: 2, width: 64 };

    fn plan(roles: Roles, offsets: &[usize]) -> NaivePlan {
        NaivePlan::new(whole_sets(roles, offsets), HEADS, [0; 3])
    }

    #[test]
    fn rows_of_pairs_are_whole_pieces() {
        let of = |roles| {
            let plan = plan(roles, &[0, 3, 3, 12]);
            let pairs = plan.pairs.iter().map(|pairs| (pairs.begin, pairs.stride)).collect::<Vec<_>>();
            (pairs, plan.head_pairs, plan.values())
        };
        assert_eq!(of(Roles::Documents), (vec![(0, 8), (24, 0), (24, 16)], 24 + 9 * 16, 2 * 168));
        assert_eq!(of(Roles::Induce { points: 20 }).1, 20 * (8 + 16));
        assert_eq!(of(Roles::Attend { points: 20 }).1, 12 * 24);
        // More than 32 bits count, of a set that is not the longest.
        assert_eq!(plan(Roles::Documents, &[0, 1 << 18]).head_pairs, 1 << 36);
    }

    #[test]
    fn launches_fit_every_card() {
        for card in [Limits::SM_89, Limits::SM_80, Limits::SM_90] {
            let plan = plan(Roles::Documents, &[0, 65, 66]);
            assert_eq!(plan.launches().count(), 6);
            for launch in plan.launches() {
                launch.check(&card).unwrap();
                assert_eq!(launch.grid, [3, 2, 1], "{launch}");
            }
        }
        // Points that nobody asks still get a gradient.
        let plan = plan(Roles::Attend { points: 20 }, &[0, 0]);
        assert_eq!(
            plan.launches().map(|launch| launch.kernel).collect::<Vec<_>>(),
            ["attention_naive_product_transposed_d64"]
        );
    }
}
