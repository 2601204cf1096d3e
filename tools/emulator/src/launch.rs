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
    const MARK: u64 = 0x7061_6d20_726f_736e;
    let mut map = [0; 16];
    let sizes = u64::from(box_columns) | u64::from(box_rows) << 32;
    map[1..6].copy_from_slice(&[columns as u64, rows as u64, 2 * columns as u64, sizes, MARK]);
    map
}
