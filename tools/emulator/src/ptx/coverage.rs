//! Which instructions launches have executed.

use std::collections::BTreeMap;

/// An instruction of a kernel, and how often warps executed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executed {
    /// Line of the PTX text, from 1.
    pub line: u32,
    /// The instruction.
    pub text: String,
    /// For an instruction of an `asm` statement: its text with `%` for each register, the same wherever it is put in.
    pub asm: Option<String>,
    /// How often a warp executed it, with at least one lane.
    pub count: u64,
}

/// The instructions of the kernels that were launched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    kernels: Vec<(String, Vec<Executed>)>,
}

impl Coverage {
    pub(super) fn new(kernel: &str, instructions: Vec<Executed>) -> Self {
        Self { kernels: vec![(kernel.to_owned(), instructions)] }
    }

    /// Adds what other launches have executed.
    pub fn merge(&mut self, other: Self) {
        for (kernel, instructions) in other.kernels {
            let is_same = |known: &[Executed]| {
                let mut pairs = known.iter().zip(&instructions);
                known.len() == instructions.len() && pairs.all(|(a, b)| a.line == b.line && a.text == b.text)
            };
            let same = self.kernels.iter_mut().find(|(known, all)| *known == kernel && is_same(all));
            match same {
                Some((_, all)) => {
                    all.iter_mut().zip(&instructions).for_each(|(to, from)| to.count += from.count)
                }
                None => self.kernels.push((kernel, instructions)),
            }
        }
    }

    /// All instructions of the kernels, executed or not.
    pub fn instructions(&self) -> impl Iterator<Item = &Executed> {
        self.kernels.iter().flat_map(|(_, all)| all)
    }

    /// How many instructions warps executed.
    pub fn executed(&self) -> u64 {
        self.instructions().map(|one| one.count).sum()
    }

    /// How often each opcode was executed, with its modifiers; those that were not are left out.
    pub fn opcodes(&self) -> BTreeMap<&str, u64> {
        let mut all = BTreeMap::new();
        for one in self.instructions().filter(|one| one.count > 0) {
            *all.entry(one.text.split(' ').next().unwrap_or_default()).or_default() += one.count;
        }
        all
    }

    /// How often each text of an `asm` statement's instruction was executed, those with 0 included.
    pub fn asm(&self) -> BTreeMap<&str, u64> {
        let mut all = BTreeMap::new();
        for one in self.instructions() {
            if let Some(asm) = &one.asm {
                *all.entry(asm.as_str()).or_default() += one.count;
            }
        }
        all
    }

    /// The texts of `asm` statements' instructions that no launch executed anywhere.
    pub fn missing_asm(&self) -> Vec<&str> {
        self.asm().into_iter().filter(|&(_, count)| count == 0).map(|(text, _)| text).collect()
    }
}
