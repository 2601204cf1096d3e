//! What PTX text says, before its instructions are understood.

use super::types::Type;

/// A module's text.
#[derive(Debug, Default)]
pub(super) struct Text {
    pub variables: Vec<Variable>,
    pub functions: Vec<Function>,
}

/// A kernel or a device function.
#[derive(Debug)]
pub(super) struct Function {
    pub line: u32,
    pub name: String,
    pub is_kernel: bool,
    /// What a device function gives back.
    pub results: Vec<Variable>,
    pub parameters: Vec<Variable>,
    /// `.maxntid` and `.reqntid`, in x, y, z.
    pub most_threads: Option<[u32; 3]>,
    pub exact_threads: Option<[u32; 3]>,
    /// Nothing for a declaration.
    pub body: Option<Vec<Item>>,
}

/// Where a variable lives, and which memory an instruction means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    Generic,
    Global,
    Constant,
    Shared,
    Local,
    Parameter,
}

/// A declared piece of memory.
#[derive(Clone, Debug)]
pub(super) struct Variable {
    pub line: u32,
    pub name: String,
    pub space: Space,
    /// A multiple of which its address is.
    pub align: u32,
    /// Its size; nothing for an array without one, `name[]`.
    pub bytes: Option<u64>,
    /// What it begins with; zeros behind that.
    pub content: Vec<u8>,
}

/// A part of a function's body.
#[derive(Debug)]
pub(super) enum Item {
    Label {
        line: u32,
        name: String,
    },
    Statement(Statement),
    Registers(Registers),
    Variable(Variable),
    /// The labels that a `brx.idx` may go to.
    Targets {
        name: String,
        labels: Vec<String>,
    },
    /// A part with names of its own, `{ … }`.
    Scope(Vec<Item>),
}

/// Declared registers: one, or `name0` to `name{count - 1}`.
#[derive(Debug)]
pub(super) struct Registers {
    pub name: String,
    pub count: Option<u32>,
    pub kind: Type,
}

/// An instruction.
#[derive(Debug)]
pub(super) struct Statement {
    pub line: u32,
    /// The predicate it runs under, and whether that is negated.
    pub guard: Option<(String, bool)>,
    /// The opcode up to its first dot, and what follows, dot by dot.
    pub opcode: String,
    pub modifiers: Vec<String>,
    pub operands: Vec<Operand>,
    /// The text without guard and semicolon, one blank between tokens that had white space between them.
    pub text: String,
    /// The text with `%` for every register: what an `asm` statement is known by.
    pub pattern: String,
    /// Whether it comes from an `asm` statement.
    pub is_asm: bool,
}

/// An instruction's operand.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operand {
    /// A register, a special register with its dimension (`%tid.x`), a label, or a variable's address plus a number.
    Name {
        name: String,
        negated: bool,
        offset: i64,
    },
    /// Two destinations, `d|p`.
    Pair(String, String),
    Integer(i128),
    Single(u32),
    Double(f64),
    Vector(Vec<Operand>),
    /// `[name + offset]`, `[offset]`.
    Address {
        name: Option<String>,
        offset: i64,
    },
    /// `(a, b)` of a call.
    Group(Vec<Operand>),
}
