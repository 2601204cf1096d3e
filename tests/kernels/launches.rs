//! Set attention as a launch that emulator, sanitizers and interpreter run.

use std::mem::offset_of;

use half::bf16;
use setrank::device::abi::SetAttentionForward;
use setrank::device::{Limits, Plan};
use setrank::ops::attention::SetAttentionPlan;
use setrank::ops::attention::check::{Answer, Problem};
use setrank_emulator::launch::{Buffer, Launch, Pointer};

/// Numbers of the buffers of a launch.
const OUTPUT: usize = 2;
const LOG_SUM_EXP: usize = 3;

/// The launch that a card of these limits gets for a problem; results are poisoned.
pub fn set_attention(problem: &Problem, limits: &Limits) -> Launch {
    let plan = SetAttentionPlan::new(&problem.offsets, problem.heads, limits).unwrap();
    let Plan { kernel, grid, block, shared_bytes, .. } = plan.forward().expect("a problem has documents");
    let buffer = |name: &str, bytes: &[u8]| Buffer { name: name.into(), bytes: bytes.to_vec() };
    let rows = problem.rows();
    Launch {
        kernel: kernel.into(),
        grid,
        block: [block, 1, 1],
        shared_bytes,
        parameter: bytes_of(&plan.forward_numbers()),
        pointers: [
            offset_of!(SetAttentionForward, qkv),
            offset_of!(SetAttentionForward, tiles),
            offset_of!(SetAttentionForward, output),
            offset_of!(SetAttentionForward, log_sum_exp),
        ]
        .into_iter()
        .enumerate()
        .map(|(buffer, at)| Pointer { at, buffer, offset: 0 })
        .collect(),
        buffers: vec![
            buffer("qkv", bytemuck::cast_slice(&problem.qkv)),
            buffer("tiles", bytemuck::cast_slice(&plan.tiles)),
            buffer("output", &vec![0xFF; 2 * rows * problem.heads.hidden()]),
            buffer("log_sum_exp", &vec![0xFF; 4 * rows * problem.heads.count]),
        ],
    }
}

/// What a launch of set attention left in its buffers.
pub fn answer(launch: &Launch) -> Answer {
    let heads = launch.buffers[OUTPUT].bytes.chunks_exact(2);
    let log_sum_exp = launch.buffers[LOG_SUM_EXP].bytes.chunks_exact(4);
    Answer {
        heads: heads.map(|two| bf16::from_le_bytes(two.try_into().unwrap()).to_f64()).collect(),
        log_sum_exp: log_sum_exp
            .map(|four| f64::from(f32::from_le_bytes(four.try_into().unwrap())))
            .collect(),
    }
}

/// The bytes of a parameter whose pointers are null.
fn bytes_of(parameter: &SetAttentionForward) -> Vec<u8> {
    // SAFETY: the struct has no padding: eight-byte pointers, then four-byte numbers, as many as fill it.
    let bytes = unsafe {
        std::slice::from_raw_parts((&raw const *parameter).cast::<u8>(), size_of::<SetAttentionForward>())
    };
    bytes.to_vec()
}
