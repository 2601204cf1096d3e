//! [`Dataset`]: queries with their documents, in memory or memory-mapped.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::column::{Column, TextColumn};

/// What a feature index that a line does not mention means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Absent {
    /// The value is not known.
    #[default]
    Missing,
    /// The value is 0, as sparse files mean it.
    Zero,
}

/// Which raw feature indices the columns of a [`Dataset`] stand for, and what was seen of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    /// Raw index of column 0: 0 in a 0-based file, else 1.
    pub first_index: u32,
    /// Number of columns, `F`; column `c` holds the raw index `first_index + c`.
    pub count: u32,
    /// The least raw index that occurred; `None` where no line has a feature.
    pub least: Option<u32>,
    /// The largest raw index that occurred.
    pub largest: Option<u32>,
    /// What an absent index was read as.
    pub absent: Absent,
    /// How many cells were absent: where none was, [`absent`](Self::absent) made no difference.
    pub absent_cells: u64,
}

/// Queries with their documents.
///
/// Rows stand query by query; inside a query in file order. A missing feature is NaN.
#[derive(Debug)]
pub struct Dataset {
    pub(crate) columns: Columns,
    /// `[N, F]`
    pub(crate) features: Column<f32>,
    /// `[Q + 1]`, from 0 to N
    pub(crate) offsets: Column<u64>,
    /// `[N]`; empty where the data has no labels
    pub(crate) labels: Column<f32>,
    /// `[N]` position of each row among the documents of the original file
    pub(crate) positions: Column<u64>,
    /// `[Q]`
    pub(crate) query_ids: TextColumn,
    /// `[N]`; an empty text where the file names none
    pub(crate) document_ids: TextColumn,
    /// `[R][N]` initial scores, NaN = not in that ranking
    pub(crate) initial_scores: Vec<Column<f32>>,
}

impl Dataset {
    /// Number of queries, `Q`.
    pub fn num_queries(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Number of documents, `N`.
    pub fn num_documents(&self) -> usize {
        self.positions.len()
    }

    /// What the feature columns stand for.
    pub fn columns(&self) -> Columns {
        self.columns
    }

    /// Number of feature columns, `F`.
    pub fn num_features(&self) -> usize {
        self.columns.count as usize
    }

    /// Number of initial rankings stored with the data.
    pub fn num_initial(&self) -> usize {
        self.initial_scores.len()
    }

    /// Whether the documents have labels.
    pub fn has_labels(&self) -> bool {
        !self.labels.is_empty() || self.num_documents() == 0
    }

    /// All labels `[N]` in row order, or `None` where the data has none.
    pub fn labels(&self) -> Option<&[f32]> {
        self.has_labels().then_some(&*self.labels)
    }

    /// All features `[N, F]` in row order.
    pub fn features(&self) -> &[f32] {
        &self.features
    }

    /// Position of each row among the documents of the original file `[N]`.
    pub fn positions(&self) -> &[u64] {
        &self.positions
    }

    /// The rows of query number `index`.
    pub fn rows(&self, index: usize) -> Range<usize> {
        self.offsets[index] as usize..self.offsets[index + 1] as usize
    }

    /// Query number `index`.
    pub fn query(&self, index: usize) -> Query<'_> {
        Query { data: self, index, rows: self.rows(index) }
    }

    /// All queries in order.
    pub fn queries(&self) -> impl ExactSizeIterator<Item = Query<'_>> {
        (0..self.num_queries()).map(|index| self.query(index))
    }

    /// Whether any document is judged: has a label of at least 0.
    pub fn has_judged(&self) -> bool {
        self.labels().is_some_and(|labels| labels.iter().any(|&label| label >= 0.0))
    }

    /// Whether any document is relevant: has a label above 0.
    pub fn has_relevant(&self) -> bool {
        self.labels().is_some_and(|labels| labels.iter().any(|&label| label > 0.0))
    }

    /// Puts `values`, one per row, back into the order of the original file.
    pub fn in_original_order<T: Copy + Default>(&self, values: &[T]) -> Vec<T> {
        let mut ordered = vec![T::default(); values.len()];
        for (&value, &position) in values.iter().zip(self.positions.iter()) {
            ordered[position as usize] = value;
        }
        ordered
    }
}

/// One query and the set of its documents.
#[derive(Clone, Debug)]
pub struct Query<'a> {
    data: &'a Dataset,
    index: usize,
    rows: Range<usize>,
}

impl<'a> Query<'a> {
    /// Number of the query in its data set.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The query's id, as the file writes it.
    pub fn id(&self) -> &'a str {
        self.data.query_ids.get(self.index)
    }

    /// Number of documents, `n`.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether the set has no document.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The rows of the data set that hold the query's documents.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Raw features `[n, F]`, missing = NaN.
    pub fn features(&self) -> &'a [f32] {
        let width = self.data.num_features();
        &self.data.features[self.rows.start * width..self.rows.end * width]
    }

    /// Raw features `[F]` of document number `document`.
    pub fn document(&self, document: usize) -> &'a [f32] {
        let width = self.data.num_features();
        &self.features()[document * width..(document + 1) * width]
    }

    /// Labels `[n]`, negative = unjudged; `None` where the data has none.
    pub fn labels(&self) -> Option<&'a [f32]> {
        self.data.labels().map(|labels| &labels[self.rows.clone()])
    }

    /// Scores `[n]` in the initial ranking number `ranking`, NaN = not in that ranking.
    pub fn initial_scores(&self, ranking: usize) -> &'a [f32] {
        &self.data.initial_scores[ranking][self.rows.clone()]
    }

    /// The id of document number `document`, empty where the file names none.
    pub fn document_id(&self, document: usize) -> &'a str {
        self.data.document_ids.get(self.rows.start + document)
    }
}

/// One document on its way into a [`DatasetBuilder`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Document<'a> {
    /// Raw features `[F]`, missing = NaN.
    pub features: &'a [f32],
    /// Label; `None` where the data has none.
    pub label: Option<f32>,
    /// Id, empty where there is none.
    pub id: &'a str,
}

/// Makes a [`Dataset`] in memory, document by document.
#[derive(Debug)]
pub struct DatasetBuilder {
    columns: Columns,
    features: Vec<f32>,
    offsets: Vec<u64>,
    labels: Vec<f32>,
    query_ids: Vec<String>,
    document_ids: Vec<String>,
    documents: u64,
}

impl DatasetBuilder {
    /// An empty data set of `num_features` columns, 1-based.
    pub fn new(num_features: usize) -> Self {
        let count = num_features as u32;
        DatasetBuilder {
            columns: Columns {
                first_index: 1,
                count,
                least: (count > 0).then_some(1),
                largest: (count > 0).then_some(count),
                absent: Absent::Missing,
                absent_cells: 0,
            },
            features: Vec::new(),
            offsets: vec![0],
            labels: Vec::new(),
            query_ids: Vec::new(),
            document_ids: Vec::new(),
            documents: 0,
        }
    }

    /// Starts the next query; documents pushed from here on belong to it.
    pub fn start_query(&mut self, id: impl Into<String>) {
        self.query_ids.push(id.into());
        self.offsets.push(self.documents);
    }

    /// Adds a document to the query started last.
    ///
    /// # Panics
    /// If no query was started, if the number of features is not the data set's, or if only some documents
    /// have a label: these are mistakes of the calling code, not of its input.
    pub fn push(&mut self, document: Document<'_>) {
        assert_eq!(document.features.len(), self.columns.count as usize, "features of a document");
        assert!(
            self.documents == 0 || document.label.is_some() != self.labels.is_empty(),
            "either all documents have a label or none"
        );
        assert!(!self.query_ids.is_empty(), "a document belongs to a query");
        self.features.extend_from_slice(document.features);
        self.labels.extend(document.label);
        self.document_ids.push(document.id.to_owned());
        self.documents += 1;
        *self.offsets.last_mut().expect("never empty") = self.documents;
    }

    /// The finished data set; positions follow the order of pushing.
    pub fn finish(self) -> Dataset {
        Dataset {
            columns: self.columns,
            features: self.features.into(),
            offsets: self.offsets.into(),
            labels: self.labels.into(),
            positions: (0..self.documents).collect::<Vec<_>>().into(),
            query_ids: self.query_ids.iter().collect(),
            document_ids: self.document_ids.iter().collect(),
            initial_scores: Vec::new(),
        }
    }
}
