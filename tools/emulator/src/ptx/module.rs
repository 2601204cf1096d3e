//! Modules, and launches of their kernels.

use std::collections::{BTreeSet, HashMap};

use crate::launch::{Buffer, Launch};

use super::block;
use super::coverage::{Coverage, Executed};
use super::decode::{SHARED_BASE, Symbols, decode};
use super::error::{Fault, FaultKind, ParseError, Place};
use super::memory::{Memory, Piece, piece_address};
use super::parser;
use super::program::{Program, Special};
use super::syntax::{Space, Variable};
use super::warp::{Run, Stopped, Warp};

/// How kernels are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of shared memory that a block may have, static and dynamic.
    pub shared_limit: u32,
    /// The most instructions that a warp may execute: more is an endless loop.
    pub budget: u64,
}

impl Default for Options {
    /// 227 KiB, and ten million instructions a warp.
    fn default() -> Self {
        Self { shared_limit: 227 << 10, budget: 10_000_000 }
    }
}

/// A module of PTX, ready to run.
pub struct Module {
    programs: Vec<Program>,
    variables: Vec<(String, Vec<u8>, bool)>,
}

impl Module {
    /// Parses and decodes a module, all of its kernels.
    ///
    /// # Errors
    /// The first line that is no PTX, or that has an instruction the interpreter does not know.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let text = parser::parse(text)?;
        let mut symbols =
            Symbols { addresses: HashMap::new(), shared: HashMap::new(), functions: HashMap::new() };
        let mut variables = Vec::new();
        for variable in &text.variables {
            if variable.space == Space::Shared {
                symbols.shared.insert(&variable.name, variable);
                continue;
            }
            let address = piece_address(variables.len());
            symbols.addresses.insert(&variable.name, (variable.space, address));
            variables.push((variable.name.clone(), content(variable)?, variable.space == Space::Constant));
        }
        // A declaration may stand before or behind the function itself.
        for function in &text.functions {
            let known = symbols.functions.entry(&function.name).or_insert(function);
            if known.body.is_none() {
                *known = function;
            }
        }
        let kernels = text.functions.iter().filter(|function| function.is_kernel && function.body.is_some());
        let programs = kernels.map(|function| decode(function, &symbols)).collect::<Result<_, _>>()?;
        Ok(Self { programs, variables })
    }

    /// The names of its kernels, in the text's order.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.programs.iter().map(|program| program.name.as_str())
    }

    /// The texts of the `asm` statements' instructions in its kernels, with `%` for each register.
    pub fn asm(&self) -> BTreeSet<&str> {
        let code = self.programs.iter().flat_map(|program| &program.code);
        code.filter_map(|instruction| instruction.asm.as_deref()).collect()
    }

    /// Runs a launch, block after block, and leaves its buffers as the kernel left them, also when it faults. The module's
    /// own variables begin with their initial values in each launch.
    ///
    /// # Errors
    /// The first thing that a thread does wrong, or a launch that fits neither the kernel nor the card.
    pub fn run(&self, launch: &mut Launch, options: &Options) -> Result<Coverage, Fault> {
        let refuse = |message: String| Fault {
            kind: FaultKind::Launch,
            message,
            kernel: launch.kernel.clone(),
            place: None,
        };
        let Some(program) = self.programs.iter().find(|program| program.name == launch.kernel) else {
            let known: Vec<&str> = self.kernels().collect();
            return Err(refuse(format!("no such kernel; the module has {}", known.join(", "))));
        };
        check(program, launch, options).map_err(refuse)?;
        let parameter = self.parameter(launch).map_err(refuse)?;

        let own = self.variables.iter().map(|(name, bytes, is_constant)| Piece {
            name: name.clone(),
            bytes: bytes.clone(),
            is_constant: *is_constant,
        });
        let buffers = launch.buffers.iter_mut().map(|Buffer { name, bytes }| Piece {
            name: name.clone(),
            bytes: std::mem::take(bytes),
            is_constant: false,
        });
        let pieces: Vec<Piece> = own.chain(buffers).collect();
        let threads = launch.block.iter().product::<u32>();
        let warps = threads.div_ceil(32) as usize;
        let shared_bytes = shared_bytes(program, launch) as usize;
        let memory = Memory::new(pieces, parameter, shared_bytes, program.local_bytes as usize, warps * 32);
        let mut run = Run {
            memory,
            executed: vec![0; program.code.len()],
            budget: options.budget,
            beyond: HashMap::new(),
        };
        let outcome = blocks(program, launch, &mut run);
        let pieces = run.memory.pieces.drain(self.variables.len()..);
        for (buffer, piece) in launch.buffers.iter_mut().zip(pieces) {
            buffer.bytes = piece.bytes;
        }
        outcome?;
        let executed = program.code.iter().zip(&run.executed);
        let instructions = executed
            .map(|(instruction, &count)| Executed {
                line: instruction.line,
                text: instruction.text.clone(),
                asm: instruction.asm.clone(),
                count,
            })
            .collect();
        Ok(Coverage::new(&program.name, instructions))
    }

    /// The parameter's bytes with the pointers filled in.
    fn parameter(&self, launch: &Launch) -> Result<Vec<u8>, String> {
        let mut bytes = launch.parameter.clone();
        for pointer in &launch.pointers {
            let Some(buffer) = launch.buffers.get(pointer.buffer) else {
                return Err(format!("a pointer to buffer {} of {}", pointer.buffer, launch.buffers.len()));
            };
            let length = buffer.bytes.len();
            if pointer.offset > length {
                return Err(format!(
                    "a pointer to byte {} of `{}`, which has {length}",
                    pointer.offset, buffer.name
                ));
            }
            let parameter = bytes.len();
            let end = pointer.at.saturating_add(8);
            let Some(place) = bytes.get_mut(pointer.at..end) else {
                return Err(format!("a pointer at byte {} of a parameter of {parameter} bytes", pointer.at));
            };
            let address = piece_address(self.variables.len() + pointer.buffer) + pointer.offset as u64;
            place.copy_from_slice(&address.to_le_bytes());
        }
        Ok(bytes)
    }
}

/// A variable's bytes.
fn content(variable: &Variable) -> Result<Vec<u8>, ParseError> {
    let Some(bytes) = variable.bytes else {
        return Err(ParseError {
            line: variable.line,
            token: variable.name.clone(),
            message: "a variable without a size".to_owned(),
        });
    };
    let mut content = variable.content.clone();
    content.resize(bytes as usize, 0);
    Ok(content)
}

/// The address at which dynamic shared memory begins.
fn dynamic_base(program: &Program) -> u32 {
    (SHARED_BASE + program.shared_bytes).next_multiple_of(program.dynamic_align)
}

/// Bytes of shared memory of a block, static, dynamic, and what alignment leaves between.
fn shared_bytes(program: &Program, launch: &Launch) -> u64 {
    match launch.shared_bytes {
        0 => program.shared_bytes.into(),
        dynamic => u64::from(dynamic_base(program) - SHARED_BASE) + u64::from(dynamic),
    }
}

fn check(program: &Program, launch: &Launch, options: &Options) -> Result<(), String> {
    let threads = launch.block.iter().fold(1, |threads: u64, &size| threads.saturating_mul(size.into()));
    if threads == 0 || threads > 1024 || launch.block[2] > 64 {
        return Err(format!("a block of {:?} threads", launch.block));
    }
    let [blocks, rows, layers] = launch.grid;
    if blocks == 0 || rows == 0 || layers == 0 || blocks > i32::MAX as u32 || rows.max(layers) > 65535 {
        return Err(format!("a grid of {:?} blocks", launch.grid));
    }
    if let Some(most) = program.most_threads {
        let most_threads = most.map(u64::from).iter().product::<u64>();
        if threads > most_threads {
            return Err(format!(
                "{threads} threads in a block, and the kernel is compiled for {most_threads}"
            ));
        }
    }
    if let Some(exact) = program.exact_threads.filter(|&exact| exact != launch.block) {
        return Err(format!(
            "a block of {:?} threads, and the kernel is compiled for {exact:?}",
            launch.block
        ));
    }
    let shared = shared_bytes(program, launch);
    if shared > options.shared_limit.into() {
        return Err(format!(
            "{shared} bytes of shared memory in a block of at most {}",
            options.shared_limit
        ));
    }
    let (given, taken) = (launch.parameter.len(), program.parameter_bytes);
    if given != taken as usize {
        return Err(format!("a parameter of {given} bytes, and the kernel takes {taken}"));
    }
    Ok(())
}

fn blocks(program: &Program, launch: &Launch, run: &mut Run) -> Result<(), Fault> {
    let threads = launch.block.iter().product::<u32>();
    let mut warps: Vec<Warp<'_>> =
        (0..threads.div_ceil(32)).map(|number| Warp::new(program, number)).collect();
    for z in 0..launch.grid[2] {
        for y in 0..launch.grid[1] {
            for x in 0..launch.grid[0] {
                let block = [x, y, z];
                run.memory.begin_block();
                for warp in &mut warps {
                    let number = warp.number;
                    warp.begin(threads, |special, lane| {
                        special_value(special, program, launch, block, number, lane)
                    });
                }
                block::run(&mut warps, run)
                    .map_err(|(warp, stopped)| fault(program, launch, block, warp, stopped))?;
            }
        }
    }
    Ok(())
}

/// The place of a thread in its block.
fn thread_index(launch: &Launch, number: u32) -> [u32; 3] {
    let [x, y, _] = launch.block;
    [number % x, number / x % y, number / x / y]
}

fn special_value(
    special: Special,
    program: &Program,
    launch: &Launch,
    block: [u32; 3],
    warp: u32,
    lane: u32,
) -> u64 {
    use std::cmp::Ordering;
    let of_mask = |order, or_equal: bool| {
        let all = (0..32u32).filter(|other| other.cmp(&lane) == order || or_equal && *other == lane);
        all.fold(0u32, |mask, other| mask | 1 << other)
    };
    match special {
        Special::Thread(axis) => thread_index(launch, warp * 32 + lane)[axis].into(),
        Special::BlockSize(axis) => launch.block[axis].into(),
        Special::Block(axis) => block[axis].into(),
        Special::GridSize(axis) => launch.grid[axis].into(),
        Special::Lane => lane.into(),
        Special::Warp => warp.into(),
        Special::Warps => launch.block.iter().product::<u32>().div_ceil(32).into(),
        Special::LaneMask(Ordering::Equal, _) => 1 << lane,
        Special::LaneMask(order, or_equal) => of_mask(order, or_equal).into(),
        Special::DynamicBase(offset) => u64::from(dynamic_base(program)).wrapping_add_signed(offset),
        Special::DynamicShared => launch.shared_bytes.into(),
        Special::TotalShared => shared_bytes(program, launch),
        Special::Zero => 0,
        Special::One => 1,
        Special::WarpSize => 32,
    }
}

fn fault(program: &Program, launch: &Launch, block: [u32; 3], warp: usize, stopped: Stopped) -> Fault {
    let instruction = &program.code[stopped.at as usize];
    let thread = thread_index(launch, (warp * 32 + stopped.wrong.lane) as u32);
    Fault {
        kind: stopped.wrong.kind,
        message: stopped.wrong.message,
        kernel: program.name.clone(),
        place: Some(Place { line: instruction.line, text: instruction.text.clone(), block, thread }),
    }
}
