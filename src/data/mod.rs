//! Sets of documents: from text to the batches that a model sees.
//!
//! Flow: LETOR text ([`letor`]) → [`Dataset`], in memory or in a memory-mapped `.sets` file ([`store`]) →
//! normalised features ([`normalize`]) → ragged [`Batch`](batch::Batch)es ([`batch`]), which [`layout`] also makes of padded and
//! masked ones. [`synth`] makes data sets up.

pub mod alignment;
pub mod augment;
pub mod batch;
pub mod column;
pub mod concat;
pub mod dataset;
pub mod initial;
mod input;
pub mod layout;
pub mod letor;
pub mod normalize;
mod number;
mod sink;
pub mod store;
pub mod subset;
pub mod synth;

pub use alignment::{Alignment, RawFeatures};
pub use dataset::{Absent, Columns, Dataset, DatasetBuilder, Document, Query};
pub use normalize::Normalize;
