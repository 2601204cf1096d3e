//! What a run leaves to look at: JSON lines for programs, event files for TensorBoard, a picture for people.

pub mod curve;
pub mod events;
pub mod jsonl;

pub use curve::Curve;
pub use events::EventWriter;
pub use jsonl::JsonLines;
