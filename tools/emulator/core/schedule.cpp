// Fibers and which of them goes on.
#include "context.hpp"
#include "fault.hpp"
#include "worker.hpp"

#include <sys/mman.h>
#include <unistd.h>

namespace emu {

namespace {

// In PCT, the priority of a warp changes after so many switches, in the mean.
constexpr uint32_t PRIORITY_CHANGE = 512;
// With random copies, a bulk load lands after so many switches, in the mean.
constexpr uint32_t LANDING = 8;
// Stacks begin at different places in their pages: caches hold few lines of one such place.
constexpr size_t STACK_SHIFT = 128;

} // namespace

uint64_t Worker::random() {
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 2685821657736338717u >> 16;
}

// The number of one of the bits that are set: the first from a random place on.
uint32_t Worker::random_bit(uint32_t bits) {
    const uint32_t from = static_cast<uint32_t>(random() % LANES);
    const uint32_t turned = bits >> from | bits << (LANES - from) % LANES;
    return (from + static_cast<uint32_t>(__builtin_ctz(turned))) % LANES;
}

void Worker::make_ready(Warp &warp, uint32_t lanes) {
    ready_lanes[warp.number] |= lanes;
    ready_warps |= lanes == 0 ? 0 : 1u << warp.number;
}

Fiber *Worker::pick() { return pick_block().pick_own(); }

Worker &Worker::pick_block() {
    const uint32_t count = cluster->count;
    Worker *const *blocks = cluster->blocks;
    for (;;) {
        // In order, a block goes on as long as it can.
        uint32_t from = rank;
        if (launch->config.schedule == EMU_REVERSED) {
            from = count - 1;
        } else if (preempting && count > 1) {
            from = static_cast<uint32_t>(random() % count);
        }
        for (uint32_t i = 0; i < count; ++i) {
            const uint32_t at = launch->config.schedule == EMU_REVERSED ? from - i : (from + i) % count;
            if (blocks[at]->ready_warps != 0) {
                return *blocks[at];
            }
        }
        idle();
    }
}

Fiber *Worker::pick_own() {
    if (!loads.empty() && launch->config.copies == EMU_AT_RANDOM && random() % LANDING == 0) {
        land_one_load();
    }
    uint32_t warp = 0, lane = 0;
    switch (launch->config.schedule) {
    case EMU_REVERSED:
        warp = 31 - static_cast<uint32_t>(__builtin_clz(ready_warps));
        lane = 31 - static_cast<uint32_t>(__builtin_clz(ready_lanes[warp]));
        break;
    case EMU_RANDOM:
        warp = random_bit(ready_warps);
        lane = random_bit(ready_lanes[warp]);
        break;
    case EMU_PCT:
        if (random() % PRIORITY_CHANGE == 0) {
            priorities[random() % warp_count] = static_cast<uint32_t>(random());
        }
        warp = static_cast<uint32_t>(__builtin_ctz(ready_warps));
        for (uint32_t rest = ready_warps; rest != 0; rest &= rest - 1) {
            const uint32_t other = static_cast<uint32_t>(__builtin_ctz(rest));
            warp = priorities[other] > priorities[warp] ? other : warp;
        }
        lane = random_bit(ready_lanes[warp]);
        break;
    default: {
        const uint32_t now = current == &main_fiber ? 0 : current->warp->number;
        const uint32_t from_now = ready_warps & ~uint32_t{0} << now;
        warp = static_cast<uint32_t>(__builtin_ctz(from_now != 0 ? from_now : ready_warps));
        lane = static_cast<uint32_t>(__builtin_ctz(ready_lanes[warp]));
    }
    }
    ready_lanes[warp] &= ~(1u << lane);
    if (ready_lanes[warp] == 0) {
        ready_warps &= ~(1u << warp);
    }
    return &fibers[warp * LANES + lane];
}

// No thread can go on: a copy lands, or it is a deadlock.
void Worker::idle() {
    Worker *stuck = nullptr;
    for (uint32_t i = 0; i < cluster->count; ++i) {
        Worker &block = *cluster->blocks[(rank + i) % cluster->count];
        if (block.land_one_load()) {
            return;
        }
        stuck = stuck == nullptr && block.live_warps != 0 ? &block : stuck;
    }
    const Fiber *first = &stuck->fibers[0];
    while ((first->warp->live & first->bit) == 0) {
        ++first;
    }
    stuck->record(LAUNCH_FAILED, first->waits_at != NONE ? first->waits_site : first->warp->site,
                  cluster->count == 1 ? "deadlock: no thread of the block can go on"
                                      : "deadlock: no thread of the cluster can go on",
                  nullptr);
    leave(*current);
}

// To a fiber of this block or of another of its cluster.
void Worker::switch_to(Fiber &from, Fiber &to, bool abandoned) {
    Worker &next = owner(to);
    next.current = &to;
    if (cluster->running != &next) {
        cluster->running = &next;
        FaultScope::move(next);
    }
    ++counters.switches;
    sanitizer::leave(from.stack, to.stack, abandoned);
    setrank_emulator_switch(&from.stack_pointer, to.stack_pointer);
    sanitizer::enter(from.stack);
}

void Worker::wait(Fiber &me) {
    Fiber *next = pick();
    if (next != &me) {
        switch_to(me, *next);
    }
}

void Worker::preempt(Fiber &me) {
    if (preempting) {
        make_ready(*me.warp, me.bit);
        wait(me);
    }
}

void Worker::leave(Fiber &me) {
    Worker &first = *cluster->blocks[0];
    sanitizer::release(first.block_ends);
    switch_to(me, first.main_fiber, true);
    __builtin_unreachable();
}

void Worker::fiber_main() {
    Worker &worker = static_cast<Worker &>(block());
    Fiber &me = worker.fiber(emu::thread());
    sanitizer::enter(me.stack);
    Worker &first = *worker.cluster->blocks[0];
    sanitizer::acquire(first.block_begins);
    worker.launch->kernel->run(worker.launch->parameter.data());
    worker.thread_exit(me);
    sanitizer::release(first.block_ends);
    bool lives = false;
    for (uint32_t i = 0; i < worker.cluster->count; ++i) {
        lives = lives || worker.cluster->blocks[i]->live_warps != 0;
    }
    worker.switch_to(me, lives ? *worker.pick() : first.main_fiber, true);
    __builtin_unreachable();
}

void Worker::thread_exit(Fiber &me) {
    end_copies(me);
    end_products(me);
    exhausted = 0;
    Warp &warp = *me.warp;
    warp.live &= ~me.bit;
    if (warp.arrived != 0) {
        const bool at_barrier = warp.operation == Operation::BARRIER || warp.operation == Operation::BARRIER_SYNC ||
                                warp.operation == Operation::BARRIER_ARRIVE ||
                                warp.operation == Operation::CLUSTER_BARRIER;
        if (!at_barrier) {
            fail(LAUNCH_FAILED, warp.site,
                 "%s needs all 32 lanes of the warp: lanes %08x wait in it, and this one exits",
                 operation_name(warp.operation), warp.arrived);
        }
        if (warp.arrived == warp.live) {
            warp_arrives(warp, nullptr);
        }
    }
    if (warp.live == 0) {
        warp_exits(warp);
    }
}

// The lowest page of a stack stays unmapped.
bool Worker::prepare(Fiber &fiber) {
    unsigned char *stack = stack_of(fiber.thread->number);
    if (fiber.stack.bottom == nullptr) {
        const size_t guard = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        if (mprotect(stack + guard, STACK_BYTES - guard, PROT_READ | PROT_WRITE) != 0) {
            return false;
        }
        fiber.stack = sanitizer::fiber_stack(stack + guard, STACK_BYTES - guard, fiber.thread->number);
    }
    sanitizer::renew(fiber.stack);
    const size_t shift = fiber.thread->number % LANES * STACK_SHIFT;
    fiber.stack_pointer = prepare_stack(stack + STACK_BYTES - shift, fiber_main);
    return true;
}

} // namespace emu
