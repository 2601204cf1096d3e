// mbarriers: phases that end when enough threads have arrived and the expected bytes have landed.
#include "worker.hpp"

#include <algorithm>

namespace emu {

namespace {

constexpr uint32_t MBARRIER_BYTES = 8;
// Arrivals, and bytes, of a phase.
constexpr uint32_t MOST = (1 << 20) - 1;

} // namespace

MBarrier *Worker::find_mbarrier(Shared at) {
    for (MBarrier &mbarrier : mbarriers) {
        if (mbarrier.at == at) {
            return &mbarrier;
        }
    }
    return nullptr;
}

MBarrier &Worker::need_mbarrier(Operation operation, Shared at, Site site) {
    check_range(operation, at, MBARRIER_BYTES, MBARRIER_BYTES, site);
    MBarrier *mbarrier = find_mbarrier(at);
    if (mbarrier == nullptr) {
        fail(LAUNCH_FAILED, site, "%s: no mbarrier has been made of byte %u of shared memory yet",
             operation_name(operation), at - SHARED_BASE);
    }
    return *mbarrier;
}

void Worker::mbarrier_init(Thread &thread, Shared at, uint32_t arrivals, Site site) {
    const Operation operation = Operation::MBARRIER_INIT;
    check_range(operation, at, MBARRIER_BYTES, MBARRIER_BYTES, site);
    check_store(operation, at, MBARRIER_BYTES, site);
    if (arrivals == 0 || arrivals > MOST) {
        fail(LAUNCH_FAILED, site, "mbarrier_init: %u arrivals: not 1 to %u", arrivals, MOST);
    }
    if (mbarriers.size() == mbarriers.capacity()) {
        fail(LAUNCH_FAILED, site, "mbarrier_init: more than %zu mbarriers in a block", mbarriers.size());
    }
    sanitizer::write(shared + at, MBARRIER_BYTES);
    set_state(at, MBARRIER_BYTES, IN_MBARRIER);
    mbarriers.push_back(MBarrier{at, arrivals, arrivals, 0, 0, thread.number, false, {}});
}

void Worker::fence_mbarrier_init(Thread &thread) {
    for (MBarrier &mbarrier : mbarriers) {
        mbarrier.fenced = mbarrier.fenced || mbarrier.initialiser == thread.number;
    }
}

void Worker::mbarrier_arrive(Thread &, Shared at, uint32_t bytes, Site site) {
    arrive(Operation::MBARRIER_ARRIVE, at, bytes, site);
}

void Worker::mbarrier_arrive_at(Thread &, Shared at, uint32_t number, Site site) {
    const Operation operation = Operation::MBARRIER_ARRIVE_AT;
    block_of_cluster(operation, number, site).arrive(operation, at, 0, site);
}

void Worker::arrive(Operation operation, Shared at, uint32_t bytes, Site site) {
    MBarrier &mbarrier = need_mbarrier(operation, at, site);
    sanitizer::read(shared + at, MBARRIER_BYTES);
    sanitizer::release(mbarrier.meeting);
    if (mbarrier.pending == 0) {
        fail(LAUNCH_FAILED, site, "%s: one arrival more than the %u of phase %u", operation_name(operation),
             mbarrier.arrivals, mbarrier.phase);
    }
    mbarrier.bytes += bytes;
    if (mbarrier.bytes > MOST) {
        fail(LAUNCH_FAILED, site, "mbarrier_arrive_expect: %lld bytes in a phase: at most %u",
             static_cast<long long>(mbarrier.bytes), MOST);
    }
    --mbarrier.pending;
    settle(mbarrier, operation, site);
}

// Ends the phase if nothing is missing any more.
void Worker::settle(MBarrier &mbarrier, Operation operation, Site site) {
    if (mbarrier.pending != 0) {
        return;
    }
    if (mbarrier.bytes < 0) {
        fail(LAUNCH_FAILED, site, "%s: phase %u of the mbarrier at byte %u got %lld bytes more than it expects",
             operation_name(operation), mbarrier.phase, mbarrier.at - SHARED_BASE,
             -static_cast<long long>(mbarrier.bytes));
    }
    if (mbarrier.bytes != 0) {
        return;
    }
    ++mbarrier.phase;
    mbarrier.pending = mbarrier.arrivals;
    const auto complete = [&](const BulkLoad &load) {
        if (load.mbarrier != mbarrier.at || !load.landed) {
            return false;
        }
        set_written(load.to, load.bytes, NO_TAG);
        return true;
    };
    loads.erase(std::remove_if(loads.begin(), loads.end(), complete), loads.end());
    for (uint32_t warp = 0; warp < warp_count; ++warp) {
        for (uint32_t rest = waiting_lanes[warp]; rest != 0; rest &= rest - 1) {
            const uint32_t lane = static_cast<uint32_t>(__builtin_ctz(rest));
            Fiber &waiter = fibers[warp * LANES + lane];
            if (waiter.waits_at == mbarrier.at && (mbarrier.phase & 1) != waiter.waits_parity) {
                waiter.waits_at = NONE;
                waiting_lanes[warp] &= ~waiter.bit;
                make_ready(warps[warp], waiter.bit);
            }
        }
    }
}

void Worker::mbarrier_wait(Thread &thread, Shared at, uint32_t parity, Site site) {
    MBarrier &mbarrier = need_mbarrier(Operation::MBARRIER_WAIT, at, site);
    sanitizer::read(shared + at, MBARRIER_BYTES);
    Fiber &me = fiber(thread);
    count_meeting(me, site);
    if ((mbarrier.phase & 1) == (parity & 1)) {
        me.waits_at = at;
        me.waits_parity = parity & 1;
        me.waits_site = site;
        waiting_lanes[me.warp->number] |= me.bit;
        wait(me);
    }
    sanitizer::acquire(mbarrier.meeting);
}

} // namespace emu
