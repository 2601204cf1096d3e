//! What can be wrong with a module, and with a launch of one of its kernels.

use std::fmt;

/// Text that is no PTX, or that the interpreter does not know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}: `{token}`")]
pub struct ParseError {
    /// Line of the text, from 1.
    pub line: u32,
    /// The token or statement.
    pub token: String,
    /// What is wrong with it.
    pub message: String,
}

/// What sort of thing a kernel or a launch does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The launch fits neither the kernel nor the card: no such kernel, sizes, pointers.
    Launch,
    /// An access outside of every buffer, of shared memory, of local memory or of the parameter.
    IllegalAddress,
    /// An address that is no multiple of the access's size.
    Misaligned,
    /// A write to constant memory or to the parameter.
    ReadOnly,
    /// A read of a register or of shared memory that nothing wrote.
    Uninitialised,
    /// A read of shared memory that an asynchronous copy is still to fill.
    InFlight,
    /// An instruction that needs all lanes of the warp without all of them, or one that waits for lanes that never come.
    NotConverged,
    /// Barriers that cannot complete, or that are used in two ways at once.
    Barrier,
    /// An operand outside of what the instruction defines.
    Undefined,
    /// More instructions than the budget allows: an endless loop.
    Budget,
    /// A `trap` instruction.
    Trap,
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Launch => "bad launch",
            Self::IllegalAddress => "illegal address",
            Self::Misaligned => "misaligned address",
            Self::ReadOnly => "write to read-only memory",
            Self::Uninitialised => "uninitialised value",
            Self::InFlight => "copy still in flight",
            Self::NotConverged => "lanes not converged",
            Self::Barrier => "barrier",
            Self::Undefined => "undefined operand",
            Self::Budget => "step budget",
            Self::Trap => "trap",
        })
    }
}

/// Where in a launch a fault happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Line of the PTX text, from 1.
    pub line: u32,
    /// The instruction.
    pub text: String,
    /// blockIdx.
    pub block: [u32; 3],
    /// threadIdx of the first thread concerned.
    pub thread: [u32; 3],
}

/// A launch that was stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What sort of fault.
    pub kind: FaultKind,
    /// What happened, in words.
    pub message: String,
    /// Name of the kernel.
    pub kernel: String,
    /// Where; nowhere for a launch that never started.
    pub place: Option<Place>,
}

impl std::error::Error for Fault {}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.kernel, self.kind, self.message)?;
        let Some(Place { line, text, block, thread }) = &self.place else { return Ok(()) };
        write!(f, "\n  PTX line {line}: {text}\n  block {block:?}, thread {thread:?}")
    }
}
