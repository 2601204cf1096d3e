//! The memory that a block sees: buffers far apart in global memory, shared memory that knows which of its bytes were
//! written, each thread's local memory, and the parameter.

use super::decode::SHARED_BASE;
use super::error::FaultKind;
use super::syntax::Space;

/// Distance of the buffers' places, so large that no index that is wrong by less than gigabytes leads to another buffer.
const PLACE: u64 = 1 << 36;
/// Where the first place begins: above 32 bits, so that a truncated address is no address.
const FIRST_PLACE: u64 = 1 << 46;
/// Where in its place a buffer begins.
const BEGIN: u64 = PLACE / 2;

/// The generic address of the first byte of a space; global and constant memory have the same addresses there.
pub(super) fn window(space: Space) -> u64 {
    match space {
        Space::Shared => 1 << 56,
        Space::Local => 2 << 56,
        Space::Parameter => 3 << 56,
        Space::Global | Space::Constant | Space::Generic => 0,
    }
}

/// The space that a generic address lies in, and the address there.
fn locate(address: u64) -> (Space, u64) {
    let space = match address >> 56 {
        1 => Space::Shared,
        2 => Space::Local,
        3 => Space::Parameter,
        _ => Space::Global,
    };
    (space, address.wrapping_sub(window(space)))
}

/// Something that a thread does wrong.
#[derive(Debug, PartialEq)]
pub(super) struct Wrong {
    pub kind: FaultKind,
    pub message: String,
    /// Lane of the warp.
    pub lane: usize,
}

impl Wrong {
    pub fn new(kind: FaultKind, lane: usize, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), lane }
    }
}

type Result<T> = std::result::Result<T, Wrong>;

/// An allocation in global or constant memory.
pub(super) struct Piece {
    pub name: String,
    pub bytes: Vec<u8>,
    pub is_constant: bool,
}

/// The address of the first byte of the piece of this number.
pub(super) fn piece_address(number: usize) -> u64 {
    FIRST_PLACE + number as u64 * PLACE + BEGIN
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Unwritten,
    Written,
    InFlight,
}

/// The memory of a launch and of the block that runs.
pub(super) struct Memory {
    pub pieces: Vec<Piece>,
    pub parameter: Vec<u8>,
    shared: Vec<u8>,
    states: Vec<State>,
    /// Local memory of each thread of the block, one behind the other.
    local: Vec<u8>,
    local_bytes: usize,
}

/// A thread of the block that accesses memory.
#[derive(Clone, Copy)]
pub(super) struct Thread {
    pub lane: usize,
    /// Number in the block.
    pub number: usize,
}

impl Memory {
    /// Memory for blocks of `threads` threads.
    pub fn new(
        pieces: Vec<Piece>,
        parameter: Vec<u8>,
        shared_bytes: usize,
        local_bytes: usize,
        threads: usize,
    ) -> Self {
        Self {
            pieces,
            parameter,
            shared: vec![0; shared_bytes],
            states: vec![State::Unwritten; shared_bytes],
            local: vec![0; local_bytes * threads],
            local_bytes,
        }
    }

    /// Forgets what the block before left. Local memory gets bytes that are NaNs and wild addresses.
    pub fn begin_block(&mut self) {
        self.states.fill(State::Unwritten);
        self.local.fill(0xff);
    }

    /// Bytes that a thread reads.
    pub fn read(&self, space: Space, address: u64, bytes: usize, by: Thread) -> Result<&[u8]> {
        let (space, address) = if space == Space::Generic { locate(address) } else { (space, address) };
        aligned(address, bytes, by)?;
        match space {
            Space::Shared => {
                let at = self.shared_range(address, bytes, by)?;
                match self.states[at..at + bytes].iter().position(|&state| state != State::Written) {
                    None => Ok(&self.shared[at..at + bytes]),
                    Some(odd) if self.states[at + odd] == State::InFlight => Err(Wrong::new(
                        FaultKind::InFlight,
                        by.lane,
                        format!("reads shared byte {} before the copy to it was waited for", at + odd),
                    )),
                    Some(odd) => Err(Wrong::new(
                        FaultKind::Uninitialised,
                        by.lane,
                        format!("reads shared byte {}, which nothing wrote", at + odd),
                    )),
                }
            }
            Space::Local => {
                let at = self.local_range(address, bytes, by)?;
                Ok(&self.local[at..at + bytes])
            }
            Space::Parameter => {
                let range = range(address, bytes, self.parameter.len());
                range.map(|at| &self.parameter[at..at + bytes]).ok_or_else(|| {
                    let message = format!(
                        "reads {bytes} bytes at {address} of a parameter of {} bytes",
                        self.parameter.len()
                    );
                    Wrong::new(FaultKind::IllegalAddress, by.lane, message)
                })
            }
            Space::Global | Space::Constant | Space::Generic => {
                let (piece, at) = self.piece(address, bytes, by)?;
                Ok(&self.pieces[piece].bytes[at..at + bytes])
            }
        }
    }

    /// Bytes that a thread writes.
    pub fn write(&mut self, space: Space, address: u64, bytes: usize, by: Thread) -> Result<&mut [u8]> {
        let (space, address) = if space == Space::Generic { locate(address) } else { (space, address) };
        aligned(address, bytes, by)?;
        match space {
            Space::Shared => {
                let at = self.shared_range(address, bytes, by)?;
                self.not_in_flight(at, bytes, by)?;
                self.states[at..at + bytes].fill(State::Written);
                Ok(&mut self.shared[at..at + bytes])
            }
            Space::Local => {
                let at = self.local_range(address, bytes, by)?;
                Ok(&mut self.local[at..at + bytes])
            }
            Space::Parameter => Err(Wrong::new(FaultKind::ReadOnly, by.lane, "writes to the parameter")),
            Space::Global | Space::Constant | Space::Generic => {
                let (piece, at) = self.piece(address, bytes, by)?;
                let piece = &mut self.pieces[piece];
                if piece.is_constant {
                    let message = format!("writes to the constant `{}`", piece.name);
                    return Err(Wrong::new(FaultKind::ReadOnly, by.lane, message));
                }
                Ok(&mut piece.bytes[at..at + bytes])
            }
        }
    }

    /// Begins a copy to shared memory: until it lands nothing else may read or write there.
    pub fn begin_copy(&mut self, address: u64, bytes: usize, by: Thread) -> Result<()> {
        aligned(address, bytes, by)?;
        let at = self.shared_range(address, bytes, by)?;
        self.not_in_flight(at, bytes, by)?;
        self.states[at..at + bytes].fill(State::InFlight);
        Ok(())
    }

    /// Lands a copy of `read` bytes from global memory, and zeros behind them up to `bytes`.
    pub fn land_copy(&mut self, to: u64, from: u64, bytes: usize, read: usize, by: Thread) -> Result<()> {
        let mut content = [0; 16];
        if read > 0 {
            content[..read].copy_from_slice({
                let (piece, at) = self.piece(from, read, by)?;
                &self.pieces[piece].bytes[at..at + read]
            });
        }
        let at = self.shared_range(to, bytes, by)?;
        self.shared[at..at + bytes].copy_from_slice(&content[..bytes]);
        self.states[at..at + bytes].fill(State::Written);
        Ok(())
    }

    fn not_in_flight(&self, at: usize, bytes: usize, by: Thread) -> Result<()> {
        match self.states[at..at + bytes].iter().position(|&state| state == State::InFlight) {
            None => Ok(()),
            Some(odd) => Err(Wrong::new(
                FaultKind::InFlight,
                by.lane,
                format!("writes shared byte {} before the copy to it was waited for", at + odd),
            )),
        }
    }

    fn shared_range(&self, address: u64, bytes: usize, by: Thread) -> Result<usize> {
        let at = address.wrapping_sub(SHARED_BASE.into());
        range(at, bytes, self.shared.len()).ok_or_else(|| {
            let message = format!(
                "{bytes} bytes at byte {} of {} bytes of shared memory",
                at as i64,
                self.shared.len()
            );
            Wrong::new(FaultKind::IllegalAddress, by.lane, message)
        })
    }

    fn local_range(&self, address: u64, bytes: usize, by: Thread) -> Result<usize> {
        match range(address, bytes, self.local_bytes) {
            Some(at) => Ok(by.number * self.local_bytes + at),
            None => {
                let message = format!(
                    "{bytes} bytes at byte {} of {} bytes of local memory",
                    address as i64, self.local_bytes
                );
                Err(Wrong::new(FaultKind::IllegalAddress, by.lane, message))
            }
        }
    }

    /// The piece that bytes of global memory lie in, and where in it.
    pub fn piece(&self, address: u64, bytes: usize, by: Thread) -> Result<(usize, usize)> {
        let from_first = address.wrapping_sub(FIRST_PLACE);
        let number = (from_first / PLACE) as usize;
        let Some(piece) = self.pieces.get(number) else {
            let message = format!("{bytes} bytes at {address:#x}, which is in no buffer");
            return Err(Wrong::new(FaultKind::IllegalAddress, by.lane, message));
        };
        let at = (from_first % PLACE).wrapping_sub(BEGIN);
        match range(at, bytes, piece.bytes.len()) {
            Some(at) => Ok((number, at)),
            None => {
                let message = format!(
                    "{bytes} bytes at byte {} of `{}`, which has {}",
                    at as i64,
                    piece.name,
                    piece.bytes.len()
                );
                Err(Wrong::new(FaultKind::IllegalAddress, by.lane, message))
            }
        }
    }
}

fn range(at: u64, bytes: usize, length: usize) -> Option<usize> {
    let end = at.checked_add(bytes as u64)?;
    (end <= length as u64).then_some(at as usize)
}

/// Faults unless an address is a multiple of the access's size.
pub(super) fn aligned(address: u64, bytes: usize, by: Thread) -> Result<()> {
    if address.is_multiple_of(bytes as u64) {
        return Ok(());
    }
    let message = format!("{bytes} bytes at {address:#x}, which is no multiple of {bytes}");
    Err(Wrong::new(FaultKind::Misaligned, by.lane, message))
}
