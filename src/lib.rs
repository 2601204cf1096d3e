//! SetRank: a permutation-invariant ranking model over the set of documents of a query
//! (Pang et al., "SetRank: Learning a Permutation-Invariant Ranking Model for Information Retrieval",
//! SIGIR 2020).

#[cfg(target_endian = "big")]
compile_error!(
    "setrank's files are little-endian and mapped as they are: big-endian machines are not supported"
);

pub mod bench;
pub mod config;
pub mod data;
pub mod device;
pub mod error;
pub mod eval;
pub mod files;
pub mod model;
pub mod ops;
pub mod rng;
pub mod train;

pub use error::{Error, Result};
