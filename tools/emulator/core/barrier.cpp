// Barriers of the block: a warp's lanes come together, then the warp arrives with 32 threads.
#include "worker.hpp"

namespace emu {

void Worker::barrier(Thread &thread, Operation operation, uint32_t id, uint32_t count, Site site) {
    if (id >= BARRIERS) {
        fail(LAUNCH_FAILED, site, "%s: there is no barrier %u: they are 0 to 15", operation_name(operation), id);
    }
    if (operation != Operation::BARRIER && (count == 0 || count % LANES != 0 || count > warp_count * LANES)) {
        fail(LAUNCH_FAILED, site, "%s: barrier %u for %u threads: not a multiple of 32 up to the block's %u",
             operation_name(operation), id, count, warp_count * LANES);
    }
    come_to(thread, operation, id, count, site);
}

void Worker::cluster_barrier(Thread &thread, Site site) {
    come_to(thread, Operation::CLUSTER_BARRIER, CLUSTER_BARRIER, 0, site);
}

void Worker::come_to(Thread &thread, Operation operation, uint32_t id, uint32_t count, Site site) {
    Fiber &me = fiber(thread);
    Warp &warp = *me.warp;
    if (warp.arrived == 0) {
        warp.operation = operation;
        warp.site = site;
        warp.barrier = id;
        warp.barrier_threads = count;
    } else if (warp.operation != operation || !same_place(warp.site, site) || warp.barrier != id ||
               warp.barrier_threads != count) {
        diverged(warp, operation, site);
    }
    warp.arrived |= me.bit;
    count_meeting(me, site);
    sanitizer::release(warp.barrier_meeting);
    if (warp.arrived == warp.live) {
        warp_arrives(warp, &me);
        if (warp.waits_at == NONE) {
            preempt(me);
        } else {
            wait(me);
        }
    } else {
        wait(me);
    }
    if (operation != Operation::BARRIER_ARRIVE) {
        sanitizer::acquire(meeting_at(id, warp.barrier_phase));
    }
}

// All live lanes of a warp are at a barrier. `self`: the lane that runs, if it is one of them.
void Worker::warp_arrives(Warp &warp, Fiber *self) {
    if (counting) {
        count_warp(warp);
    }
    Barrier &barrier = barriers[warp.barrier];
    const uint32_t bit = 1u << warp.number;
    const char *name = operation_name(warp.operation);
    if (barrier.warps == 0) {
        barrier.threads = warp.barrier_threads;
        barrier.site = warp.site;
    } else if (barrier.threads != warp.barrier_threads) {
        fail(LAUNCH_FAILED, warp.site, "%s: barrier %u for %u threads here and for %u at %s:%d", name, warp.barrier,
             warp.barrier_threads, barrier.threads, short_file(barrier.site.file), barrier.site.line);
    }
    if ((barrier.warps & bit) != 0) {
        fail(LAUNCH_FAILED, warp.site, "%s: warp %u comes to barrier %u a second time before it is complete", name,
             warp.number, warp.barrier);
    }
    // Happens-before goes from every lane to the one that runs, and from that one to the barrier.
    sanitizer::acquire(warp.barrier_meeting);
    sanitizer::release(meeting_at(warp.barrier, barrier.phase));
    warp.barrier_phase = barrier.phase;
    barrier.warps |= bit;
    barrier.came += LANES;
    warp.arrived = 0;
    const uint32_t others = warp.live & ~(self == nullptr ? 0 : self->bit);
    if (warp.operation == Operation::BARRIER_ARRIVE) {
        make_ready(warp, others);
    } else {
        barrier.waiting |= bit;
        warp.waits_at = warp.barrier;
    }
    const bool complete = barrier.threads == 0 ? (live_warps & ~barrier.warps) == 0 : barrier.came == barrier.threads;
    if (complete) {
        barrier_fills(barrier, self);
    }
}

// A cluster's barrier is complete when all its blocks have come, those aside that have exited.
void Worker::barrier_fills(Barrier &barrier, const Fiber *self) {
    if (&barrier != &barriers[CLUSTER_BARRIER]) {
        barrier_completes(barrier, self);
        return;
    }
    bool waits = false;
    for (uint32_t i = 0; i < cluster->count; ++i) {
        const Worker &block = *cluster->blocks[i];
        const uint32_t come = block.barriers[CLUSTER_BARRIER].warps;
        if ((block.live_warps & ~come) != 0) {
            return;
        }
        waits = waits || come != 0;
    }
    if (!waits) {
        return;
    }
    for (uint32_t i = 0; i < cluster->count; ++i) {
        Worker &block = *cluster->blocks[i];
        block.barrier_completes(block.barriers[CLUSTER_BARRIER], &block == this ? self : nullptr);
    }
}

// Where those who come to a barrier meet: of the cluster's, in its first block.
sanitizer::Meeting &Worker::meeting_at(uint32_t id, uint32_t phase) {
    Worker &block = id == CLUSTER_BARRIER ? *cluster->blocks[0] : *this;
    return block.barriers[id].meetings[phase & 1];
}

void Worker::barrier_completes(Barrier &barrier, const Fiber *self) {
    ++counters.barriers;
    for (uint32_t rest = barrier.waiting; rest != 0; rest &= rest - 1) {
        Warp &warp = warps[__builtin_ctz(rest)];
        warp.waits_at = NONE;
        make_ready(warp, warp.live & ~(self != nullptr && self->warp == &warp ? self->bit : 0));
    }
    barrier.warps = barrier.waiting = barrier.came = 0;
    ++barrier.phase;
}

// The last lane of a warp has exited: the others no longer wait for it at barriers of the whole block.
void Worker::warp_exits(Warp &warp) {
    if (counting) {
        count_warp(warp);
    }
    live_warps &= ~(1u << warp.number);
    for (Barrier &barrier : barriers) {
        const bool waits = barrier.warps != 0 || (&barrier == &barriers[CLUSTER_BARRIER] && live_warps == 0);
        if (waits && barrier.threads == 0 && (live_warps & ~barrier.warps) == 0) {
            barrier_fills(barrier, nullptr);
        }
    }
}

} // namespace emu
