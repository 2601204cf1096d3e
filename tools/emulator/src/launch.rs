//! One launch of a kernel, as every way of running it takes it: emulator, sanitized runner, PTX interpreter.

/// A kernel's launch and the memory that it works on.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// Name of the kernel.
    pub kernel: String,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
    /// The kernel's one parameter, a struct, as bytes; its pointers are filled in when it runs.
    pub parameter: Vec<u8>,
    /// The pointers in it.
    pub pointers: Vec<Pointer>,
    /// Global memory, each an allocation of its own.
    pub buffers: Vec<Buffer>,
}

/// A pointer in a kernel's parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// Byte of the parameter at which its eight bytes stand.
    pub at: usize,
    /// Number of the buffer that it points into.
    pub buffer: usize,
    /// Byte of the buffer that it points to.
    pub offset: usize,
}

/// A piece of global memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// What reports call it.
    pub name: String,
    /// Its content: before the launch, and after.
    pub bytes: Vec<u8>,
}

/// A tensor map as the emulator reads it (`TensorMap` of machine.hpp): of a matrix `[rows, columns]` of 16-bit values, for boxes
/// of so many rows and columns. The matrix's address, its first eight bytes, is filled in as that of any pointer.
pub fn tensor_map([rows, columns]: [usize; 2], [box_rows, box_columns]: [u32; 2]) -> [u64; 16] {
    let permuted = if box_columns == 64 { 128 } else { 0 };
    map(2, [1, rows, columns], [0, columns], [1, box_rows, box_columns], permuted)
}

/// The same of a matrix in panels, `[panels, rows, columns]`, whose panels and rows are so many values apart, for boxes of so
/// many panels, rows and columns, 32 or 64, whose pieces are permuted.
pub fn panels_map(sizes: [usize; 3], strides: [usize; 2], sizes_of_box: [u32; 3]) -> [u64; 16] {
    map(3, sizes, strides, sizes_of_box, 2 * sizes_of_box[2])
}

fn map(
    rank: u64,
    [panels, rows, columns]: [usize; 3],
    [panel_stride, row_stride]: [usize; 2],
    [box_panels, box_rows, box_columns]: [u32; 3],
    permuted_bytes: u32,
) -> [u64; 16] {
    const MARK: u64 = 0x7061_6d20_726f_736e;
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let mut map = [0; 16];
    map[1..11].copy_from_slice(&[
        columns as u64,
        rows as u64,
        2 * row_stride as u64,
        pair(box_columns, box_rows),
        MARK,
        panels as u64,
        2 * panel_stride as u64,
        pair(box_panels, permuted_bytes),
        rank,
        0,
    ]);
    map
}
