//! Micro-kernels with fixed vectors.

use half::bf16;
use serde_json::json;
use setrank::device::kernels::Family;
use setrank::device::{Buffer, DeviceError, DeviceRepr, Gpu, Panels, Parameter, Plan, TensorMap};

use crate::mismatch::Mismatch;
use crate::outcome::Outcome;
use crate::vectors::{InPanels, Matrix, Micro, SHARED_BYTES, Vector};

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// `TestArguments` of tools/emulator/tests/kernels/arguments.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct Arguments {
    input: *const u32,
    output: *mut u32,
    numbers: [i32; 2],
}

/// `TensorArguments`, likewise.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct TensorArguments {
    map: TensorMap,
    arguments: Arguments,
    unused: [i32; 10],
}

// SAFETY: plain numbers and addresses of the device.
unsafe impl DeviceRepr for TensorArguments {}
// SAFETY: laid out as the header's struct, without padding.
unsafe impl Parameter for TensorArguments {
    fn shapes(&self) -> String {
        self.arguments.shapes()
    }
}

// SAFETY: plain numbers and addresses of the device.
unsafe impl DeviceRepr for Arguments {}
// SAFETY: laid out as the header's struct, without padding.
unsafe impl Parameter for Arguments {
    fn shapes(&self) -> String {
        format!("the numbers {:?}", self.numbers)
    }
}

/// Runs a micro-kernel on all its vectors.
pub fn run(micro: &Micro) -> anyhow::Result<Outcome> {
    let gpu = Gpu::with_families(0, FAMILIES)?;
    let (name, capability) = (&gpu.info().name, gpu.info().capability);
    if micro.source.ends_with("_sm90") && capability != (9, 0) {
        let (major, minor) = capability;
        return Ok(Outcome::Skipped(format!(
            "{name} has compute capability {major}.{minor}; these instructions are 9.0's"
        )));
    }
    let mut mismatches = Vec::new();
    let vectors = (micro.vectors)();
    for vector in &vectors {
        let output = launch(&gpu, micro.source, vector)?;
        let places = vector.wrong(&output);
        if !places.is_empty() {
            mismatches.push(Mismatch {
                what: format!("{}, {} threads, numbers {:?}", micro.kernel, vector.threads, vector.numbers),
                seed: None,
                places,
                found: output.iter().map(|word| format!("{word:#010x}")).collect(),
                expected: vector.expected.iter().map(ToString::to_string).collect(),
            });
        }
    }
    Ok(Outcome::of(mismatches, json!({ "vectors": vectors.len() })))
}

/// What a launch writes.
fn launch(gpu: &Gpu, family: &'static str, vector: &Vector) -> Result<Vec<u32>, DeviceError> {
    let input: &[bf16] = bytemuck::cast_slice(&vector.input);
    let mut arena = gpu.arena("a micro-kernel's input", size_of_val(input))?;
    let mut from: Buffer<bf16> = arena.take(input.len())?;
    gpu.upload(&mut from, input)?;
    // An arena each, so that an emulator or a sanitizer finds what a kernel writes behind a buffer.
    let bytes = vector.output_words * size_of::<i32>();
    let mut to: Buffer<i32> = gpu.arena("a micro-kernel's output", bytes)?.take(vector.output_words)?;
    gpu.zero(&mut to)?;
    let plan = Plan {
        family,
        kernel: vector.kernel,
        grid: [vector.blocks, 1, 1],
        block: vector.threads,
        shared_bytes: SHARED_BYTES,
    };
    let arguments = Arguments { input: from.pointer(), output: to.pointer_mut(), numbers: vector.numbers };
    match vector.matrix {
        None => {
            // SAFETY: the vector has as many words of input and output as its kernel touches, and both live until the
            // download has waited for it.
            unsafe { gpu.launch(&plan, &arguments) }?;
        }
        Some(Matrix { rows, columns, box_rows, panels }) => {
            let map = match panels {
                None => gpu.tensor_map(&from, [rows, columns], box_rows),
                Some(InPanels { width, of_box, apart }) => {
                    let panels = match apart {
                        true => Panels::apart(rows, columns, width),
                        false => Panels::of_rows(rows, columns),
                    };
                    gpu.panels_map(&from, panels, [of_box, box_rows])
                }
            }?;
            // SAFETY: as above, and a kernel whose vectors have a matrix takes a tensor map.
            unsafe { gpu.launch(&plan, &TensorArguments { map, arguments, unused: [0; 10] }) }?;
        }
    }
    Ok(bytemuck::cast_slice(&gpu.download(&to)?).to_vec())
}
