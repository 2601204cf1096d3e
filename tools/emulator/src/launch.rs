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
