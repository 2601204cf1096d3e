//! How attention is launched: which block takes which queries or keys, and with how much shared memory.

use super::backward_warpgroups::BackwardWarpgroups;
use super::forward_groups::ForwardGroups;
use super::forward_warpgroups::ForwardWarpgroups;
use super::groups::{Group, Groups, Residence, TILE_ROWS, tiles};
use super::naive::{DeviceTables, NaivePlan, ROWS};
use super::parts::Parts;
use super::scratch::ScratchLen;
use super::tiles::{KEY_ROWS, QUERY_ROWS, key_tiles, query_tiles, whole_sets};
use super::{Heads, Roles};
use crate::device::abi::{
    ATTENTION_BACKWARD_KEY_TILES, ATTENTION_BACKWARD_LONG_KEY_TILES, ATTENTION_BACKWARD_LONG_QUERY_TILES,
    ATTENTION_BACKWARD_PARKED, ATTENTION_BACKWARD_QUERY_TILES, ATTENTION_BACKWARD_WIDE_KEY_TILES,
    ATTENTION_BACKWARD_WIDE_QUERY_TILES, ATTENTION_D_KEYS_QUERY_ROWS, ATTENTION_D_KEYS_THREADS,
    ATTENTION_D_QUERIES_THREADS, ATTENTION_EXCHANGE_BYTES, ATTENTION_FORWARD_THREADS, ATTENTION_GROUPS_WARPS,
    ATTENTION_KEY_ROWS, ATTENTION_NOTES_BYTES, ATTENTION_POINTS_ROWS, ATTENTION_POINTS_STAGES,
    ATTENTION_POINTS_WARP_TILES, ATTENTION_POINTS_WARPS, ATTENTION_QUERY_ROWS, ATTENTION_SUMS_BYTES,
    AttentionBackward, AttentionBlock, AttentionDropout, AttentionForward, AttentionTile,
};
use crate::device::choice::Fusion;
use crate::device::{Arena, DeviceError, Limits, Plan};
use crate::ops::dropout::Dropout;

/// A batch's plan of attention: a pure function of who attends to whom, its sets and its heads.
#[derive(Clone, Debug)]
pub struct AttentionPlan {
    /// Who attends to whom.
    pub roles: Roles,
    /// Heads.
    pub heads: Heads,
    /// Rows of q: N, or M.
    pub query_rows: usize,
    /// Rows of k and of v, Nk: N, or B·M.
    pub key_rows: usize,
    /// Rows of the results, Nq: N, or B·M.
    pub output_rows: usize,
    /// Of attention that is not fused; there is nothing else to do then.
    pub naive: Option<NaivePlan>,
    /// Parts of long sets, where points meet their documents: what is to be combined.
    pub parts: Parts,
    /// What each block of a head does in forward.
    pub forward_groups: ForwardGroups,
    /// What blocks of warpgroups do of it: nothing, unless their matrix instructions are asked for.
    pub forward_warpgroups: ForwardWarpgroups,
    /// What blocks of warpgroups do in backward: nothing, unless their matrix instructions are asked for.
    pub backward_warpgroups: BackwardWarpgroups,
    /// Backward, of few points, or of the sets that stay on the chip: what each block of a head does, parts and long sets first.
    pub backward_blocks: Vec<AttentionBlock>,
    /// The parts of sets, and the sets, of these blocks.
    pub backward_sets: Vec<AttentionTile>,
    /// Backward, of the other sets: what each block does for d_queries, as in forward.
    pub d_query_tiles: Vec<AttentionTile>,
    /// The same for d_keys: those with many queries first.
    pub d_key_tiles: Vec<AttentionTile>,
    /// Bytes of shared memory of the groups of a block of backward.
    backward_bytes: u32,
    /// Whether backward's kernel for all gradients is that of few points.
    few_points: bool,
}

impl AttentionPlan {
    /// The plan for sets that `offsets` `[B + 1]` delimit among the documents.
    ///
    /// Refuses offsets that do not begin with 0, that decrease or that exceed 32 bits, a head's width other than 32 and
    /// 64, more heads than a grid holds, more than 128 points or none, and points that attend to no document.
    pub fn new(roles: Roles, offsets: &[usize], heads: Heads, limits: &Limits) -> Result<Self, DeviceError> {
        check(roles, offsets, heads)?;
        let documents = *offsets.last().unwrap_or(&0);
        let (query_rows, key_rows, output_rows) = match roles {
            Roles::Documents => (documents, documents, documents),
            Roles::Induce { points } => (points, documents, points * sets(offsets)),
            Roles::Attend { points } => (documents, points * sets(offsets), documents),
        };
        if let Some(rows) = [key_rows, output_rows].into_iter().find(|&rows| rows > MAX_ROWS) {
            return refuse(format!("a batch has at most {MAX_ROWS} rows of queries or keys, not {rows}"));
        }
        let (sets, naive) = match whole_sets(roles, offsets) {
            sets if limits.fuse == Fusion::None => {
                (Vec::new(), Some(NaivePlan::new(sets, heads, [query_rows, key_rows, output_rows])))
            }
            sets => (sets, None),
        };
        let (parts, whole) = Parts::new(roles, sets.clone(), heads, limits.fuse);
        // Documents that ask are several blocks' in forward in any case.
        let (parts_of_forward, of_forward) = match roles {
            Roles::Induce { .. } => (&parts.tiles[..], whole.clone()),
            _ => (&[][..], sets),
        };
        let [of_backward_warpgroups, of_backward] = if limits.wgmma {
            BackwardWarpgroups::part(roles, heads.width, whole, limits)
        } else {
            [Vec::new(), whole]
        };
        let few_points = has_few_points(roles, limits.fuse);
        let backward = if limits.fuse < Fusion::Attention {
            Groups::new(&[], of_backward, ATTENTION_GROUPS_WARPS, |_| None)
        } else if few_points {
            Groups::new(&parts.tiles, of_backward, ATTENTION_POINTS_WARPS, |set| {
                Some(points_group(roles, heads.width, set))
            })
        } else {
            let bytes = limits.shared_per_block.saturating_sub(NOTES_BYTES);
            Groups::new(&[], of_backward, ATTENTION_GROUPS_WARPS, |set| {
                backward_residence(heads.width, set).group(set, ATTENTION_GROUPS_WARPS, bytes)
            })
        };
        let [of_warpgroups, of_groups] =
            if limits.wgmma { ForwardWarpgroups::part(roles, of_forward) } else { [Vec::new(), of_forward] };
        let plan = AttentionPlan {
            roles,
            heads,
            query_rows,
            key_rows,
            output_rows,
            naive,
            forward_groups: ForwardGroups::new(roles, parts_of_forward, of_groups, heads, limits),
            parts,
            forward_warpgroups: ForwardWarpgroups::new(of_warpgroups, heads, limits),
            backward_warpgroups: BackwardWarpgroups::new(of_backward_warpgroups, heads),
            backward_bytes: backward.shared_bytes(),
            few_points,
            backward_blocks: backward.blocks,
            backward_sets: backward.sets,
            d_query_tiles: query_tiles(backward.streamed.clone(), QUERY_ROWS),
            d_key_tiles: key_tiles(backward.streamed, KEY_ROWS),
        };
        let by_warpgroups = [plan.forward_by_warpgroups(true), plan.backward_by_warpgroups(true)];
        let by_warps = [plan.forward(true), plan.backward(true), plan.d_queries(true), plan.d_keys(true)];
        let combining = [plan.combine_forward(), plan.combine_backward()];
        let launches = by_warpgroups.into_iter().chain(by_warps).chain(combining);
        let naive = plan.naive.iter().flat_map(NaivePlan::launches);
        for launch in launches.flatten().chain(naive) {
            launch.check(limits)?;
        }
        Ok(plan)
    }

    /// The most bytes of a package that a plan of so many sets with so many documents in all takes.
    pub fn bytes_bound(sets: usize, documents: usize, roles: Roles, fuse: Fusion) -> usize {
        // Each set with documents has a tile that may be almost empty.
        let of_documents = |tile: usize| documents / tile + sets.min(documents);
        let of_points = |points: usize, tile: usize| sets.saturating_mul(points.div_ceil(tile));
        let [query_rows, key_rows] = if fuse == Fusion::None { [ROWS, ROWS] } else { [QUERY_ROWS, KEY_ROWS] };
        let (queries, keys) = match roles {
            Roles::Documents => (of_documents(query_rows), of_documents(key_rows)),
            Roles::Induce { points } => (of_points(points, query_rows), of_documents(key_rows)),
            Roles::Attend { points } => (of_documents(query_rows), of_points(points, key_rows)),
        };
        if fuse == Fusion::None {
            return DeviceTables::bytes_bound(sets, queries, keys);
        }
        let [of_queries, of_keys] = [queries, keys].map(|tiles| tiles * size_of::<AttentionTile>());
        let blocks_of = |sets: usize| sets.saturating_mul(size_of::<AttentionBlock>());
        let parts = Parts::bound(roles, documents, documents, fuse);
        // Forward, by warps and by warpgroups together, has no more groups than tiles of queries and parts, and no more blocks
        // than groups.
        // Backward, a set is in a table of whole sets and has a block at most, or it has tiles: five tables. Each begins at an
        // aligned place.
        let backward = of_queries + of_keys + blocks_of(sets);
        let of_parts = 2 * parts * size_of::<AttentionTile>() + 3 * blocks_of(parts);
        Arena::bytes_for([of_queries, blocks_of(queries), 1, 1, backward + of_parts, 1, 1, 1, 1, 1])
    }

    /// The forward kernel's parameter but for its pointers, which are null.
    pub fn forward_numbers(&self, dropout: Option<&Dropout>) -> AttentionForward {
        AttentionForward {
            q: std::ptr::null(),
            kv: std::ptr::null(),
            tiles: std::ptr::null(),
            blocks: std::ptr::null(),
            output: std::ptr::null_mut(),
            log_sum_exp: std::ptr::null_mut(),
            partials: std::ptr::null_mut(),
            parts: if matches!(self.roles, Roles::Induce { .. }) { self.parts.tiles.len() as i32 } else { 0 },
            query_rows: self.query_rows as i32,
            key_rows: self.key_rows as i32,
            output_rows: self.output_rows as i32,
            heads: self.heads.count as i32,
            scale_log2e: (std::f64::consts::LOG2_E * self.heads.scale()) as f32,
            dropout: dropout_numbers(dropout),
            unused: 0,
        }
    }

    /// The same of the backward kernels; `relu` is whether q, k and v are stored behind one.
    pub fn backward_numbers(&self, relu: bool, dropout: Option<&Dropout>) -> AttentionBackward {
        AttentionBackward {
            q: std::ptr::null(),
            kv: std::ptr::null(),
            output: std::ptr::null(),
            d_output: std::ptr::null(),
            log_sum_exp: std::ptr::null(),
            tiles: std::ptr::null(),
            blocks: std::ptr::null(),
            delta: std::ptr::null_mut(),
            d_q: std::ptr::null_mut(),
            d_kv: std::ptr::null_mut(),
            partials: std::ptr::null_mut(),
            parts: self.parts.tiles.len() as i32,
            query_rows: self.query_rows as i32,
            key_rows: self.key_rows as i32,
            output_rows: self.output_rows as i32,
            heads: self.heads.count as i32,
            relu: relu.into(),
            scale: self.heads.scale() as f32,
            scale_log2e: (std::f64::consts::LOG2_E * self.heads.scale()) as f32,
            dropout: dropout_numbers(dropout),
            unused: 0,
        }
    }

    /// The launch of the forward kernel; `None` where there is nothing to do.
    pub fn forward(&self, dropout: bool) -> Option<Plan> {
        let kernel = match (self.forward_groups.split, self.heads.width, dropout) {
            (false, 32, false) => "attention_forward_d32",
            (false, 32, true) => "attention_forward_d32_dropout",
            (false, _, false) => "attention_forward_d64",
            (false, _, true) => "attention_forward_d64_dropout",
            (true, 32, false) => "attention_forward_split_d32",
            (true, 32, true) => "attention_forward_split_d32_dropout",
            (true, _, false) => "attention_forward_split_d64",
            (true, _, true) => "attention_forward_split_d64_dropout",
        };
        let bytes = self.forward_groups.shared_bytes();
        self.launch(kernel, self.forward_groups.blocks.len(), ATTENTION_FORWARD_THREADS, bytes)
    }

    /// The launch of the kernel that combines what parts of sets left in forward; `None` where there are none.
    pub fn combine_forward(&self) -> Option<Plan> {
        let kernel = match (self.roles, self.heads.width) {
            (Roles::Induce { .. }, 32) => "attention_combine_forward_d32",
            (Roles::Induce { .. }, _) => "attention_combine_forward_d64",
            _ => return None,
        };
        self.parts.combine(kernel, self.heads)
    }

    /// The same in backward.
    pub fn combine_backward(&self) -> Option<Plan> {
        let kernel = match (self.roles, self.heads.width) {
            (Roles::Induce { .. }, 32) => "attention_combine_induce_d32",
            (Roles::Induce { .. }, _) => "attention_combine_induce_d64",
            (_, 32) => "attention_combine_attend_d32",
            _ => "attention_combine_attend_d64",
        };
        self.parts.combine(kernel, self.heads)
    }

    /// The scratch that it takes, forward or backward.
    pub fn scratch_len(&self) -> ScratchLen {
        let pairs = self.naive.as_ref().map_or(0, NaivePlan::values);
        ScratchLen { pairs, partials: self.parts.numbers(self.heads) }
    }

    /// The launch of forward's kernel for the sets that warpgroups take; `None` where there are none.
    pub fn forward_by_warpgroups(&self, dropout: bool) -> Option<Plan> {
        self.forward_warpgroups.launch(self.heads, dropout)
    }

    /// The launch of backward's kernel for the sets that warpgroups take; `None` where there are none.
    pub fn backward_by_warpgroups(&self, dropout: bool) -> Option<Plan> {
        self.backward_warpgroups.launch(self.heads, dropout)
    }

    /// The launch of the kernel for all gradients, of few points, or of the sets that stay on the chip; `None` where there
    /// are none.
    pub fn backward(&self, dropout: bool) -> Option<Plan> {
        let few_points = self.few_points;
        let kernels = match self.roles {
            Roles::Induce { .. } if few_points => [
                ["attention_backward_induce_d32", "attention_backward_induce_d32_dropout"],
                ["attention_backward_induce_d64", "attention_backward_induce_d64_dropout"],
            ],
            Roles::Attend { .. } if few_points => [
                ["attention_backward_attend_d32", "attention_backward_attend_d32_dropout"],
                ["attention_backward_attend_d64", "attention_backward_attend_d64_dropout"],
            ],
            _ => [
                ["attention_backward_d32", "attention_backward_d32_dropout"],
                ["attention_backward_d64", "attention_backward_d64_dropout"],
            ],
        };
        let kernel = kernels[usize::from(self.heads.width == 64)][usize::from(dropout)];
        let (warps, notes) =
            if few_points { (ATTENTION_POINTS_WARPS, 0) } else { (ATTENTION_GROUPS_WARPS, NOTES_BYTES) };
        self.launch(kernel, self.backward_blocks.len(), warps * 32, notes + self.backward_bytes)
    }

    /// The launch of the kernel for the gradient of q, and δ, of the other sets; `None` where there is nothing to do.
    pub fn d_queries(&self, dropout: bool) -> Option<Plan> {
        let kernel = match (self.heads.width, dropout) {
            (32, false) => "attention_d_queries_d32",
            (32, true) => "attention_d_queries_d32_dropout",
            (_, false) => "attention_d_queries_d64",
            (_, true) => "attention_d_queries_d64_dropout",
        };
        // The tiles of q and of the results' gradient, and two pairs of tiles of keys and values.
        let rows = 2 * ATTENTION_QUERY_ROWS + 2 * 2 * ATTENTION_KEY_ROWS;
        self.launch(kernel, self.d_query_tiles.len(), ATTENTION_D_QUERIES_THREADS, self.bytes(rows))
    }

    /// The launch of the kernel for the gradients of k and v, behind that for q; `None` where there is nothing to do.
    pub fn d_keys(&self, dropout: bool) -> Option<Plan> {
        let kernel = match (self.heads.width, dropout) {
            (32, false) => "attention_d_keys_d32",
            (32, true) => "attention_d_keys_d32_dropout",
            (_, false) => "attention_d_keys_d64",
            (_, true) => "attention_d_keys_d64_dropout",
        };
        // The tiles of k and v, and two pairs of tiles of q and the results' gradient, with two numbers for each query.
        let queries = 2 * ATTENTION_D_KEYS_QUERY_ROWS;
        let bytes = self.bytes(2 * ATTENTION_KEY_ROWS + 2 * queries) + 2 * 4 * queries;
        self.launch(kernel, self.d_key_tiles.len(), ATTENTION_D_KEYS_THREADS, bytes)
    }

    /// Bytes of so many rows.
    fn bytes(&self, rows: u32) -> u32 {
        rows * self.heads.width as u32 * 2
    }

    fn launch(&self, kernel: &'static str, blocks: usize, block: u32, shared_bytes: u32) -> Option<Plan> {
        let grid = [blocks as u32, self.heads.count as u32, 1];
        (blocks > 0).then_some(Plan { family: "attention", kernel, grid, block, shared_bytes })
    }
}

/// Bytes of a block of backward's whole sets besides those of its groups.
const NOTES_BYTES: u32 = ATTENTION_GROUPS_WARPS * ATTENTION_NOTES_BYTES;

/// What backward takes for a set: the rows of q and the results' gradient, those of k and v, and for each warp a slot of
/// the exchange buffer and what it puts by.
fn backward_residence(width: usize, set: &AttentionTile) -> Residence {
    let short_rows = ATTENTION_GROUPS_WARPS * ATTENTION_BACKWARD_QUERY_TILES * TILE_ROWS;
    let (query_tiles, key_tiles, parked) = if width == 64 {
        (ATTENTION_BACKWARD_WIDE_QUERY_TILES, ATTENTION_BACKWARD_WIDE_KEY_TILES, 0)
    } else if set.query_rows.unsigned_abs() <= short_rows {
        (ATTENTION_BACKWARD_QUERY_TILES, ATTENTION_BACKWARD_KEY_TILES, ATTENTION_BACKWARD_PARKED)
    } else {
        (ATTENTION_BACKWARD_LONG_QUERY_TILES, ATTENTION_BACKWARD_LONG_KEY_TILES, 0)
    };
    Residence {
        query_tiles,
        query_tile_bytes: pair_bytes(width) + ATTENTION_SUMS_BYTES,
        key_tile_bytes: pair_bytes(width),
        warp_bytes: (query_tiles * key_tiles + parked) * ATTENTION_EXCHANGE_BYTES,
    }
}

/// Whether a warp of backward sums the gradients of all points.
pub(super) fn has_few_points(roles: Roles, fuse: Fusion) -> bool {
    match roles {
        Roles::Documents => false,
        Roles::Induce { points } | Roles::Attend { points } => {
            fuse >= Fusion::Attention && points <= ATTENTION_POINTS_ROWS as usize
        }
    }
}

/// What backward of few points takes for a set: a warp for so many of its documents, which therefore do not depend on
/// the batch, the rows of the points, and for each warp a ring of documents' rows and slots of the exchange buffer.
fn points_group(roles: Roles, width: usize, set: &AttentionTile) -> Group {
    let documents = tiles(if matches!(roles, Roles::Induce { .. }) { set.key_rows } else { set.query_rows });
    let warps = documents.div_ceil(ATTENTION_POINTS_WARP_TILES).max(1).next_power_of_two();
    let warps = warps.min(ATTENTION_POINTS_WARPS);
    let point_tiles = ATTENTION_POINTS_ROWS / TILE_ROWS;
    let warp_bytes = ATTENTION_POINTS_STAGES * pair_bytes(width) + point_tiles * ATTENTION_EXCHANGE_BYTES;
    Group { warps, bytes: point_tiles * (pair_bytes(width) + ATTENTION_SUMS_BYTES) + warps * warp_bytes }
}

/// Bytes of 16 rows of two matrices.
fn pair_bytes(width: usize) -> u32 {
    2 * TILE_ROWS * 2 * width as u32
}

pub(super) fn dropout_numbers(dropout: Option<&Dropout>) -> AttentionDropout {
    let none = AttentionDropout { key_low: 0, key_high: 0, attention: 0, threshold: 0, keep: 1.0 };
    dropout.map_or(none, Dropout::numbers)
}

/// Rows of a batch: kernels count them in 32 bits, and round up to whole tiles.
const MAX_ROWS: usize = i32::MAX as usize - QUERY_ROWS;

/// Documents of a set: kernels count its pairs of chunks in 32 bits.
const MAX_SET: usize = 1 << 20;

/// Points of a set: the model's limit.
const MAX_POINTS: usize = 128;

fn refuse<T>(reason: String) -> Result<T, DeviceError> {
    Err(DeviceError::Shapes(format!("attention on a GPU: {reason}")))
}

fn check(roles: Roles, offsets: &[usize], heads: Heads) -> Result<(), DeviceError> {
    if offsets.first().is_some_and(|&first| first != 0) {
        return refuse(format!("the first set begins at document {}, not at 0", offsets[0]));
    }
    if let Some(set) = offsets.windows(2).position(|set| set[1] < set[0]) {
        return refuse(format!(
            "set {set} ends at document {}, before it begins at {}",
            offsets[set + 1],
            offsets[set]
        ));
    }
    if let Some(&rows) = offsets.last()
        && rows > MAX_ROWS
    {
        return refuse(format!("a batch has at most {MAX_ROWS} documents, not {rows}"));
    }
    if let Some(set) = offsets.windows(2).position(|set| set[1] - set[0] > MAX_SET) {
        let documents = offsets[set + 1] - offsets[set];
        return refuse(format!("a set has at most {MAX_SET} documents; set {set} has {documents}"));
    }
    if !matches!(heads.width, 32 | 64) {
        return refuse(format!("a head is 32 or 64 wide, not {}", heads.width));
    }
    if !(1..=Limits::MAX_GRID_YZ as usize).contains(&heads.count) {
        return refuse(format!("1 to {} heads, not {}", Limits::MAX_GRID_YZ, heads.count));
    }
    if let Roles::Induce { points } | Roles::Attend { points } = roles
        && !(1..=MAX_POINTS).contains(&points)
    {
        return refuse(format!("1 to {MAX_POINTS} inducing points, not {points}"));
    }
    if let Roles::Induce { .. } = roles
        && let Some(set) = offsets.windows(2).position(|set| set[1] == set[0])
    {
        return refuse(format!("set {set} has no document: inducing points would attend to nothing"));
    }
    Ok(())
}

fn sets(offsets: &[usize]) -> usize {
    offsets.len().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::device::abi::ATTENTION_POINTS_BLOCKS;

    const CARDS: [Limits; 3] = [Limits::SM_89, Limits::SM_80, Limits::SM_90];

    fn plan(roles: Roles, offsets: &[usize], width: usize) -> AttentionPlan {
        AttentionPlan::new(roles, offsets, Heads { count: 8, width }, &Limits::SM_90).unwrap()
    }

    #[test]
    fn shared_memory_fits_every_card() {
        for card in CARDS {
            for (width, kib) in [(32, [32, 16]), (64, [64, 32])] {
                let plan = AttentionPlan::new(Roles::Documents, &[0, 4096], Heads { count: 8, width }, &card)
                    .unwrap();
                plan.forward(false).unwrap().check(&card).unwrap();
                let launches = [plan.d_queries(true), plan.d_keys(false)];
                for (launch, kib) in launches.into_iter().zip(kib) {
                    let launch = launch.unwrap();
                    launch.check(&card).unwrap();
                    let sums = if launch.kernel.contains("d_keys") { 512 } else { 0 };
                    assert_eq!(launch.shared_bytes, (kib << 10) + sums, "{launch}");
                }
            }
        }
        let small = Limits { shared_per_block: 48 << 10, ..Limits::SM_80 };
        let heads = Heads { count: 8, width: 64 };
        let error = AttentionPlan::new(Roles::Documents, &[0, 4096], heads, &small).unwrap_err().to_string();
        assert!(error.contains("attention_d_queries_d64_dropout") && error.contains("49152"), "{error}");
    }

    /// Sizes at which a set takes more warps, or does not stay on the chip.
    #[test]
    fn what_fits_stays_on_the_chip() {
        let warps = |documents: usize, width, card| {
            let heads = Heads { count: 8, width };
            let plan = AttentionPlan::new(Roles::Documents, &[0, documents], heads, card).unwrap();
            if let Some(launch) = plan.backward(true) {
                launch.check(card).unwrap();
            }
            assert_eq!(plan.backward(false).is_none(), plan.d_queries(false).is_some());
            assert_eq!(plan.backward(false).is_none(), plan.d_keys(false).is_some());
            plan.backward_blocks.first().map_or(0, |block| block.warps)
        };
        for (card, width, expected) in [
            (
                &Limits::SM_90,
                32,
                [(48, 1), (49, 2), (96, 2), (97, 4), (192, 4), (193, 8), (512, 8), (513, 0)],
            ),
            (
                &Limits::SM_80,
                32,
                [(48, 1), (49, 2), (96, 2), (97, 4), (192, 4), (193, 8), (496, 8), (497, 0)],
            ),
            (&Limits::SM_89, 32, [(16, 1), (17, 2), (32, 2), (33, 4), (80, 4), (81, 8), (176, 8), (177, 0)]),
            (
                &Limits::SM_90,
                64,
                [(48, 1), (49, 2), (96, 2), (97, 4), (192, 4), (193, 8), (384, 8), (385, 0)],
            ),
            (
                &Limits::SM_80,
                64,
                [(32, 1), (33, 2), (64, 2), (65, 4), (144, 4), (145, 8), (288, 8), (289, 0)],
            ),
            (&Limits::SM_89, 64, [(16, 1), (17, 2), (32, 2), (33, 4), (80, 4), (81, 8), (160, 8), (161, 0)]),
        ] {
            let found = expected.map(|(documents, _)| (documents, warps(documents, width, card)));
            assert_eq!(found, expected, "heads of {width}, {} bytes", card.shared_per_block);
        }
    }

    /// Documents at which a set takes more warps; any number of them stays, on any card.
    #[test]
    fn few_points_take_warps_by_documents() {
        for card in CARDS {
            for roles in [Roles::Induce { points: 32 }, Roles::Attend { points: 32 }] {
                let heads = Heads { count: 8, width: 64 };
                let warps = [1, 192, 193, 384, 385, 100_000].map(|documents| {
                    let plan = AttentionPlan::new(roles, &[0, documents], heads, &card).unwrap();
                    assert_eq!((plan.d_queries(true), plan.d_keys(true)), (None, None));
                    plan.backward_blocks[0].warps
                });
                assert_eq!(warps, [1, 1, 2, 2, 4, 4]);
                // Blocks of four small sets have the most memory; as many are there at once as there are registers for.
                let small = AttentionPlan::new(roles, &[0, 1, 2, 3, 4], heads, &card).unwrap();
                let launch = small.backward(true).unwrap();
                assert_eq!((launch.grid, launch.shared_bytes), ([1, 8, 1], 4 * (2 * 4224 + 3 * 4096 + 1024)));
                launch.check(&card).unwrap();
                if card.shared_per_multiprocessor >= Limits::SM_90.shared_per_multiprocessor {
                    assert!(card.blocks_by_shared(launch.shared_bytes) >= ATTENTION_POINTS_BLOCKS);
                }
            }
        }
        // Where less is fused, nothing stays.
        let limits = Limits { fuse: Fusion::Flash, ..Limits::SM_90 };
        for roles in [Roles::Documents, Roles::Induce { points: 32 }, Roles::Attend { points: 32 }] {
            let plan = AttentionPlan::new(roles, &[0, 40], Heads { count: 8, width: 64 }, &limits).unwrap();
            assert!(plan.backward(true).is_none() && plan.d_queries(true).is_some(), "{roles:?}");
        }
        let kernel = |roles| plan(roles, &[0, 5], 32).backward(false).unwrap().kernel;
        assert_eq!(kernel(Roles::Induce { points: 33 }), "attention_backward_d32");
        assert_eq!(kernel(Roles::Attend { points: 33 }), "attention_backward_d32");
    }

    #[test]
    fn nothing_to_do() {
        for offsets in [&[][..], &[0], &[0, 0, 0]] {
            let documents = plan(Roles::Documents, offsets, 32);
            assert_eq!(
                (documents.output_rows, documents.forward(false), documents.d_keys(true)),
                (0, None, None)
            );
        }
        assert_eq!(plan(Roles::Induce { points: 3 }, &[0], 32).forward(false), None);
        assert_eq!(plan(Roles::Attend { points: 3 }, &[0, 0], 32).forward(false), None);
    }

    #[test]
    fn bad_shapes() {
        let refuse = |roles, offsets: &[usize], count, width| {
            AttentionPlan::new(roles, offsets, Heads { count, width }, &Limits::SM_90)
                .unwrap_err()
                .to_string()
        };
        let documents = |offsets: &[usize], count, width| refuse(Roles::Documents, offsets, count, width);
        let empty = [0, MAX_SET, MAX_SET];
        let sets: Vec<usize> = vec![0; MAX_ROWS / 128 + 2];
        for (message, part) in [
            (documents(&[1, 2], 8, 32), "begins at document 1, not at 0"),
            (documents(&[0, 5, 3], 8, 32), "set 1 ends at document 3, before it begins at 5"),
            (documents(&[0, 1 << 31], 8, 32), "at most 2147483519 documents, not 2147483648"),
            (documents(&[0, MAX_ROWS + 1], 8, 32), "not 2147483520"),
            (documents(&[0, 1, MAX_SET + 2], 8, 32), "at most 1048576 documents; set 1 has 1048577"),
            (documents(&[0, 1], 8, 48), "a head is 32 or 64 wide, not 48"),
            (documents(&[0, 1], 0, 32), "1 to 65535 heads, not 0"),
            (documents(&[0, 1], 65_536, 32), "1 to 65535 heads, not 65536"),
            (refuse(Roles::Induce { points: 0 }, &[0, 1], 8, 32), "1 to 128 inducing points, not 0"),
            (refuse(Roles::Attend { points: 129 }, &[0, 1], 8, 32), "1 to 128 inducing points, not 129"),
            (refuse(Roles::Induce { points: 20 }, &empty, 8, 32), "set 1 has no document"),
            (
                refuse(Roles::Attend { points: 128 }, &sets, 8, 32),
                "at most 2147483519 rows of queries or keys",
            ),
        ] {
            assert!(message.contains(part), "{message}");
        }
    }

    proptest! {
        #[test]
        fn every_query_and_key_is_in_one_tile(
            lens in proptest::collection::vec(prop_oneof![8 => 0usize..400, 1 => 1000usize..3000], 0..12),
            points in prop_oneof![1usize..=32, 1usize..=128],
            role in 0usize..3,
            wgmma in any::<bool>(),
        ) {
            let roles = [Roles::Documents, Roles::Induce { points }, Roles::Attend { points }][role];
            let least = if role == 1 { 1 } else { 0 };
            let offsets: Vec<usize> = std::iter::once(0)
                .chain(lens.iter().scan(0, |end, &len| { *end += len.max(least); Some(*end) }))
                .collect();
            let fuse = if wgmma { Fusion::All } else { [Fusion::Flash, Fusion::All][points % 2] };
            let limits = Limits { wgmma, fuse, ..Limits::SM_90 };
            let plan = AttentionPlan::new(roles, &offsets, Heads { count: 8, width: 32 }, &limits).unwrap();
            let [mut outputs, mut of_queries] = [(); 2].map(|()| vec![0; plan.output_rows]);
            let count = |rows: &mut Vec<i32>, begin: i32, len: i32| {
                (begin..begin + len).for_each(|row| rows[row as usize] += 1);
            };
            for tile in &plan.d_query_tiles {
                prop_assert!((1..=128).contains(&tile.query_rows) && tile.first_query % 128 == 0);
                prop_assert!((tile.query_begin + tile.query_rows) as usize <= plan.query_rows);
                prop_assert!(tile.key_rows > 0);
                prop_assert!((tile.key_begin + tile.key_rows) as usize <= plan.key_rows);
                count(&mut of_queries, tile.output_begin, tile.query_rows);
            }
            let mut keys = vec![0; plan.key_rows];
            for tile in &plan.d_key_tiles {
                prop_assert!((1..=64).contains(&tile.key_rows) && tile.first_key % 64 == 0);
                prop_assert!((tile.query_begin + tile.query_rows) as usize <= plan.query_rows);
                prop_assert!((tile.output_begin + tile.query_rows) as usize <= plan.output_rows);
                count(&mut keys, tile.key_begin, tile.key_rows);
            }
            let mut in_blocks = 0;
            for block in &plan.backward_blocks {
                prop_assert!(block.first_set == in_blocks && block.sets > 0 && block.sets * block.warps <= 8);
                let bytes = block.sets * block.group_bytes;
                prop_assert!(bytes as u32 <= plan.backward(true).unwrap().shared_bytes);
                in_blocks += block.sets;
            }
            prop_assert_eq!(in_blocks as usize, plan.backward_sets.len());
            prop_assert!(wgmma || plan.backward_warpgroups.sets.is_empty());
            // What is of points is combined of all parts of a set: that of the first counts.
            let is_later = |number: usize, tile: &AttentionTile| {
                number < plan.parts.tiles.len() && (tile.first_query > 0 || tile.first_key > 0)
            };
            let (asks, asked) = (matches!(roles, Roles::Induce { .. }), matches!(roles, Roles::Attend { .. }));
            let by_warpgroups = plan.backward_warpgroups.sets.iter().map(|set| (usize::MAX, set));
            for (number, set) in plan.backward_sets.iter().enumerate().chain(by_warpgroups) {
                if !(asks && is_later(number, set)) {
                    count(&mut of_queries, set.output_begin, set.query_rows);
                }
                if !(asked && is_later(number, set)) {
                    count(&mut keys, set.key_begin, set.key_rows);
                }
            }
            let parts: i32 = plan.parts.sets.iter().map(|set| set.sets).sum();
            prop_assert_eq!(parts as usize, plan.parts.tiles.len());
            let (groups, warpgroups) = (&plan.forward_groups, &plan.forward_warpgroups);
            prop_assert!(wgmma || warpgroups.tiles.is_empty());
            let by_warpgroups = warpgroups.tiles.iter().map(|tile| (usize::MAX, tile));
            for (number, tile) in groups.tiles.iter().enumerate().chain(by_warpgroups) {
                prop_assert!(tile.query_rows > 0 && tile.first_query % 16 == 0 && tile.key_rows > 0);
                prop_assert!((tile.query_begin + tile.query_rows) as usize <= plan.query_rows);
                prop_assert!((tile.key_begin + tile.key_rows) as usize <= plan.key_rows);
                if !(asks && is_later(number, tile)) {
                    count(&mut outputs, tile.output_begin, tile.query_rows);
                }
            }
            prop_assert!(outputs.iter().chain(&of_queries).chain(&keys).all(|&times| times == 1));
            let ends = groups.blocks.iter().map(|block| (block.first_set, block.first_set + block.sets));
            let end = ends.fold(0, |end, (first, next)| if first == end { next } else { -1 });
            prop_assert_eq!(end, groups.tiles.len() as i32);
            let of_forward = [&groups.tiles, &warpgroups.tiles];
            let of_backward = [&plan.backward_sets, &plan.backward_warpgroups.sets];
            let streamed = [&plan.d_query_tiles, &plan.d_key_tiles];
            let tiles = of_forward.into_iter().chain(of_backward).chain(streamed);
            let blocks = [&groups.blocks, &warpgroups.blocks, &plan.backward_blocks, &plan.parts.sets];
            let bytes = tiles.map(|tiles| size_of_val(&tiles[..]));
            let bytes = bytes.chain(blocks.map(|blocks| size_of_val(&blocks[..])));
            let documents = offsets[offsets.len() - 1];
            let limits = Limits { fuse: Fusion::None, ..limits };
            let unfused = AttentionPlan::new(roles, &offsets, Heads { count: 8, width: 32 }, &limits).unwrap();
            let unfused = unfused.naive.unwrap();
            let tables = [size_of_val(&unfused.pairs[..]), size_of_val(&unfused.query_tiles[..])];
            let tables = tables.into_iter().chain([size_of_val(&unfused.key_tiles[..])]);
            let bound = |fuse| AttentionPlan::bytes_bound(sets(&offsets), documents, roles, fuse);
            prop_assert!(Arena::bytes_for(tables) <= bound(Fusion::None));
            prop_assert!(Arena::bytes_for(bytes) <= bound(Fusion::All));
        }
    }
}
