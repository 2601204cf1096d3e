//! How set attention is launched: which block takes which queries, and with how much shared memory.

use super::Heads;
use crate::device::abi::{
    SET_ATTENTION_KEY_ROWS, SET_ATTENTION_QUERY_ROWS, SET_ATTENTION_THREADS, SetAttentionForward,
    SetAttentionTile,
};
use crate::device::{DeviceError, Limits, Plan};

/// A batch's plan of set attention: a pure function of its sets, its heads and the card's limits.
#[derive(Clone, Debug)]
pub struct SetAttentionPlan {
    /// Documents of the batch, N.
    pub rows: usize,
    /// Heads.
    pub heads: Heads,
    /// What each block of a head does: those of long sets first, which take longest. Empty where no set has a document.
    pub tiles: Vec<SetAttentionTile>,
    /// Pairs of tiles of keys and values in shared memory.
    pub stages: u32,
}

impl SetAttentionPlan {
    /// The plan for sets that `offsets` `[B + 1]` delimit.
    ///
    /// Refuses offsets that do not begin with 0, that decrease or that exceed 32 bits, a head's width other than 32 and
    /// 64, and more heads than a grid holds.
    pub fn new(offsets: &[usize], heads: Heads, limits: &Limits) -> Result<Self, DeviceError> {
        check(offsets, heads)?;
        let mut sets: Vec<(usize, usize)> = offsets.windows(2).map(|set| (set[0], set[1] - set[0])).collect();
        sets.sort_by_key(|&(_, len)| std::cmp::Reverse(len));
        let tiles: Vec<SetAttentionTile> = sets.iter().flat_map(|&(begin, len)| tiles(begin, len)).collect();
        let longest = sets.first().map_or(0, |&(_, len)| len);
        let stages = stages(longest, heads.width, limits);
        Ok(SetAttentionPlan { rows: *offsets.last().unwrap_or(&0), heads, tiles, stages })
    }

    /// The forward kernel's parameter but for its pointers, which are null.
    pub fn forward_numbers(&self) -> SetAttentionForward {
        SetAttentionForward {
            qkv: std::ptr::null(),
            tiles: std::ptr::null(),
            output: std::ptr::null_mut(),
            log_sum_exp: std::ptr::null_mut(),
            rows: self.rows as i32,
            heads: self.heads.count as i32,
            scale_log2e: (std::f64::consts::LOG2_E / (self.heads.width as f64).sqrt()) as f32,
            unused: 0,
        }
    }

    /// The launch of the forward kernel; `None` where there is nothing to do.
    pub fn forward(&self) -> Option<Plan> {
        let kernel = match (self.heads.width, self.stages) {
            (32, 2) => "set_attention_forward_d32_s2",
            (32, _) => "set_attention_forward_d32_s3",
            (_, 2) => "set_attention_forward_d64_s2",
            (_, _) => "set_attention_forward_d64_s3",
        };
        (!self.tiles.is_empty()).then_some(Plan {
            family: "attention",
            kernel,
            grid: [self.tiles.len() as u32, self.heads.count as u32, 1],
            block: SET_ATTENTION_THREADS,
            shared_bytes: shared_bytes(self.heads.width, self.stages),
        })
    }
}

/// Documents of a batch: kernels count them in 32 bits, and round up to whole tiles.
const MAX_ROWS: usize = i32::MAX as usize - SET_ATTENTION_QUERY_ROWS as usize;

fn check(offsets: &[usize], heads: Heads) -> Result<(), DeviceError> {
    let refuse = |reason: String| Err(DeviceError::Shapes(format!("set attention on a GPU: {reason}")));
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
    if !matches!(heads.width, 32 | 64) {
        return refuse(format!("a head is 32 or 64 wide, not {}", heads.width));
    }
    if !(1..=Limits::MAX_GRID_YZ as usize).contains(&heads.count) {
        return refuse(format!("1 to {} heads, not {}", Limits::MAX_GRID_YZ, heads.count));
    }
    Ok(())
}

/// The tiles of one set.
fn tiles(begin: usize, len: usize) -> impl Iterator<Item = SetAttentionTile> {
    let rows = SET_ATTENTION_QUERY_ROWS as usize;
    (0..len).step_by(rows).map(move |first| SetAttentionTile {
        set_begin: begin as i32,
        set_rows: len as i32,
        first_query: first as i32,
        query_rows: rows.min(len - first) as i32,
    })
}

/// Three stages hide more of the copies; two where the longest set needs no third, or where only so two blocks share a
/// multiprocessor.
fn stages(longest: usize, width: usize, limits: &Limits) -> u32 {
    let short = longest <= 2 * SET_ATTENTION_KEY_ROWS as usize;
    if short || limits.blocks_by_shared(shared_bytes(width, 3)) < 2 { 2 } else { 3 }
}

/// Bytes of the queries' tile and of `stages` tiles of keys and of values.
fn shared_bytes(width: usize, stages: u32) -> u32 {
    (SET_ATTENTION_QUERY_ROWS + stages * 2 * SET_ATTENTION_KEY_ROWS) * width as u32 * 2
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CARDS: [Limits; 3] = [Limits::SM_89, Limits::SM_80, Limits::SM_90];

    fn plan(offsets: &[usize], width: usize, limits: &Limits) -> SetAttentionPlan {
        SetAttentionPlan::new(offsets, Heads { count: 8, width }, limits).unwrap()
    }

    #[test]
    fn shared_memory_by_card() {
        let of = |width, longest| CARDS.map(|card| plan(&[0, longest], width, &card).forward().unwrap());
        assert_eq!(of(32, 500).map(|plan| plan.shared_bytes >> 10), [32, 32, 32]);
        assert_eq!(of(64, 500).map(|plan| plan.shared_bytes >> 10), [48, 64, 64]);
        assert_eq!(
            of(64, 500).map(|plan| plan.kernel),
            ["set_attention_forward_d64_s2", "set_attention_forward_d64_s3", "set_attention_forward_d64_s3"]
        );
        assert_eq!(of(64, 128).map(|plan| plan.shared_bytes >> 10), [48, 48, 48]);
        for card in CARDS {
            for width in [32, 64] {
                plan(&[0, 4096], width, &card).forward().unwrap().check(&card).unwrap();
            }
        }
    }

    #[test]
    fn long_sets_come_first() {
        let tiles = plan(&[0, 1, 1, 302, 430], 32, &Limits::SM_90).tiles;
        let tiles: Vec<[i32; 4]> = tiles
            .iter()
            .map(|tile| [tile.set_begin, tile.set_rows, tile.first_query, tile.query_rows])
            .collect();
        assert_eq!(
            tiles,
            [[1, 301, 0, 128], [1, 301, 128, 128], [1, 301, 256, 45], [302, 128, 0, 128], [0, 1, 0, 1]]
        );
    }

    #[test]
    fn nothing_to_do() {
        for offsets in [&[][..], &[0], &[0, 0, 0]] {
            let plan = plan(offsets, 32, &Limits::SM_90);
            assert_eq!((plan.rows, plan.forward()), (0, None));
        }
    }

    #[test]
    fn bad_shapes() {
        let refuse = |offsets: &[usize], count, width| {
            SetAttentionPlan::new(offsets, Heads { count, width }, &Limits::SM_90).unwrap_err().to_string()
        };
        for (message, part) in [
            (refuse(&[1, 2], 8, 32), "begins at document 1, not at 0"),
            (refuse(&[0, 5, 3], 8, 32), "set 1 ends at document 3, before it begins at 5"),
            (refuse(&[0, 1 << 31], 8, 32), "at most 2147483519 documents, not 2147483648"),
            (refuse(&[0, MAX_ROWS + 1], 8, 32), "not 2147483520"),
            (refuse(&[0, 1], 8, 48), "a head is 32 or 64 wide, not 48"),
            (refuse(&[0, 1], 0, 32), "1 to 65535 heads, not 0"),
            (refuse(&[0, 1], 65_536, 32), "1 to 65535 heads, not 65536"),
        ] {
            assert!(message.contains(part), "{message}");
        }
    }

    proptest! {
        #[test]
        fn every_query_is_in_one_tile(lens in proptest::collection::vec(0usize..400, 0..12)) {
            let offsets: Vec<usize> = std::iter::once(0)
                .chain(lens.iter().scan(0, |end, len| { *end += len; Some(*end) }))
                .collect();
            let plan = plan(&offsets, 32, &Limits::SM_90);
            let mut seen = vec![0; plan.rows];
            for tile in &plan.tiles {
                let set = offsets.windows(2).find(|set| set[0] == tile.set_begin as usize && set[1] > set[0]);
                prop_assert_eq!(set.map(|set| set[1] - set[0]), Some(tile.set_rows as usize));
                prop_assert!((1..=128).contains(&tile.query_rows) && tile.first_query % 128 == 0);
                let first = tile.set_begin + tile.first_query;
                prop_assert!(tile.first_query + tile.query_rows <= tile.set_rows);
                for row in first..first + tile.query_rows {
                    seen[row as usize] += 1;
                }
            }
            prop_assert!(seen.iter().all(|&times| times == 1));
        }
    }
}
