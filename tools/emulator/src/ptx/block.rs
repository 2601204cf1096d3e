//! Runs a block: its warps one after the other, each until it ends or waits at a barrier.

use std::collections::VecDeque;

use super::error::FaultKind;
use super::memory::Wrong;
use super::program::AtBarrier;
use super::warp::{Arrival, Run, Stop, Stopped, Warp};

/// Barriers of a block.
const BARRIERS: usize = 16;

/// A barrier that some warps have come to.
#[derive(Default)]
struct Barrier {
    /// How many threads complete it, if those that came say; else all warps that have not ended do.
    threads: Option<u32>,
    is_reduction: bool,
    /// Warps that came, those that wait first of all: number, place and action.
    waiting: Vec<(usize, u32, AtBarrier)>,
    arrived: u32,
    holding: u32,
    lanes: u32,
}

/// A block's barriers and the warps that can go on.
struct Schedule {
    barriers: [Barrier; BARRIERS],
    ready: VecDeque<usize>,
    /// Warps that have not ended.
    left: u32,
}

/// Runs the warps of a block to their end. What goes wrong comes with the number of its warp.
pub(super) fn run(warps: &mut [Warp<'_>], run: &mut Run) -> Result<(), (usize, Stopped)> {
    let mut schedule = Schedule {
        barriers: std::array::from_fn(|_| Barrier::default()),
        ready: (0..warps.len()).collect(),
        left: warps.len() as u32,
    };
    while let Some(number) = schedule.ready.pop_front() {
        match warps[number].run(run).map_err(|stopped| (number, stopped))? {
            Stop::Ended => {
                schedule.left -= 1;
                for id in 0..BARRIERS {
                    schedule.complete(id, warps);
                }
            }
            Stop::Barrier(at) => {
                let arrived =
                    warps[number].arrival(at).and_then(|arrival| schedule.arrive(number, at, arrival, warps));
                arrived.map_err(|stopped| (number, stopped))?;
            }
        }
    }
    let waiting = schedule.barriers.iter().flat_map(|barrier| &barrier.waiting);
    match waiting.min_by_key(|(number, ..)| *number) {
        None => Ok(()),
        Some(&(number, at, _)) => {
            let wrong = Wrong::new(FaultKind::Barrier, first_lane(&warps[number]), schedule.deadlock(warps));
            Err((number, Stopped { at, wrong }))
        }
    }
}

fn first_lane(warp: &Warp<'_>) -> usize {
    warp.live.trailing_zeros() as usize % 32
}

impl Schedule {
    fn arrive(
        &mut self,
        number: usize,
        at: u32,
        arrival: Arrival,
        warps: &mut [Warp<'_>],
    ) -> Result<(), Stopped> {
        let wrong = |message: String| Stopped {
            at,
            wrong: Wrong::new(FaultKind::Barrier, first_lane(&warps[number]), message),
        };
        let id = arrival.id as usize;
        let Some(barrier) = self.barriers.get_mut(id) else {
            return Err(wrong(format!("barrier {id} of {BARRIERS}")));
        };
        if arrival.threads.is_some_and(|threads| threads == 0 || !threads.is_multiple_of(32)) {
            return Err(wrong(format!(
                "a barrier for {} threads: no multiple of 32",
                arrival.threads.unwrap_or(0)
            )));
        }
        let is_reduction = !matches!(arrival.action, AtBarrier::Wait | AtBarrier::Arrive);
        if barrier.arrived == 0 {
            *barrier = Barrier { threads: arrival.threads, is_reduction, ..Barrier::default() };
        }
        if barrier.threads != arrival.threads {
            let name =
                |threads: Option<u32>| threads.map_or("all threads".to_owned(), |n| format!("{n} threads"));
            let (here, there) = (name(arrival.threads), name(barrier.threads));
            return Err(wrong(format!("comes to barrier {id} for {here}, others for {there}")));
        }
        if barrier.is_reduction != is_reduction {
            return Err(wrong(format!("some come to barrier {id} with a reduction, others without")));
        }
        barrier.arrived += 32;
        barrier.holding += arrival.holding;
        barrier.lanes += arrival.lanes;
        match arrival.action {
            AtBarrier::Arrive => self.ready.push_front(number),
            action => barrier.waiting.push((number, at, action)),
        }
        let (arrived, threads) = (barrier.arrived, barrier.threads);
        if let Some(threads) = threads.filter(|&threads| arrived > threads) {
            return Err(wrong(format!("{arrived} threads come to barrier {id}, which is for {threads}")));
        }
        self.complete(id, warps);
        Ok(())
    }

    /// Lets those go on that wait at a barrier, if all have come.
    fn complete(&mut self, id: usize, warps: &mut [Warp<'_>]) {
        let barrier = &mut self.barriers[id];
        let complete = barrier.arrived > 0 && barrier.arrived == barrier.threads.unwrap_or(32 * self.left);
        if !complete {
            return;
        }
        let Barrier { waiting, holding, lanes, .. } = std::mem::take(barrier);
        for (number, _, action) in waiting {
            warps[number].finish_barrier(action, holding, lanes);
            self.ready.push_back(number);
        }
    }

    fn deadlock(&self, warps: &[Warp<'_>]) -> String {
        let mut text = "the block's warps wait for each other:".to_owned();
        for (id, barrier) in self.barriers.iter().enumerate() {
            for &(number, at, _) in &barrier.waiting {
                let line = warps[number].program.code[at as usize].line;
                let wanted = barrier.threads.unwrap_or(32 * self.left);
                let arrived = barrier.arrived;
                text.push_str(&format!(
                    " warp {number} at barrier {id}, line {line}, where {arrived} of {wanted} threads are;"
                ));
            }
        }
        text.pop();
        text
    }
}
