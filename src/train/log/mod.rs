//! What a run leaves to look at: JSON lines for programs, event files for TensorBoard.

pub mod events;
pub mod jsonl;

pub use events::EventWriter;
pub use jsonl::JsonLines;
