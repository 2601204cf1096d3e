//! A warp: 32 lanes with registers, each lane at a place of its own in the code. Of the lanes that can go on those at the
//! lowest place do, together, so that lanes that parted come together where the code does. An instruction that needs
//! certain lanes waits for them.

use std::collections::{HashMap, VecDeque};

use super::error::FaultKind;
use super::flow::beyond;
use super::lanes::{LANES, Lanes, lanes_of};
use super::memory::{Memory, Thread, Wrong};
use super::program::{AtBarrier, Op, Program, Slot, Special, Test};

/// What a launch shares between its warps.
pub(super) struct Run {
    pub memory: Memory,
    /// How often each instruction was executed, by a warp.
    pub executed: Vec<u64>,
    /// The most instructions of a warp.
    pub budget: u64,
    /// For instructions that a warp waited at, those that a lane gets to only by going round them.
    pub beyond: HashMap<u32, Vec<u32>>,
}

/// Why a warp stopped.
pub(super) enum Stop {
    /// All its lanes have ended.
    Ended,
    /// All its lanes are at the barrier instruction at this place, and will go on behind it.
    Barrier(u32),
}

/// What went wrong, and at which instruction.
pub(super) struct Stopped {
    pub at: u32,
    pub wrong: Wrong,
}

/// A warp's part in a barrier.
pub(super) struct Arrival {
    pub id: u32,
    pub threads: Option<u32>,
    pub action: AtBarrier,
    /// Of a reduction: the lanes that hold, and how many lanes there are.
    pub holding: u32,
    pub lanes: u32,
}

/// What comes after an instruction.
enum Next {
    /// The one behind it.
    Behind,
    /// Another, for all lanes that did it.
    At(u32),
    /// Lanes go different ways, or wait: their positions are set.
    Parted,
    /// The block must act.
    Stop(Stop),
}

/// An asynchronous copy under way.
struct Copy {
    to: u64,
    from: u64,
    bytes: u8,
    read: u8,
}

/// A thread's asynchronous copies, oldest first.
#[derive(Default)]
pub(super) struct Copies {
    flying: VecDeque<Copy>,
    /// How many copies each group has, and how many are in none yet.
    groups: VecDeque<usize>,
    open: usize,
}

/// Thirty-two lanes.
pub(super) struct Warp<'p> {
    pub program: &'p Program,
    pub number: u32,
    pub(super) registers: Vec<Lanes>,
    /// The lanes in which each register, and each predicate, was written.
    pub(super) written: Vec<u32>,
    pub(super) predicates: Vec<u32>,
    pub(super) predicates_written: Vec<u32>,
    pub(super) copies: Vec<Copies>,
    positions: [u32; LANES],
    /// The lanes that have not ended, and those of them that wait for others.
    pub live: u32,
    waiting: u32,
    pub(super) steps: u64,
}

impl<'p> Warp<'p> {
    pub fn new(program: &'p Program, number: u32) -> Self {
        let mut warp = Self {
            program,
            number,
            registers: vec![[0; LANES]; program.registers as usize],
            written: vec![0; program.registers as usize],
            predicates: vec![0; program.predicates as usize],
            predicates_written: vec![0; program.predicates as usize],
            copies: (0..LANES).map(|_| Copies::default()).collect(),
            positions: [0; LANES],
            live: 0,
            waiting: 0,
            steps: 0,
        };
        for &(slot, bits) in &program.constants {
            warp.registers[slot as usize] = [bits; LANES];
        }
        for &(slot, value) in &program.constant_predicates {
            warp.predicates[slot as usize] = if value { u32::MAX } else { 0 };
        }
        warp
    }

    /// Sets the warp to a block's beginning; `special` gives what special registers hold in a lane.
    pub fn begin(&mut self, threads: u32, special: impl Fn(Special, u32) -> u64) {
        let program = self.program;
        self.written.fill(0);
        self.predicates_written.fill(0);
        for &(slot, _) in &program.constants {
            self.written[slot as usize] = u32::MAX;
        }
        for &(slot, _) in &program.constant_predicates {
            self.predicates_written[slot as usize] = u32::MAX;
        }
        for &(slot, which) in &program.specials {
            self.written[slot as usize] = u32::MAX;
            self.registers[slot as usize] = std::array::from_fn(|lane| special(which, lane as u32));
        }
        let lanes = threads.saturating_sub(self.number * LANES as u32).min(LANES as u32);
        self.live = u32::MAX >> (LANES as u32 - lanes);
        self.waiting = 0;
        self.positions = [0; LANES];
        self.steps = 0;
    }

    pub(super) fn thread(&self, lane: usize) -> Thread {
        Thread { lane, number: self.number as usize * LANES + lane }
    }

    /// The lowest place of some lanes.
    fn lowest(&self, lanes: u32) -> u32 {
        lanes_of(lanes).map(|lane| self.positions[lane]).min().unwrap_or(u32::MAX)
    }

    fn lanes_at(&self, at: u32) -> u32 {
        let here = self.positions.iter().enumerate();
        here.fold(0, |mask, (lane, &position)| mask | u32::from(position == at) << lane) & self.live
    }

    fn place(&mut self, lanes: u32, at: u32) {
        lanes_of(lanes).for_each(|lane| self.positions[lane] = at);
    }

    /// Runs until the warp ends or comes to a barrier of the block.
    pub fn run(&mut self, run: &mut Run) -> Result<Stop, Stopped> {
        loop {
            if self.live == 0 {
                return Ok(Stop::Ended);
            }
            let able = self.live & !self.waiting;
            if able == 0 {
                return Err(self.stuck());
            }
            let mut at = self.lowest(able);
            let active = self.lanes_at(at);
            self.waiting &= !active;
            self.nobody_went_round(at, active, run)?;
            let next_other = self.lowest(self.live & !active);
            loop {
                match self.step(at, active, run).map_err(|wrong| Stopped { at, wrong })? {
                    Next::Behind => at += 1,
                    Next::At(target) => at = target,
                    Next::Parted => break,
                    Next::Stop(stop) => return Ok(stop),
                }
                // While others wait, every place that the group comes to counts.
                if at >= next_other || self.waiting != 0 {
                    self.place(active, at);
                    break;
                }
            }
        }
    }

    /// Executes an instruction with lanes that are all at it.
    fn step(&mut self, at: u32, active: u32, run: &mut Run) -> Result<Next, Wrong> {
        let program = self.program;
        let instruction = &program.code[at as usize];
        self.steps += 1;
        if self.steps > run.budget {
            let lane = active.trailing_zeros() as usize;
            let message = format!("the warp has executed {} instructions: an endless loop?", run.budget);
            return Err(Wrong::new(FaultKind::Budget, lane, message));
        }
        let mask = match instruction.guard {
            Some(guard) => self.test(guard, active)?,
            None => active,
        };
        if mask == 0 {
            return Ok(Next::Behind);
        }
        match &instruction.op {
            Op::Branch(target) => {
                run.executed[at as usize] += 1;
                if mask == active {
                    return Ok(Next::At(*target));
                }
                self.place(active, at + 1);
                self.place(mask, *target);
                Ok(Next::Parted)
            }
            Op::BranchIndexed { index, targets } => {
                run.executed[at as usize] += 1;
                let index = *self.need(*index, mask)?;
                self.place(active, at + 1);
                for lane in lanes_of(mask) {
                    let Some(&target) = targets.get(index[lane] as usize) else {
                        let message = format!("index {} of {} labels", index[lane], targets.len());
                        return Err(Wrong::new(FaultKind::Undefined, lane, message));
                    };
                    self.positions[lane] = target;
                }
                Ok(Next::Parted)
            }
            Op::Exit => {
                run.executed[at as usize] += 1;
                for lane in lanes_of(mask) {
                    self.land(lane, 0, true, &mut run.memory)?;
                }
                self.live &= !mask;
                // Those that waited may have waited for lanes that have now ended.
                self.waiting = 0;
                self.place(active & !mask, at + 1);
                Ok(Next::Parted)
            }
            Op::Trap => {
                let lane = mask.trailing_zeros() as usize;
                Err(Wrong::new(FaultKind::Trap, lane, "the kernel stopped itself"))
            }
            op if op.is_aligned() => {
                if mask != self.live {
                    return self.wait_for_all(at, active, mask);
                }
                run.executed[at as usize] += 1;
                if matches!(op, Op::Barrier { .. }) {
                    self.place(mask, at + 1);
                    return Ok(Next::Stop(Stop::Barrier(at)));
                }
                if mask != u32::MAX {
                    let message = format!("needs 32 lanes, but only lanes {} are there", list(mask));
                    return Err(Wrong::new(FaultKind::NotConverged, mask.trailing_zeros() as usize, message));
                }
                self.execute(op, mask, &mut run.memory)?;
                Ok(Next::Behind)
            }
            op => match op.members() {
                Some(members) => self.step_together(at, op, members, active, mask, run),
                None => {
                    run.executed[at as usize] += 1;
                    self.execute(op, mask, &mut run.memory)?;
                    Ok(Next::Behind)
                }
            },
        }
    }

    fn wait_for_all(&mut self, at: u32, active: u32, mask: u32) -> Result<Next, Wrong> {
        if mask != active {
            let lane = (active & !mask).trailing_zeros() as usize;
            let message = format!("needs all lanes of the warp, but lanes {} skip it", list(active & !mask));
            return Err(Wrong::new(FaultKind::NotConverged, lane, message));
        }
        self.place(active, at);
        self.waiting |= active;
        Ok(Next::Parted)
    }

    /// An instruction of the lanes that its mask names: does it with those that are complete, and leaves the others waiting.
    fn step_together(
        &mut self,
        at: u32,
        op: &Op,
        members: Slot,
        active: u32,
        mask: u32,
        run: &mut Run,
    ) -> Result<Next, Wrong> {
        let members = *self.need(members, mask)?;
        self.place(active, at + 1);
        let mut left = mask;
        let mut complete = true;
        while left != 0 {
            let lane = left.trailing_zeros() as usize;
            let wanted = members[lane] as u32;
            let group = lanes_of(left)
                .fold(0, |group, other| group | u32::from(members[other] == members[lane]) << other);
            if group & !wanted != 0 {
                let lane = (group & !wanted).trailing_zeros() as usize;
                let message = format!("lane {lane} is not in its own mask {wanted:#010x}");
                return Err(Wrong::new(FaultKind::Undefined, lane, message));
            }
            let missing = wanted & self.live & !group;
            if missing & mask != 0 {
                let message = format!("lanes {} name other lanes in their masks", list(missing & mask));
                return Err(Wrong::new(FaultKind::Undefined, lane, message));
            }
            if missing == 0 {
                run.executed[at as usize] += 1;
                self.execute(op, group, &mut run.memory)?;
            } else {
                self.place(group, at);
                self.waiting |= group;
                complete = false;
            }
            left &= !group;
        }
        Ok(if complete && mask == active { Next::Behind } else { Next::Parted })
    }

    /// Faults if lanes are where they can only be without an instruction that others wait for them at.
    fn nobody_went_round(&self, at: u32, active: u32, run: &mut Run) -> Result<(), Stopped> {
        let code = &self.program.code;
        for lane in lanes_of(self.waiting) {
            let place = self.positions[lane];
            if !code[place as usize].op.is_aligned() {
                continue;
            }
            let behind = run.beyond.entry(place).or_insert_with(|| beyond(code, place as usize));
            if behind.contains(&at) {
                let message = format!(
                    "needs all lanes of the warp, but lanes {} went round it, to line {}",
                    list(active),
                    code[at as usize].line
                );
                return Err(Stopped { at: place, wrong: Wrong::new(FaultKind::NotConverged, lane, message) });
            }
        }
        Ok(())
    }

    /// What to say when every lane waits for another.
    fn stuck(&self) -> Stopped {
        let lane = self.live.trailing_zeros() as usize;
        let at = self.positions[lane];
        let mut message = "lanes of the warp wait for each other:".to_owned();
        let mut left = self.live;
        while left != 0 {
            let place = self.positions[left.trailing_zeros() as usize];
            let lanes = self.lanes_at(place);
            let line = self.program.code[place as usize].line;
            message.push_str(&format!(" lanes {} at line {line};", list(lanes)));
            left &= !lanes;
        }
        message.pop();
        Stopped { at, wrong: Wrong::new(FaultKind::NotConverged, lane, message) }
    }

    /// A register that must have been written in some lanes.
    pub(super) fn need(&self, slot: Slot, lanes: u32) -> Result<&Lanes, Wrong> {
        let unwritten = lanes & !self.written[slot as usize];
        if unwritten != 0 {
            return Err(unwritten_register(self.program.names.get(&slot), unwritten));
        }
        Ok(&self.registers[slot as usize])
    }

    /// The lanes of `lanes` in which a predicate holds.
    pub(super) fn test(&self, test: Test, lanes: u32) -> Result<u32, Wrong> {
        let slot = test.predicate as usize;
        let unwritten = lanes & !self.predicates_written[slot];
        if unwritten != 0 {
            return Err(unwritten_register(self.program.predicate_names.get(&test.predicate), unwritten));
        }
        let holds = self.predicates[slot];
        Ok(lanes & if test.negated { !holds } else { holds })
    }

    pub(super) fn write(&mut self, to: Slot, lanes: u32, values: &Lanes) {
        let register = &mut self.registers[to as usize];
        if lanes == u32::MAX {
            *register = *values;
        } else {
            lanes_of(lanes).for_each(|lane| register[lane] = values[lane]);
        }
        self.written[to as usize] |= lanes;
    }

    pub(super) fn write_predicate(&mut self, to: Slot, lanes: u32, holds: u32) {
        let predicate = &mut self.predicates[to as usize];
        *predicate = *predicate & !lanes | holds & lanes;
        self.predicates_written[to as usize] |= lanes;
    }

    /// What the warp brings to the barrier instruction at `at`.
    pub fn arrival(&self, at: u32) -> Result<Arrival, Stopped> {
        let arrival = || {
            let Op::Barrier { action, id, threads } = &self.program.code[at as usize].op else {
                return Err(Wrong::new(FaultKind::Barrier, 0, "no barrier"));
            };
            let id = self.same_in_all(*id)?;
            let threads = threads.map(|threads| self.same_in_all(threads)).transpose()?;
            let holding = match action {
                AtBarrier::Wait | AtBarrier::Arrive => 0,
                AtBarrier::Count { of, .. } | AtBarrier::All { of, .. } | AtBarrier::Any { of, .. } => {
                    self.test(*of, self.live)?.count_ones()
                }
            };
            Ok(Arrival { id, threads, action: *action, holding, lanes: self.live.count_ones() })
        };
        arrival().map_err(|wrong| Stopped { at, wrong })
    }

    fn same_in_all(&self, slot: Slot) -> Result<u32, Wrong> {
        let values = self.need(slot, self.live)?;
        let first = values[self.live.trailing_zeros() as usize];
        match lanes_of(self.live).find(|&lane| values[lane] != first) {
            None => Ok(first as u32),
            Some(lane) => {
                let message = format!("lanes of a warp name {first} and {} at one barrier", values[lane]);
                Err(Wrong::new(FaultKind::Barrier, lane, message))
            }
        }
    }

    /// Gives the warp the result of a barrier's reduction.
    pub fn finish_barrier(&mut self, action: AtBarrier, holding: u32, lanes: u32) {
        let all = self.live;
        match action {
            AtBarrier::Wait | AtBarrier::Arrive => {}
            AtBarrier::Count { to, .. } => self.write(to, all, &[holding.into(); LANES]),
            AtBarrier::All { to, .. } => {
                self.write_predicate(to, all, if holding == lanes { all } else { 0 })
            }
            AtBarrier::Any { to, .. } => self.write_predicate(to, all, if holding > 0 { all } else { 0 }),
        }
    }

    pub(super) fn begin_copy(&mut self, lane: usize, to: u64, from: u64, bytes: u8, read: u8) {
        let copies = &mut self.copies[lane];
        copies.flying.push_back(Copy { to, from, bytes, read });
        copies.open += 1;
    }

    pub(super) fn commit_copies(&mut self, lane: usize) {
        let copies = &mut self.copies[lane];
        copies.groups.push_back(std::mem::take(&mut copies.open));
    }

    /// Lands a lane's copies but for its newest `groups` groups; with `open`, those of no group as well.
    pub(super) fn land(
        &mut self,
        lane: usize,
        groups: usize,
        open: bool,
        memory: &mut Memory,
    ) -> Result<(), Wrong> {
        let thread = self.thread(lane);
        let copies = &mut self.copies[lane];
        let mut count = 0;
        while copies.groups.len() > groups {
            count += copies.groups.pop_front().unwrap_or_default();
        }
        if open {
            count += std::mem::take(&mut copies.open);
        }
        for Copy { to, from, bytes, read } in copies.flying.drain(..count) {
            memory.land_copy(to, from, bytes.into(), read.into(), thread)?;
        }
        Ok(())
    }
}

fn unwritten_register(name: Option<&String>, lanes: u32) -> Wrong {
    let name = name.map_or("a register", String::as_str);
    let message = format!("reads {name}, which nothing wrote in lanes {}", list(lanes));
    Wrong::new(FaultKind::Uninitialised, lanes.trailing_zeros() as usize, message)
}

/// Lanes as people write them: `0-15, 17`.
fn list(lanes: u32) -> String {
    let mut text = String::new();
    let mut lane = 0;
    while lane < 32 {
        let run = (lanes >> lane).trailing_ones();
        if run > 0 {
            let comma = if text.is_empty() { "" } else { ", " };
            let last = lane + run - 1;
            let end = if run > 1 { format!("-{last}") } else { String::new() };
            text.push_str(&format!("{comma}{lane}{end}"));
        }
        lane += run.max(1);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::list;

    #[test]
    fn lists_of_lanes() {
        assert_eq!(list(u32::MAX), "0-31");
        assert_eq!(list(0x8002_ffff), "0-15, 17, 31");
        assert_eq!(list(0b1011), "0-1, 3");
    }
}
