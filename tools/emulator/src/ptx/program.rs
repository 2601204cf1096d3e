//! A kernel made ready to run: instructions whose operands are numbers of registers.

use std::collections::HashMap;

use super::lanes::{Comparison, Function};
use super::syntax::Space;
use super::types::Type;

/// Number of a register, or of a predicate. Constants and special registers have one too, filled before the kernel runs.
pub(super) type Slot = u32;

/// A kernel.
pub(super) struct Program {
    pub name: String,
    pub code: Vec<Instruction>,
    /// How many registers and predicates there are.
    pub registers: u32,
    pub predicates: u32,
    /// What the text calls them, for reports.
    pub names: HashMap<Slot, String>,
    pub predicate_names: HashMap<Slot, String>,
    /// Registers and predicates with a value that never changes.
    pub constants: Vec<(Slot, u64)>,
    pub constant_predicates: Vec<(Slot, bool)>,
    pub specials: Vec<(Slot, Special)>,
    /// Bytes of static shared memory, and of a multiple of which dynamic shared memory begins.
    pub shared_bytes: u32,
    pub dynamic_align: u32,
    /// Bytes of local memory of a thread.
    pub local_bytes: u32,
    pub parameter_bytes: u32,
    pub most_threads: Option<[u32; 3]>,
    pub exact_threads: Option<[u32; 3]>,
}

/// An instruction, and where it comes from.
pub(super) struct Instruction {
    pub guard: Option<Test>,
    pub op: Op,
    pub line: u32,
    pub text: String,
    /// The text of an `asm` statement's instruction, with `%` for registers.
    pub asm: Option<String>,
}

/// A predicate, or its negation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Test {
    pub predicate: Slot,
    pub negated: bool,
}

/// An address of one of the spaces: a register's value plus a number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Address {
    pub space: Space,
    pub base: Option<Slot>,
    pub offset: u64,
}

/// Registers that are the same for a thread's whole life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Special {
    Thread(usize),
    BlockSize(usize),
    Block(usize),
    GridSize(usize),
    Lane,
    Warp,
    Warps,
    /// `%lanemask_lt` and its like: lanes compared with this one.
    LaneMask(std::cmp::Ordering, bool),
    /// The address of dynamic shared memory, plus a number.
    DynamicBase(i64),
    DynamicShared,
    TotalShared,
    Zero,
    One,
    WarpSize,
}

/// How two predicates make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Combine {
    And,
    Or,
    Xor,
}

impl Combine {
    pub fn apply(self, a: u32, b: u32) -> u32 {
        match self {
            Self::And => a & b,
            Self::Or => a | b,
            Self::Xor => a ^ b,
        }
    }
}

/// Which lane a shuffle reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

/// What a vote tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vote {
    All,
    Any,
    Uniform,
    Ballot,
}

/// What a thread does at a barrier of the block.
#[derive(Clone, Copy, Debug)]
pub(super) enum AtBarrier {
    Wait,
    Arrive,
    /// Waits, and gets how many threads of the block hold a predicate.
    Count {
        to: Slot,
        of: Test,
    },
    /// Waits, and gets whether all, or any, do.
    All {
        to: Slot,
        of: Test,
    },
    Any {
        to: Slot,
        of: Test,
    },
}

/// A function of a word in memory and two operands.
pub(super) type AtomicFunction = Box<dyn Fn(u64, u64, u64) -> u64 + Send + Sync>;

/// What an instruction does.
pub(super) enum Op {
    Nothing,
    Compute {
        to: Slot,
        from: [Slot; 4],
        function: Function,
    },
    Compare {
        to: Slot,
        /// Gets the comparison's negation, combined in the same way.
        inverse: Option<Slot>,
        combine: Option<(Combine, Test)>,
        from: [Slot; 2],
        function: Comparison,
    },
    Select {
        to: Slot,
        from: [Slot; 2],
        by: Test,
    },
    Logic {
        to: Slot,
        from: [Test; 2],
        combine: Combine,
    },
    /// Registers side by side in a wider one, the first lowest, `bits` each; and back.
    Pack {
        to: Slot,
        from: Vec<Slot>,
        bits: u32,
    },
    Unpack {
        to: Vec<Slot>,
        from: Slot,
        bits: u32,
    },
    Clock {
        to: Slot,
    },
    /// `kind` is the type in memory, `to_bits` the registers' width.
    Load {
        to: Vec<Slot>,
        kind: Type,
        to_bits: u32,
        at: Address,
    },
    Store {
        from: Vec<Slot>,
        kind: Type,
        at: Address,
    },
    /// Sets `to`, if it is wanted, to the word that was there.
    Atomic {
        to: Option<Slot>,
        kind: Type,
        at: Address,
        from: [Slot; 2],
        function: AtomicFunction,
    },
    /// `read`: how many of the bytes come from memory, the rest being zeros; all without it. `skip` makes it none.
    CopyAsync {
        to: Address,
        from: Address,
        bytes: u32,
        read: Option<Slot>,
        skip: Option<Test>,
    },
    CopyCommit,
    /// Leaves at most so many groups under way; nothing: waits for all copies, in groups or not.
    CopyWait(Option<u32>),
    LoadMatrix {
        to: Vec<Slot>,
        transposed: bool,
        at: Address,
    },
    /// d = a·b + c; `half`: f16, else bf16. `a` of two or four registers says how deep.
    MatrixProduct {
        to: [Slot; 4],
        a: Vec<Slot>,
        b: Vec<Slot>,
        c: [Slot; 4],
        half: bool,
    },
    Shuffle {
        to: Slot,
        inside: Option<Slot>,
        mode: Shuffle,
        from: [Slot; 3],
        members: Slot,
    },
    Vote {
        to: Slot,
        mode: Vote,
        of: Test,
        members: Slot,
    },
    /// Lanes with the same value; `all`: all members if they all have it, else none, and a predicate that tells.
    Match {
        to: Slot,
        all: bool,
        same: Option<Slot>,
        of: Slot,
        members: Slot,
    },
    /// A value of all members.
    Reduce {
        to: Slot,
        of: Slot,
        function: AtomicFunction,
        members: Slot,
    },
    SyncWarp {
        members: Slot,
    },
    ActiveMask {
        to: Slot,
    },
    Barrier {
        action: AtBarrier,
        id: Slot,
        threads: Option<Slot>,
    },
    Branch(u32),
    BranchIndexed {
        index: Slot,
        targets: Vec<u32>,
    },
    Exit,
    Trap,
}

impl Op {
    /// Where lanes may go besides the next instruction, and whether that is one way or the only one.
    pub fn targets(&self) -> &[u32] {
        match self {
            Self::Branch(target) => std::slice::from_ref(target),
            Self::BranchIndexed { targets, .. } => targets,
            _ => &[],
        }
    }

    /// Whether lanes that do it never come to the next instruction.
    pub fn leaves(&self) -> bool {
        matches!(self, Self::Branch(_) | Self::BranchIndexed { .. } | Self::Exit | Self::Trap)
    }

    /// Whether all lanes of the warp that have not ended must do it together.
    pub fn is_aligned(&self) -> bool {
        matches!(self, Self::LoadMatrix { .. } | Self::MatrixProduct { .. } | Self::Barrier { .. })
    }

    /// The mask of lanes that do it together, of one that waits for them.
    pub fn members(&self) -> Option<Slot> {
        match self {
            Self::Shuffle { members, .. }
            | Self::Vote { members, .. }
            | Self::Match { members, .. }
            | Self::Reduce { members, .. }
            | Self::SyncWarp { members } => Some(*members),
            _ => None,
        }
    }
}
