//! Cross-validation by the protocol of LETOR: which parts each fold takes ([`protocol`]), and what the scores of all
//! folds and seeds amount to ([`summary`]).

pub mod protocol;
pub mod summary;

pub use protocol::Fold;
pub use summary::{FoldScores, Summary};
