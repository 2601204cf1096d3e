//! Reading the rows of a data set as a model's features.

use super::{Absent, Columns, Dataset};
use crate::{Error, Result};

/// The raw features that a model reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawFeatures {
    /// Raw index of the first feature: 0 or 1.
    pub first_index: u32,
    /// Number of features, `F`.
    pub count: u32,
    /// What an absent index means to the model.
    pub absent: Absent,
}

impl From<Columns> for RawFeatures {
    /// What a model trained on data of these columns reads.
    fn from(columns: Columns) -> Self {
        RawFeatures { first_index: columns.first_index, count: columns.count, absent: columns.absent }
    }
}

/// How a row of a data set becomes the raw features of a model: by raw index, whatever the first index and
/// the width of the data. A feature beyond the width of the data is absent, which reads as the model says.
#[derive(Clone, Copy, Debug)]
pub struct Alignment {
    /// Columns of the data that stand before the model's first.
    skipped: usize,
    /// The model's features that stand before the data's first.
    padding: usize,
    /// Number of columns that both have.
    shared: usize,
    fill: f32,
}

impl Alignment {
    /// Writes the raw row `[F of the data]` to `out` `[F of the model]`, missing = NaN.
    ///
    /// # Panics
    /// If one of them is too short.
    #[inline]
    pub fn read_row(&self, raw: &[f32], out: &mut [f32]) {
        let (before, rest) = out.split_at_mut(self.padding);
        let (shared, after) = rest.split_at_mut(self.shared);
        before.fill(self.fill);
        shared.copy_from_slice(&raw[self.skipped..self.skipped + self.shared]);
        after.fill(self.fill);
    }
}

impl Dataset {
    /// How a model with the features `model` reads the rows of this data.
    ///
    /// It is an error if a feature occurs that the model does not have, or if absent values were read in
    /// another way than the model reads them.
    ///
    /// ```
    /// use setrank::data::{Absent, DatasetBuilder, Document, RawFeatures};
    ///
    /// let mut builder = DatasetBuilder::new(2);
    /// builder.start_query("q");
    /// builder.push(Document { features: &[0.5, 3.0], ..Document::default() });
    /// let data = builder.finish();
    /// let model = RawFeatures { first_index: 1, count: 3, absent: Absent::Missing };
    /// let mut row = [0.0; 3];
    /// data.aligned_to(model)?.read_row(data.query(0).document(0), &mut row);
    /// assert!(row[..2] == [0.5, 3.0] && row[2].is_nan());
    /// # Ok::<(), setrank::Error>(())
    /// ```
    pub fn aligned_to(&self, model: RawFeatures) -> Result<Alignment> {
        let columns = self.columns();
        let model_end = u64::from(model.first_index) + u64::from(model.count);
        if let Some(least) = columns.least.filter(|&least| least < model.first_index) {
            return Err(self.foreign_feature(least, model));
        }
        if let Some(largest) = columns.largest.filter(|&largest| u64::from(largest) >= model_end) {
            return Err(self.foreign_feature(largest, model));
        }
        let data_end = u64::from(columns.first_index) + u64::from(columns.count);
        let first = columns.first_index.max(model.first_index);
        let shared = data_end.min(model_end).saturating_sub(u64::from(first));
        // The model's features beyond the data's width are absent from every row.
        let some_are_absent = columns.absent_cells > 0 || shared < u64::from(model.count);
        if columns.absent != model.absent && some_are_absent {
            let name = |absent| match absent {
                Absent::Missing => "missing",
                Absent::Zero => "zero",
            };
            return Err(Error::data(format!(
                "the model reads an absent feature as {0}, but the data was read with --absent {1}: import it \
                 with --absent {0}",
                name(model.absent),
                name(columns.absent)
            )));
        }
        Ok(Alignment {
            skipped: (first - columns.first_index).min(columns.count) as usize,
            padding: (first - model.first_index).min(model.count) as usize,
            shared: shared as usize,
            fill: match model.absent {
                Absent::Missing => f32::NAN,
                Absent::Zero => 0.0,
            },
        })
    }

    fn foreign_feature(&self, index: u32, model: RawFeatures) -> Error {
        let columns = self.columns();
        let column = (index - columns.first_index) as usize;
        let occurs = |value: f32| match columns.absent {
            Absent::Missing => !value.is_nan(),
            Absent::Zero => value != 0.0,
        };
        let place = self.queries().find_map(|query| {
            let document = (0..query.len()).find(|&document| occurs(query.document(document)[column]))?;
            Some(format!(" (first in document {} of query {})", document + 1, query.id()))
        });
        Error::data(format!(
            "the data has the feature {index}{}, but the model reads the features {} to {}",
            place.unwrap_or_default(),
            model.first_index,
            (u64::from(model.first_index) + u64::from(model.count)).saturating_sub(1)
        ))
    }
}
