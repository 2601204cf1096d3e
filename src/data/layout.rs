//! Batches as frameworks hand them over: each of B sets in `n_max` cells, of which some are padding.
//!
//! *Padded*, a set's documents are its first cells, and lengths `[B]` say how many. *Masked*, a boolean mask `[B, n_max]`
//! says which cells are documents: any of them, in any pattern. Both are turned into a ragged [`Batch`] at the door, which
//! costs one copy of the documents and reads no padding. What computes knows ragged batches alone, so padding reaches no
//! softmax, LayerNorm, loss or metric, whatever stands in it, and costs no arithmetic. The way back is as short:
//!
//! ```
//! use setrank::data::layout::{Grid, Occupied};
//!
//! let grid = Grid {
//!     occupied: Occupied::Mask(vec![true, false, true, false, true, false]),
//!     n_max: 3,
//!     num_features: 1,
//!     features: vec![0.5, f32::NAN, 1.5, f32::NAN, 2.5, f32::NAN],
//!     labels: vec![0.0, f32::NAN, 1.0, f32::NAN, 0.0, f32::NAN],
//!     ..Grid::default()
//! };
//! let batch = grid.batch()?;
//! assert_eq!((&batch.offsets[..], &batch.features[..]), (&[0, 2, 3][..], &[0.5, 1.5, 2.5][..]));
//! // Scores of its three documents, back in their cells.
//! let scores = grid.cells()?.scatter(&[7.0, 8.0, 9.0], 1, f32::NEG_INFINITY)?;
//! assert_eq!(scores, [7.0, f32::NEG_INFINITY, 8.0, f32::NEG_INFINITY, 9.0, f32::NEG_INFINITY]);
//! # Ok::<(), setrank::data::layout::LayoutError>(())
//! ```

use std::ops::Range;

use super::augment::FeatureDropout;
use super::batch::Batch;

/// The most cells of a set: beyond any use, and far from overflowing anything.
pub const MAX_CELLS: usize = 1 << 20;

/// Why a grid is none. Sets are counted from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A set without a document.
    #[error("set {set} (from 0) has no document: there is nothing to score, leave it out")]
    EmptySet {
        /// Its number.
        set: usize,
    },
    /// A set that does not fit into its cells.
    #[error(
        "set {set} (from 0) has {length} documents, but n_max is {n_max}: give each set more cells, or cut it"
    )]
    TooLong {
        /// Its number.
        set: usize,
        /// Its documents.
        length: usize,
        /// Cells of each set.
        n_max: usize,
    },
    /// More cells than [`MAX_CELLS`].
    #[error("n_max is {n_max}: a set has at most {MAX_CELLS} cells")]
    TooManyCells {
        /// Cells of each set.
        n_max: usize,
    },
    /// Lengths that say other than the mask.
    #[error("set {set} (from 0) has {length} documents by its length, but {in_mask} in the mask")]
    Disagree {
        /// Its number.
        set: usize,
        /// Documents by its length.
        length: usize,
        /// Documents by the mask.
        in_mask: usize,
    },
    /// Queries of a data set, and documents that would be numbered as if there were none.
    #[error("queries are those of a data set: give the documents' rows too, or neither")]
    QueriesWithoutRows,
    /// Documents of a data set, and others that would be numbered.
    #[error("the batch has documents' rows in a data set, the grid has none")]
    OtherRows,
    /// Features that are dropped otherwise than those of the batch.
    #[error("features of the grid are dropped by other draws than those of the batch")]
    OtherDropout,
    /// An array that has not the shape of the others.
    #[error("{array}: {found} are given, but {shape} makes {expected}")]
    WrongLength {
        /// Which array.
        array: &'static str,
        /// Its elements.
        found: usize,
        /// Its elements, as they should be.
        expected: usize,
        /// Its shape.
        shape: &'static str,
    },
}

/// Which cells of a grid are documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Occupied {
    /// Padded: the first cells of each set, so many `[B]`.
    Lengths(Vec<usize>),
    /// Masked: those that are true, `[B, n_max]`.
    Mask(Vec<bool>),
}

impl Default for Occupied {
    /// No set.
    fn default() -> Self {
        Occupied::Lengths(Vec::new())
    }
}

/// Where the documents of a grid are, set by set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cells {
    n_max: usize,
    /// Where each set begins and the last ends among the documents `[B + 1]`.
    offsets: Vec<usize>,
    /// Cells beside each other that are documents, ascending.
    runs: Vec<Range<usize>>,
}

impl Cells {
    /// The first `lengths` `[B]` cells of each set of `n_max` cells.
    ///
    /// # Errors
    /// A set without a document or with more than `n_max`, and an `n_max` above [`MAX_CELLS`].
    pub fn of_lengths(lengths: &[usize], n_max: usize) -> Result<Self, LayoutError> {
        let mut cells = Cells::empty(n_max, lengths.len())?;
        for (set, &length) in lengths.iter().enumerate() {
            if length > n_max {
                return Err(LayoutError::TooLong { set, length, n_max });
            }
            cells.runs.push(set * n_max..set * n_max + length);
            cells.end_set(length)?;
        }
        Ok(cells)
    }

    /// The cells of each set of `n_max` cells for which `mask` `[B, n_max]` is true.
    ///
    /// # Errors
    /// A set without a document, an `n_max` above [`MAX_CELLS`], and a mask of no whole number of sets.
    pub fn of_mask(mask: &[bool], n_max: usize) -> Result<Self, LayoutError> {
        let sets = mask.len() / n_max.max(1);
        check_len("cells of the mask", mask.len(), sets * n_max, "a whole number of sets × n_max")?;
        let mut cells = Cells::empty(n_max, sets)?;
        for (set, mask) in mask.chunks(n_max.max(1)).enumerate() {
            let mut at = set * n_max;
            let mut length = 0;
            for run in mask.chunk_by(|a, b| a == b) {
                if run[0] {
                    cells.runs.push(at..at + run.len());
                    length += run.len();
                }
                at += run.len();
            }
            cells.end_set(length)?;
        }
        Ok(cells)
    }

    fn empty(n_max: usize, sets: usize) -> Result<Self, LayoutError> {
        if n_max > MAX_CELLS {
            return Err(LayoutError::TooManyCells { n_max });
        }
        let mut offsets = Vec::with_capacity(sets + 1);
        offsets.push(0);
        Ok(Cells { n_max, offsets, runs: Vec::with_capacity(sets) })
    }

    fn end_set(&mut self, length: usize) -> Result<(), LayoutError> {
        if length == 0 {
            return Err(LayoutError::EmptySet { set: self.sets() });
        }
        self.offsets.push(self.documents() + length);
        Ok(())
    }

    /// Refuses `lengths` `[B]` that are not those of the sets, for those who are handed both.
    ///
    /// # Errors
    /// See there.
    pub fn check_lengths(&self, lengths: &[usize]) -> Result<(), LayoutError> {
        check_len("lengths", lengths.len(), self.sets(), "[B]")?;
        for (set, (&length, ends)) in lengths.iter().zip(self.offsets.windows(2)).enumerate() {
            let in_mask = ends[1] - ends[0];
            if length != in_mask {
                return Err(LayoutError::Disagree { set, length, in_mask });
            }
        }
        Ok(())
    }

    /// B
    pub fn sets(&self) -> usize {
        self.offsets.len() - 1
    }

    /// N
    pub fn documents(&self) -> usize {
        self.offsets.last().copied().unwrap_or(0)
    }

    /// B · n_max
    pub fn cells(&self) -> usize {
        self.sets() * self.n_max
    }

    /// Where each set begins and the last ends among the documents `[B + 1]`.
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// Appends to `rows` the documents' of `grid` `[B, n_max, width]`: `[N, width]`. Padding is not read.
    ///
    /// # Errors
    /// A grid of another size.
    pub fn gather<T: Copy>(&self, rows: &mut Vec<T>, grid: &[T], width: usize) -> Result<(), LayoutError> {
        check_len(
            "elements of the grid",
            grid.len(),
            self.cells().saturating_mul(width),
            "[B, n_max, width]",
        )?;
        rows.reserve(self.documents() * width);
        for run in &self.runs {
            rows.extend_from_slice(&grid[run.start * width..run.end * width]);
        }
        Ok(())
    }

    /// A grid `[B, n_max, width]` of the documents' `rows` `[N, width]`, and `padding` in the other cells.
    ///
    /// # Errors
    /// Another number of rows.
    pub fn scatter<T: Copy>(&self, rows: &[T], width: usize, padding: T) -> Result<Vec<T>, LayoutError> {
        check_len("elements of the rows", rows.len(), self.documents().saturating_mul(width), "[N, width]")?;
        let mut grid = vec![padding; self.cells() * width];
        let mut rows = rows;
        for run in &self.runs {
            let (of_run, after) = rows.split_at(run.len() * width);
            grid[run.start * width..run.end * width].copy_from_slice(of_run);
            rows = after;
        }
        Ok(grid)
    }
}

/// A batch in a grid. What its padding holds is never read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grid {
    /// Which cells are documents.
    pub occupied: Occupied,
    /// Cells of each set.
    pub n_max: usize,
    /// F
    pub num_features: usize,
    /// Number of each query in its data set `[B]`; none where there is no data set.
    pub queries: Vec<usize>,
    /// Row of each document in the data set `[B, n_max]`; none where there is no data set: documents are then numbered as
    /// they come.
    pub rows: Vec<usize>,
    /// Normalised features `[B, n_max, F]`, indicators of missing values included.
    pub features: Vec<f32>,
    /// What is still to be dropped of its features, where those are elsewhere.
    pub feature_dropout: Option<FeatureDropout>,
    /// Labels `[B, n_max]`, negative = unjudged.
    pub labels: Vec<f32>,
    /// Row of the ordinal table `[R][B, n_max]`, −1 = none.
    pub ordinals: Vec<Vec<i32>>,
}

impl Grid {
    /// `batch` padded to `n_max` cells a set.
    ///
    /// # Errors
    /// A set without a document or with more than `n_max`, and an `n_max` above [`MAX_CELLS`].
    pub fn padded(batch: &Batch, n_max: usize) -> Result<Self, LayoutError> {
        let lengths = lengths(batch);
        let cells = Cells::of_lengths(&lengths, n_max)?;
        Grid::of(batch, Occupied::Lengths(lengths), &cells)
    }

    /// `batch` in those of `n_max` cells a set for which `mask` `[B, n_max]` is true.
    ///
    /// # Errors
    /// As [`Cells::of_mask`], and where a set has another number of documents than of cells in the mask.
    pub fn masked(batch: &Batch, mask: Vec<bool>, n_max: usize) -> Result<Self, LayoutError> {
        let cells = Cells::of_mask(&mask, n_max)?;
        cells.check_lengths(&lengths(batch))?;
        Grid::of(batch, Occupied::Mask(mask), &cells)
    }

    fn of(batch: &Batch, occupied: Occupied, cells: &Cells) -> Result<Self, LayoutError> {
        let num_features = batch.features.len().checked_div(cells.documents()).unwrap_or(0);
        let ordinals = batch.ordinals.iter().map(|ordinals| cells.scatter(ordinals, 1, -1));
        Ok(Grid {
            occupied,
            n_max: cells.n_max,
            num_features,
            queries: batch.queries.clone(),
            rows: cells.scatter(&batch.rows, 1, usize::MAX)?,
            features: cells.scatter(&batch.features, num_features, 0.0)?,
            feature_dropout: batch.feature_dropout,
            labels: cells.scatter(&batch.labels, 1, -1.0)?,
            ordinals: ordinals.collect::<Result<_, _>>()?,
        })
    }

    /// Where its documents are.
    ///
    /// # Errors
    /// As [`Cells::of_lengths`] and [`Cells::of_mask`].
    pub fn cells(&self) -> Result<Cells, LayoutError> {
        match &self.occupied {
            Occupied::Lengths(lengths) => Cells::of_lengths(lengths, self.n_max),
            Occupied::Mask(mask) => Cells::of_mask(mask, self.n_max),
        }
    }

    /// The ragged batch of its documents.
    ///
    /// # Errors
    /// As [`cells`](Self::cells), and where an array has not the grid's shape.
    pub fn batch(&self) -> Result<Batch, LayoutError> {
        let mut batch = Batch::default();
        self.append_to(&mut batch)?;
        Ok(batch)
    }

    /// Appends its sets to those of `batch`, which is of the same kind, or has no set yet.
    ///
    /// # Errors
    /// As [`batch`](Self::batch), and where `batch` has other features or rankings, drops features otherwise, or is of a data set
    /// where this is not; it is then left as it was.
    pub fn append_to(&self, batch: &mut Batch) -> Result<(), LayoutError> {
        let cells = self.cells()?;
        self.check(&cells, batch)?;
        if batch.offsets.is_empty() {
            batch.offsets.push(0);
            batch.feature_dropout = self.feature_dropout;
            batch.ordinals.resize_with(self.ordinals.len(), Vec::new);
        }
        let before = batch.rows.len();
        batch.queries.extend_from_slice(&self.queries);
        batch.offsets.extend(cells.offsets[1..].iter().map(|offset| before + offset));
        if self.rows.is_empty() {
            batch.rows.extend(before..before + cells.documents());
        } else {
            cells.gather(&mut batch.rows, &self.rows, 1)?;
        }
        cells.gather(&mut batch.features, &self.features, self.num_features)?;
        cells.gather(&mut batch.labels, &self.labels, 1)?;
        for (of_batch, of_grid) in batch.ordinals.iter_mut().zip(&self.ordinals) {
            cells.gather(of_batch, of_grid, 1)?;
        }
        Ok(())
    }

    /// Refuses arrays that have not the shape of its cells, or of `batch`.
    fn check(&self, cells: &Cells, batch: &Batch) -> Result<(), LayoutError> {
        let (count, shape) = (cells.cells(), "[B, n_max]");
        if !self.queries.is_empty() {
            check_len("queries", self.queries.len(), cells.sets(), "[B]")?;
        }
        if !self.rows.is_empty() {
            check_len("rows", self.rows.len(), count, shape)?;
        }
        if self.rows.is_empty() && !self.queries.is_empty() {
            return Err(LayoutError::QueriesWithoutRows);
        }
        let numbers = count.saturating_mul(self.num_features);
        check_len("features", self.features.len(), numbers, "[B, n_max, F]")?;
        check_len("labels", self.labels.len(), count, shape)?;
        for ordinals in &self.ordinals {
            check_len("ordinals of a ranking", ordinals.len(), count, shape)?;
        }
        if batch.offsets.len() > 1 {
            let sets = batch.offsets.len() - 1;
            let queries = if self.queries.is_empty() { 0 } else { sets };
            check_len(
                "queries of the batch",
                batch.queries.len(),
                queries,
                "one a set where the grid has them",
            )?;
            if self.feature_dropout != batch.feature_dropout {
                return Err(LayoutError::OtherDropout);
            }
            if self.rows.is_empty() && !batch.rows.iter().copied().eq(0..batch.rows.len()) {
                return Err(LayoutError::OtherRows);
            }
            let features = batch.rows.len().saturating_mul(self.num_features);
            check_len(
                "features of the batch",
                batch.features.len(),
                features,
                "its documents × F of the grid",
            )?;
            let rankings = self.ordinals.len();
            check_len("initial rankings of the batch", batch.ordinals.len(), rankings, "R of the grid")?;
        }
        Ok(())
    }
}

impl Batch {
    /// Leaves it without sets; its memory is kept for others.
    pub fn clear(&mut self) {
        let Batch { queries, offsets, rows, features, feature_dropout, labels, ordinals } = self;
        queries.clear();
        offsets.clear();
        rows.clear();
        features.clear();
        *feature_dropout = None;
        labels.clear();
        ordinals.iter_mut().for_each(Vec::clear);
    }
}

fn lengths(batch: &Batch) -> Vec<usize> {
    // Offsets that decrease make a set without documents, which is refused.
    batch.offsets.windows(2).map(|ends| ends[1].saturating_sub(ends[0])).collect()
}

fn check_len(
    array: &'static str,
    found: usize,
    expected: usize,
    shape: &'static str,
) -> Result<(), LayoutError> {
    if found == expected { Ok(()) } else { Err(LayoutError::WrongLength { array, found, expected, shape }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::augment::Columns;
    use crate::data::batch::Shuffle;

    fn grid() -> Grid {
        Grid {
            occupied: Occupied::Lengths(vec![2, 1]),
            n_max: 2,
            num_features: 2,
            features: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, f32::NAN, f32::NAN],
            labels: vec![0.0, 1.0, 2.0, f32::NAN],
            ordinals: vec![vec![1, 0, 0, i32::MIN]],
            ..Grid::default()
        }
    }

    #[test]
    fn grids_that_are_none_are_refused() {
        let masked = |mask: &[bool]| Grid { occupied: Occupied::Mask(mask.to_vec()), ..grid() };
        let wrong =
            |array, found, expected, shape| LayoutError::WrongLength { array, found, expected, shape };
        let (per_cell, per_feature) = ("[B, n_max]", "[B, n_max, F]");
        for (wrong_grid, expected) in [
            (masked(&[true, false, false, false]), LayoutError::EmptySet { set: 1 }),
            (masked(&[true; 3]), wrong("cells of the mask", 3, 2, "a whole number of sets × n_max")),
            (Grid { occupied: Occupied::Lengths(vec![0, 2]), ..grid() }, LayoutError::EmptySet { set: 0 }),
            (
                Grid { occupied: Occupied::Lengths(vec![1, 3]), ..grid() },
                LayoutError::TooLong { set: 1, length: 3, n_max: 2 },
            ),
            (Grid { n_max: MAX_CELLS + 1, ..grid() }, LayoutError::TooManyCells { n_max: MAX_CELLS + 1 }),
            (Grid { n_max: 0, ..grid() }, LayoutError::TooLong { set: 0, length: 2, n_max: 0 }),
            (Grid { n_max: 3, ..grid() }, wrong("features", 8, 12, per_feature)),
            (Grid { num_features: 3, ..grid() }, wrong("features", 8, 12, per_feature)),
            (Grid { num_features: usize::MAX, ..grid() }, wrong("features", 8, usize::MAX, per_feature)),
            (Grid { labels: vec![0.0; 3], ..grid() }, wrong("labels", 3, 4, per_cell)),
            (Grid { rows: vec![0; 5], ..grid() }, wrong("rows", 5, 4, per_cell)),
            (Grid { queries: vec![0], ..grid() }, wrong("queries", 1, 2, "[B]")),
            (
                Grid { ordinals: vec![vec![0; 4], vec![]], ..grid() },
                wrong("ordinals of a ranking", 0, 4, per_cell),
            ),
        ] {
            assert_eq!(wrong_grid.batch().unwrap_err(), expected);
        }
        let empty_mask = Grid { occupied: Occupied::Mask(vec![true]), n_max: 0, ..grid() };
        assert!(matches!(empty_mask.batch(), Err(LayoutError::WrongLength { .. })));
    }

    #[test]
    fn a_batch_that_does_not_fit_its_mask_or_its_cells_is_refused() {
        let batch = grid().batch().unwrap();
        let mask = vec![true, false, true, true];
        let disagree = LayoutError::Disagree { set: 0, length: 2, in_mask: 1 };
        assert_eq!(Grid::masked(&batch, mask, 2).unwrap_err(), disagree);
        let cells = Cells::of_mask(&[true, true, false, true], 2).unwrap();
        assert!(matches!(cells.check_lengths(&[2]), Err(LayoutError::WrongLength { array: "lengths", .. })));
        let too_long = LayoutError::TooLong { set: 0, length: 2, n_max: 1 };
        assert_eq!(Grid::padded(&batch, 1).unwrap_err(), too_long);
        let empty = Batch { offsets: vec![0, 0], ..Batch::default() };
        assert_eq!(Grid::padded(&empty, 1).unwrap_err(), LayoutError::EmptySet { set: 0 });
        assert!(
            cells.scatter(&[0.0; 4], 1, 0.0).is_err() && cells.gather(&mut vec![], &[0.0; 3], 1).is_err()
        );
    }

    #[test]
    fn grids_are_appended_to_a_batch_of_their_kind() {
        let mut batch = grid().batch().unwrap();
        grid().append_to(&mut batch).unwrap();
        assert_eq!((&batch.offsets[..], &batch.rows[..]), (&[0, 2, 3, 5, 6][..], &[0, 1, 2, 3, 4, 5][..]));
        assert_eq!(batch.ordinals, [[1, 0, 0, 1, 0, 0]]);
        let before = batch.clone();
        let other = Grid { num_features: 1, features: vec![0.0; 4], ..grid() };
        assert!(other.append_to(&mut batch).unwrap_err().to_string().contains("features of the batch"));
        let other = Grid { ordinals: vec![], ..grid() };
        assert!(
            other.append_to(&mut batch).unwrap_err().to_string().contains("initial rankings of the batch")
        );
        let of_data = Grid { queries: vec![4, 7], rows: vec![8, 9, 3, usize::MAX], ..grid() };
        assert!(of_data.append_to(&mut batch).unwrap_err().to_string().contains("queries of the batch"));
        let dropout = Some(FeatureDropout {
            rate: 0.5,
            shuffle: Shuffle { seed: 1, epoch: 2 },
            columns: Columns { num_features: 2, first_within_set: 2 },
        });
        let other = Grid { feature_dropout: dropout, ..grid() };
        assert_eq!(other.append_to(&mut batch).unwrap_err(), LayoutError::OtherDropout);
        assert_eq!(batch, before);
        let mut of_set = of_data.batch().unwrap();
        assert_eq!((&of_set.queries[..], &of_set.rows[..]), (&[4, 7][..], &[8, 9, 3][..]));
        assert!(grid().append_to(&mut of_set).unwrap_err().to_string().contains("queries of the batch"));
        let mut of_rows = Grid { queries: vec![], ..of_data.clone() }.batch().unwrap();
        assert_eq!(grid().append_to(&mut of_rows).unwrap_err(), LayoutError::OtherRows);
        let without = Grid { rows: vec![], ..of_data };
        assert_eq!(without.batch().unwrap_err(), LayoutError::QueriesWithoutRows);
        batch.clear();
        grid().append_to(&mut batch).unwrap();
        assert_eq!(batch, grid().batch().unwrap());
        assert_eq!(Grid::default().batch().unwrap().offsets, [0]);
    }
}
