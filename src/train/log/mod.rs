//! What a run leaves to look at.

pub mod events;

pub use events::EventWriter;
