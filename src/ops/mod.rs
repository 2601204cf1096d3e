//! The model's operations: one file or folder a family. On the CPU forward and backward stand side by side; on a GPU a family's
//! launchers, plans and problems are in its `device`, `plan` and `check`, and those that only kernels need have nothing else.
//! `check` is the rule that kernels are held to, and the list of them all.
//!
//! Every operation is generic over [`Scalar`]: f32 is the product, f64 the oracle that the f32 path, the
//! kernels and the gradient checks are held against. Matrices are row-major slices; a batch is ragged: its
//! documents are rows, and `offsets [B + 1]` say where each set begins.
//!
//! Results do not depend on the number of threads: work is cut into pieces of a fixed size, each piece is
//! computed by one thread in a fixed order, and pieces are combined in order.

pub mod attention;
#[cfg(feature = "cuda")]
pub mod check;
pub mod dropout;
pub mod embed;
pub mod feed_forward;
#[cfg(feature = "cuda")]
pub mod gather;
pub mod gemm;
pub mod layer_norm;
pub mod linear;
pub mod loss;
#[cfg(feature = "cuda")]
pub mod norm_linear;
#[cfg(feature = "cuda")]
pub mod optimizer;
#[cfg(feature = "cuda")]
pub mod partial_sums;
#[cfg(feature = "cuda")]
mod parts;
pub mod rbf;
pub mod reduce;
#[cfg(feature = "cuda")]
pub mod row_sums;
pub mod rows;
pub mod scalar;
#[cfg(feature = "cuda")]
pub mod score;
#[cfg(feature = "cuda")]
pub mod score_loss;
pub mod scratch;
pub mod simd;
#[cfg(feature = "cuda")]
pub(crate) mod sizes;
#[cfg(feature = "cuda")]
pub mod unpad;
#[cfg(feature = "cuda")]
mod values;

pub use scalar::Scalar;
