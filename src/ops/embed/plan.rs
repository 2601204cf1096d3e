//! How ordinal embeddings are launched on a GPU.

use crate::device::abi::{EMBED_SHARED_BYTES, EMBED_THREADS, EmbedBackward, EmbedForward};
use crate::device::{DeviceError, Limits, Plan};

/// Sizes of a batch's ordinals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbedShape {
    /// N
    pub documents: usize,
    /// R
    pub rankings: usize,
    /// Rows of a table.
    pub n_max: usize,
}

impl EmbedShape {
    /// Refuses more documents or table rows than kernels count.
    pub(super) fn check(&self) -> Result<(), DeviceError> {
        const MAX_ROWS: usize = 1 << 30;
        let EmbedShape { documents, rankings, n_max } = *self;
        let fits = |rows: usize| rankings.checked_mul(rows).is_some_and(|rows| rows <= MAX_ROWS);
        if documents > MAX_ROWS || !fits(documents) || !fits(n_max) {
            return Err(DeviceError::Shapes(format!(
                "ordinal embeddings on a GPU: at most {MAX_ROWS} documents, and rows of tables, of all rankings \
                 together, not {documents} and {n_max} of each of {rankings}"
            )));
        }
        Ok(())
    }

    /// Rows of all tables.
    pub(super) fn table_rows(&self) -> usize {
        self.rankings * self.n_max
    }
}

/// Documents by what they add to: those of row k of table r are `documents[starts[r·n_max + k]..starts[r·n_max + k + 1]]`,
/// in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByTableRow {
    /// `[R·n_max + 1]`
    pub starts: Vec<i32>,
    /// As many as there are ordinals that are not negative.
    pub documents: Vec<i32>,
}

impl ByTableRow {
    /// Sorts the documents of `ordinals`, a ranking each.
    ///
    /// Refuses an ordinal beyond the table, rankings of other lengths than the first, and more than kernels count.
    pub fn new(ordinals: &[Vec<i32>], n_max: usize) -> Result<Self, DeviceError> {
        let documents = ordinals.first().map_or(0, Vec::len);
        let shape = EmbedShape { documents, rankings: ordinals.len(), n_max };
        shape.check()?;
        let mut starts = vec![0; shape.table_rows() + 1];
        for (ranking, ordinals) in ordinals.iter().enumerate() {
            if ordinals.len() != documents {
                return Err(DeviceError::Shapes(format!(
                    "ordinal embeddings on a GPU: ranking {ranking} is of {} documents, ranking 0 of {documents}",
                    ordinals.len()
                )));
            }
            for (document, &ordinal) in ordinals.iter().enumerate() {
                let Ok(ordinal) = usize::try_from(ordinal) else { continue };
                if ordinal >= n_max {
                    return Err(DeviceError::Shapes(format!(
                        "ordinal embeddings on a GPU: ordinal {ordinal} of document {document} in ranking {ranking} \
                         is not below n_max, {n_max}"
                    )));
                }
                starts[ranking * n_max + ordinal + 1] += 1;
            }
        }
        for row in 1..starts.len() {
            starts[row] += starts[row - 1];
        }
        let mut next = starts.clone();
        let mut sorted = vec![0; next[next.len() - 1] as usize];
        for (ranking, ordinals) in ordinals.iter().enumerate() {
            for (document, &ordinal) in ordinals.iter().enumerate() {
                let Ok(ordinal) = usize::try_from(ordinal) else { continue };
                let next = &mut next[ranking * n_max + ordinal];
                sorted[*next as usize] = document as i32;
                *next += 1;
            }
        }
        Ok(ByTableRow { starts, documents: sorted })
    }
}

/// The plan of ordinal embeddings: a pure function of their sizes.
#[derive(Clone, Copy, Debug)]
pub struct EmbedPlan {
    shape: EmbedShape,
    width: usize,
}

impl EmbedPlan {
    /// The plan for hidden rows of `width` values.
    ///
    /// Refuses a width that is no multiple of 64 or exceeds 512, and more rows than kernels count.
    pub fn new(shape: EmbedShape, width: usize) -> Result<Self, DeviceError> {
        const MAX_WIDTH: usize = 512;
        shape.check()?;
        if width == 0 || width > MAX_WIDTH || !width.is_multiple_of(64) {
            return Err(DeviceError::Shapes(format!(
                "ordinal embeddings on a GPU: the hidden width is a multiple of 64 up to {MAX_WIDTH}, not {width}"
            )));
        }
        Ok(EmbedPlan { shape, width })
    }

    /// The launch of `embed_forward`; `None` where there is nothing to do.
    pub fn forward(&self) -> Option<Plan> {
        let of_block = EMBED_THREADS as usize / (self.width / 8);
        plan("embed_forward", self.shape.documents.div_ceil(of_block), 0)
    }

    /// The launch of `embed_backward`; `None` where there is nothing to do.
    pub fn backward(&self) -> Option<Plan> {
        let blocks = if self.shape.documents > 0 { self.shape.table_rows() } else { 0 };
        plan("embed_backward", blocks, EMBED_SHARED_BYTES)
    }

    /// The parameter of `embed_forward` but for its pointers, which are null.
    pub fn forward_numbers(&self) -> EmbedForward {
        EmbedForward {
            x: std::ptr::null(),
            tables: std::ptr::null(),
            ordinals: std::ptr::null(),
            y: std::ptr::null_mut(),
            rows: self.shape.documents as i32,
            width: self.width as i32,
            rankings: self.shape.rankings as i32,
            n_max: self.shape.n_max as i32,
        }
    }

    /// The parameter of `embed_backward` but for its pointers, which are null.
    pub fn backward_numbers(&self) -> EmbedBackward {
        EmbedBackward {
            dy: std::ptr::null(),
            starts: std::ptr::null(),
            documents: std::ptr::null(),
            d_tables: std::ptr::null_mut(),
            width: self.width as i32,
            unused: 0,
        }
    }
}

fn plan(kernel: &'static str, blocks: usize, shared_bytes: u32) -> Option<Plan> {
    debug_assert!(blocks <= Limits::MAX_GRID_X as usize, "{kernel}: rows are bounded");
    (blocks > 0).then_some(Plan {
        family: "embed",
        kernel,
        grid: [blocks as u32, 1, 1],
        block: EMBED_THREADS,
        shared_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(documents: usize, rankings: usize, n_max: usize) -> EmbedShape {
        EmbedShape { documents, rankings, n_max }
    }

    #[test]
    fn blocks_cover_the_rows() {
        for (shape, width, forward, backward) in [
            (shape(1, 1, 40), 64, 1, 40),
            (shape(33, 2, 40), 64, 2, 80),
            (shape(11, 1, 500), 192, 2, 500),
            (shape(5, 3, 1), 512, 2, 3),
            (shape(1 << 30, 1, 1 << 30), 512, 1 << 28, 1 << 30),
        ] {
            let plan = EmbedPlan::new(shape, width).unwrap();
            let launches = [plan.forward().unwrap(), plan.backward().unwrap()];
            assert_eq!(launches.map(|launch| launch.grid[0]), [forward, backward]);
            for card in [Limits::SM_89, Limits::SM_80, Limits::SM_90] {
                launches.iter().for_each(|launch| launch.check(&card).unwrap());
            }
        }
    }

    #[test]
    fn documents_are_sorted_by_table_row() {
        let sorted = ByTableRow::new(&[vec![2, 0, -1, 2], vec![-1, 1, 1, 1]], 3).unwrap();
        assert_eq!(sorted.starts, [0, 1, 1, 3, 3, 6, 6]);
        assert_eq!(sorted.documents, [1, 0, 3, 1, 2, 3]);
        assert_eq!(ByTableRow::new(&[], 3).unwrap(), ByTableRow { starts: vec![0], documents: vec![] });
    }

    #[test]
    fn nothing_to_do() {
        let plan = |shape| EmbedPlan::new(shape, 64).unwrap();
        assert_eq!([plan(shape(0, 2, 5)).forward(), plan(shape(0, 2, 5)).backward()], [None; 2]);
        assert_eq!([plan(shape(3, 0, 5)).backward(), plan(shape(3, 2, 0)).backward()], [None; 2]);
        assert!(plan(shape(3, 0, 5)).forward().is_some());
    }

    #[test]
    fn bad_shapes() {
        for (shape, width, part) in [
            (shape(1, 1, 1), 96, "a multiple of 64 up to 512, not 96"),
            (shape(1, 1, 1), 576, "not 576"),
            (shape((1 << 30) + 1, 0, 1), 64, "at most 1073741824 documents"),
            (shape(1, 4, 1 << 29), 64, "1 and 536870912 of each of 4"),
        ] {
            let error = EmbedPlan::new(shape, width).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        for (ordinals, part) in [
            (vec![vec![0, 1], vec![1, 3]], "ordinal 3 of document 1 in ranking 1 is not below n_max, 3"),
            (vec![vec![0, 1], vec![1]], "ranking 1 is of 1 documents, ranking 0 of 2"),
        ] {
            let error = ByTableRow::new(&ordinals, 3).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
