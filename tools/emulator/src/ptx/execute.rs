//! What instructions do to registers and memory.

use super::error::FaultKind;
use super::float::{F16, canonical};
use super::lanes::{Function, LANES, Lanes, Value, lanes_of};
use super::memory::{Memory, Wrong, aligned};
use super::program::{Address, Op, Shuffle, Slot, Vote};
use super::types::{Type, sign_extend, truncate};
use super::warp::Warp;

type Result<T> = std::result::Result<T, Wrong>;

impl Warp<'_> {
    /// Executes what is neither a branch nor a barrier of the block, in the lanes of `lanes`.
    pub(super) fn execute(&mut self, op: &Op, lanes: u32, memory: &mut Memory) -> Result<()> {
        match op {
            Op::Compute { to, from, function } => {
                for &slot in &from[..function.sources()] {
                    self.need(slot, lanes)?;
                }
                let of = |n: usize| &self.registers[from[n] as usize];
                let values = match function {
                    Function::One(f) => f(of(0)),
                    Function::Two(f) => f(of(0), of(1)),
                    Function::Three(f) => f(of(0), of(1), of(2)),
                    Function::Four(f) => f(of(0), of(1), of(2), of(3)),
                };
                self.write(*to, lanes, &values);
            }
            Op::Compare { to, inverse, combine, from, function } => {
                let holds = function(self.need(from[0], lanes)?, self.need(from[1], lanes)?);
                let (mut direct, mut opposite) = (holds, !holds);
                if let Some((combine, test)) = combine {
                    let with = self.test(*test, lanes)?;
                    direct = combine.apply(direct, with);
                    opposite = combine.apply(opposite, with);
                }
                self.write_predicate(*to, lanes, direct);
                if let Some(inverse) = inverse {
                    self.write_predicate(*inverse, lanes, opposite);
                }
            }
            Op::Select { to, from, by } => {
                let first = self.test(*by, lanes)?;
                let (a, b) = (self.need(from[0], first)?, self.need(from[1], lanes & !first)?);
                let values =
                    std::array::from_fn(|lane| if first >> lane & 1 == 1 { a[lane] } else { b[lane] });
                self.write(*to, lanes, &values);
            }
            Op::Logic { to, from, combine } => {
                let holds = combine.apply(self.test(from[0], lanes)?, self.test(from[1], lanes)?);
                self.write_predicate(*to, lanes, holds);
            }
            Op::Pack { to, from, bits } => {
                let mut values = [0; LANES];
                for (number, &slot) in from.iter().enumerate() {
                    let part = self.need(slot, lanes)?;
                    for lane in 0..LANES {
                        values[lane] |= part[lane] << (number as u32 * bits);
                    }
                }
                self.write(*to, lanes, &values);
            }
            Op::Unpack { to, from, bits } => {
                let whole = *self.need(*from, lanes)?;
                for (number, &slot) in to.iter().enumerate() {
                    let part = whole.map(|value| truncate(value >> (number as u32 * bits), *bits));
                    self.write(slot, lanes, &part);
                }
            }
            Op::Clock { to } => self.write(*to, lanes, &[self.steps; LANES]),
            Op::Load { to, kind, to_bits, at } => self.load(to, *kind, *to_bits, *at, lanes, memory)?,
            Op::Store { from, kind, at } => self.store(from, *kind, *at, lanes, memory)?,
            Op::Atomic { to, kind, at, from, function } => {
                let addresses = self.addresses(*at, lanes)?;
                let (a, b) = (*self.need(from[0], lanes)?, *self.need(from[1], lanes)?);
                let bytes = kind.bytes() as usize;
                let mut before = [0; LANES];
                for lane in lanes_of(lanes) {
                    let thread = self.thread(lane);
                    before[lane] = word(memory.read(at.space, addresses[lane], bytes, thread)?);
                    let after = function(before[lane], a[lane], b[lane]);
                    let target = memory.write(at.space, addresses[lane], bytes, thread)?;
                    target.copy_from_slice(&after.to_le_bytes()[..bytes]);
                }
                if let Some(to) = to {
                    self.write(*to, lanes, &before);
                }
            }
            Op::CopyAsync { to, from, bytes, read, skip } => {
                let (targets, sources) = (self.addresses(*to, lanes)?, self.addresses(*from, lanes)?);
                let skipped = match skip {
                    Some(skip) => self.test(*skip, lanes)?,
                    None => 0,
                };
                let read = match read {
                    Some(read) => *self.need(*read, lanes)?,
                    None => [u64::from(*bytes); LANES],
                };
                for lane in lanes_of(lanes) {
                    let thread = self.thread(lane);
                    let read = if skipped >> lane & 1 == 1 { 0 } else { read[lane] };
                    if read > u64::from(*bytes) {
                        let message = format!("copies {read} of {bytes} bytes");
                        return Err(Wrong::new(FaultKind::Undefined, lane, message));
                    }
                    aligned(sources[lane], *bytes as usize, thread)?;
                    if read > 0 {
                        memory.piece(sources[lane], read as usize, thread)?;
                    }
                    memory.begin_copy(targets[lane], *bytes as usize, thread)?;
                    self.begin_copy(lane, targets[lane], sources[lane], *bytes as u8, read as u8);
                }
            }
            Op::CopyCommit => lanes_of(lanes).for_each(|lane| self.commit_copies(lane)),
            Op::CopyWait(groups) => {
                for lane in lanes_of(lanes) {
                    self.land(lane, groups.unwrap_or(0) as usize, groups.is_none(), memory)?;
                }
            }
            Op::LoadMatrix { to, transposed, at } => self.load_matrix(to, *transposed, *at, lanes, memory)?,
            Op::MatrixProduct { to, a, b, c, half } => self.product(to, a, b, c, *half)?,
            Op::Shuffle { to, inside, mode, from, .. } => self.shuffle(*to, *inside, *mode, from, lanes)?,
            Op::Vote { to, mode, of, .. } => {
                let holding = self.test(*of, lanes)?;
                let holds = match mode {
                    Vote::Ballot => {
                        self.write(*to, lanes, &[holding.into(); LANES]);
                        return Ok(());
                    }
                    Vote::All => holding == lanes,
                    Vote::Any => holding != 0,
                    Vote::Uniform => holding == 0 || holding == lanes,
                };
                self.write_predicate(*to, lanes, if holds { lanes } else { 0 });
            }
            Op::Match { to, all, same, of, .. } => {
                let values = *self.need(*of, lanes)?;
                let with = |lane: usize| {
                    lanes_of(lanes)
                        .fold(0u32, |mask, other| mask | u32::from(values[other] == values[lane]) << other)
                };
                let mut found = [0; LANES];
                for lane in lanes_of(lanes) {
                    let mask = with(lane);
                    found[lane] = if *all && mask != lanes { 0 } else { mask.into() };
                }
                self.write(*to, lanes, &found);
                if let Some(same) = same {
                    let first = lanes.trailing_zeros() as usize;
                    self.write_predicate(*same, lanes, if found[first] != 0 { lanes } else { 0 });
                }
            }
            Op::Reduce { to, of, function, .. } => {
                let values = self.need(*of, lanes)?;
                let all =
                    lanes_of(lanes).map(|lane| values[lane]).reduce(|sum, value| function(sum, value, 0));
                self.write(*to, lanes, &[all.unwrap_or_default(); LANES]);
            }
            Op::ActiveMask { to } => self.write(*to, lanes, &[lanes.into(); LANES]),
            Op::Nothing | Op::SyncWarp { .. } => {}
            // The warp itself does these.
            Op::Branch(_) | Op::BranchIndexed { .. } | Op::Exit | Op::Trap | Op::Barrier { .. } => {}
        }
        Ok(())
    }

    fn addresses(&self, at: Address, lanes: u32) -> Result<Lanes> {
        match at.base {
            Some(base) => Ok(self.need(base, lanes)?.map(|base| base.wrapping_add(at.offset))),
            None => Ok([at.offset; LANES]),
        }
    }

    fn load(
        &mut self,
        to: &[Slot],
        kind: Type,
        to_bits: u32,
        at: Address,
        lanes: u32,
        memory: &Memory,
    ) -> Result<()> {
        let addresses = self.addresses(at, lanes)?;
        let bytes = kind.bytes() as usize;
        for lane in lanes_of(lanes) {
            let found = memory.read(at.space, addresses[lane], bytes * to.len(), self.thread(lane))?;
            for (part, &slot) in found.chunks_exact(bytes).zip(to) {
                let value = word(part);
                self.registers[slot as usize][lane] = if kind.is_signed() {
                    truncate(sign_extend(value, kind.bits()) as u64, to_bits)
                } else {
                    value
                };
            }
        }
        to.iter().for_each(|&slot| self.written[slot as usize] |= lanes);
        Ok(())
    }

    fn store(&self, from: &[Slot], kind: Type, at: Address, lanes: u32, memory: &mut Memory) -> Result<()> {
        for &slot in from {
            self.need(slot, lanes)?;
        }
        let addresses = self.addresses(at, lanes)?;
        let bytes = kind.bytes() as usize;
        for lane in lanes_of(lanes) {
            let target = memory.write(at.space, addresses[lane], bytes * from.len(), self.thread(lane))?;
            for (part, &slot) in target.chunks_exact_mut(bytes).zip(from) {
                part.copy_from_slice(&self.registers[slot as usize][lane].to_le_bytes()[..bytes]);
            }
        }
        Ok(())
    }

    /// Lane 8·i + r gives the address of row r of matrix i, 16 bytes; each lane gets two elements of each matrix: those of
    /// row lane / 4, or of column lane / 4 if transposed.
    fn load_matrix(
        &mut self,
        to: &[Slot],
        transposed: bool,
        at: Address,
        lanes: u32,
        memory: &Memory,
    ) -> Result<()> {
        let count = to.len();
        let addresses = self.addresses(at, lanes & (u32::MAX >> (LANES - 8 * count)))?;
        let mut rows = [[0u16; 8]; LANES];
        for lane in 0..8 * count {
            let bytes = memory.read(at.space, addresses[lane], 16, self.thread(lane))?;
            for (element, pair) in rows[lane].iter_mut().zip(bytes.chunks_exact(2)) {
                *element = u16::from_le_bytes([pair[0], pair[1]]);
            }
        }
        for (number, &slot) in to.iter().enumerate() {
            let matrix = &rows[8 * number..8 * number + 8];
            let values = std::array::from_fn(|lane| {
                let (a, b) = (lane / 4, 2 * (lane % 4));
                let (low, high) = if transposed {
                    (matrix[b][a], matrix[b + 1][a])
                } else {
                    (matrix[a][b], matrix[a][b + 1])
                };
                u64::from(low) | u64::from(high) << 16
            });
            self.write(slot, lanes, &values);
        }
        Ok(())
    }

    /// d [16, 8] = a [16, K]·b [K, 8] + c, K 8 for each two registers of `a`; lane 4·g + t holds of each 8 rows or columns
    /// those of number g, and 2·t and 2·t + 1. Sums are kept in f64 and rounded once: closer than cards come, which round
    /// or cut off on the way.
    fn product(&mut self, to: &[Slot; 4], a: &[Slot], b: &[Slot], c: &[Slot; 4], half: bool) -> Result<()> {
        let number =
            |bits: u64| if half { F16.value(bits) } else { f32::from_bits((bits as u32) << 16).into() };
        let mut left = [[0.0; 16]; 16];
        let mut right = [[0.0; 8]; 16];
        let mut sum = [[0.0; 8]; 16];
        for (n, &slot) in a.iter().enumerate() {
            let values = self.need(slot, u32::MAX)?;
            for (lane, &pair) in values.iter().enumerate() {
                let (row, column) = (lane / 4 + 8 * (n % 2), 2 * (lane % 4) + 8 * (n / 2));
                left[row][column] = number(pair & 0xffff);
                left[row][column + 1] = number(pair >> 16);
            }
        }
        for (n, &slot) in b.iter().enumerate() {
            let values = self.need(slot, u32::MAX)?;
            for (lane, &pair) in values.iter().enumerate() {
                let (row, column) = (2 * (lane % 4) + 8 * n, lane / 4);
                right[row][column] = number(pair & 0xffff);
                right[row + 1][column] = number(pair >> 16);
            }
        }
        for (n, &slot) in c.iter().enumerate() {
            let values = self.need(slot, u32::MAX)?;
            for (lane, &bits) in values.iter().enumerate() {
                sum[lane / 4 + 8 * (n / 2)][2 * (lane % 4) + n % 2] = f64::from(f32::of(bits));
            }
        }
        let depth = 8 * b.len();
        for (row, sums) in left.iter().zip(&mut sum) {
            // A copy, so that the sums stay in the machine's registers.
            let mut all = *sums;
            for (&factor, others) in row[..depth].iter().zip(&right) {
                all = std::array::from_fn(|column| all[column] + factor * others[column]);
            }
            *sums = all;
        }
        for (n, &slot) in to.iter().enumerate() {
            let values = std::array::from_fn(|lane| {
                canonical(sum[lane / 4 + 8 * (n / 2)][2 * (lane % 4) + n % 2] as f32).bits()
            });
            self.write(slot, u32::MAX, &values);
        }
        Ok(())
    }

    fn shuffle(
        &mut self,
        to: Slot,
        inside: Option<Slot>,
        mode: Shuffle,
        from: &[Slot; 3],
        lanes: u32,
    ) -> Result<()> {
        let values = *self.need(from[0], lanes)?;
        let (by, clamp) = (*self.need(from[1], lanes)?, *self.need(from[2], lanes)?);
        let (mut found, mut in_range) = ([0; LANES], 0);
        for lane in lanes_of(lanes) {
            let (by, limit, segment) = (by[lane] & 31, clamp[lane] & 31, clamp[lane] >> 8 & 31);
            let here = lane as u64;
            let highest = here & segment | limit & !segment;
            let (source, is_in) = match mode {
                // Here the limit is the lowest lane.
                Shuffle::Up => (here.wrapping_sub(by), here >= by + highest),
                Shuffle::Down => (here + by, here + by <= highest),
                Shuffle::Butterfly => (here ^ by, here ^ by <= highest),
                Shuffle::Index => {
                    let source = here & segment | by & !segment;
                    (source, source <= highest)
                }
            };
            let source = if is_in { source as usize } else { lane };
            if lanes >> source & 1 == 0 {
                let message = format!("lane {lane} reads lane {source}, which does not take part");
                return Err(Wrong::new(FaultKind::Undefined, lane, message));
            }
            found[lane] = values[source];
            in_range |= u32::from(is_in) << lane;
        }
        self.write(to, lanes, &found);
        if let Some(inside) = inside {
            self.write_predicate(inside, lanes, in_range);
        }
        Ok(())
    }
}

/// Up to eight bytes as a number, little end first.
fn word(bytes: &[u8]) -> u64 {
    let mut all = [0; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(all)
}
