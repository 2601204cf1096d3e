// Asynchronous copies: when their bytes land, and what must be waited for.
#include "worker.hpp"

#include <algorithm>
#include <cstring>

namespace emu {

namespace {

constexpr uint32_t COPY_BYTES = 16;
constexpr uint32_t BULK_UNIT = 16;

// Whether a group is older than all but the newest `pending` closed ones; `open` is the number of the open group.
bool must_be_complete(uint32_t group, uint32_t open, uint32_t pending) {
    return static_cast<int32_t>(group + pending - open) < 0;
}

} // namespace

// ---------------------------------------------------------------- cp.async

void Worker::land(const ThreadCopy &copy) {
    if (!copy.landed) {
        memcpy(shared + copy.to, copy.from, copy.bytes);
        memset(shared + copy.to + copy.bytes, 0, COPY_BYTES - copy.bytes);
    }
}

void Worker::land_sometimes(Fiber &me) {
    if (launch->config.copies == EMU_AT_RANDOM) {
        for (ThreadCopy &copy : me.copies) {
            if (random() % 4 == 0) {
                land(copy);
                copy.landed = true;
            }
        }
    }
}

void Worker::cp_async(Thread &thread, Shared to, uint64_t from, uint32_t bytes, Site site) {
    const Operation operation = Operation::CP_ASYNC;
    check_range(operation, to, COPY_BYTES, COPY_BYTES, site);
    check_store(operation, to, COPY_BYTES, site);
    if (bytes > COPY_BYTES) {
        fail(LAUNCH_FAILED, site, "cp_async_16: %u bytes: it copies at most 16", bytes);
    }
    ThreadCopy copy{to, bytes, nullptr, fiber(thread).open_group, false, site};
    if (bytes > 0) {
        copy.from = check_global(operation, from, bytes, COPY_BYTES, site);
        sanitizer::read(copy.from, bytes);
    }
    sanitizer::write(shared + to, COPY_BYTES);
    if (counting) {
        count_copy(thread, to, from, bytes, site);
    }
    const EmuCopies copies = launch->config.copies;
    if (copies == EMU_AT_ISSUE || (copies == EMU_AT_RANDOM && random() % 2 == 0)) {
        land(copy);
        copy.landed = true;
    }
    set_state(to, COPY_BYTES, COPY_IN);
    fiber(thread).copies.push_back(copy);
}

void Worker::cp_async_commit(Thread &thread) { ++fiber(thread).open_group; }

void Worker::cp_async_wait(Thread &thread, uint32_t pending) {
    Fiber &me = fiber(thread);
    size_t complete = 0;
    while (complete < me.copies.size() && must_be_complete(me.copies[complete].group, me.open_group, pending)) {
        const ThreadCopy &copy = me.copies[complete];
        land(copy);
        sanitizer::write(shared + copy.to, COPY_BYTES);
        set_written(copy.to, COPY_BYTES, thread.tag);
        ++complete;
    }
    me.copies.erase(me.copies.begin(), me.copies.begin() + static_cast<std::ptrdiff_t>(complete));
    land_sometimes(me);
}

// ---------------------------------------------------------------- bulk copies

void Worker::bulk_load(Thread &thread, Shared to, uint64_t from, uint32_t bytes, Shared at, Site site) {
    const Operation operation = Operation::BULK_LOAD;
    if (bytes == 0 || bytes % BULK_UNIT != 0) {
        fail(LAUNCH_FAILED, site, "bulk_load: %u bytes: not a positive multiple of 16", bytes);
    }
    const unsigned char *host = check_global(operation, from, bytes, BULK_UNIT, site);
    sanitizer::read(host, bytes);
    if (counting) {
        count_bulk(operation, from, bytes);
    }
    begin_load({operation, to, bytes, host, bytes, bytes, 1, 0, 0, at, false, thread.number, site});
}

// A load into this block is issued, by a thread of this or another one of the cluster.
void Worker::begin_load(const BulkLoad &load) {
    const Operation operation = load.operation;
    check_range(operation, load.to, load.bytes, BULK_UNIT, load.site);
    check_store(operation, load.to, load.bytes, load.site);
    check_fenced(operation, load.to, load.bytes, load.site);
    MBarrier &mbarrier = need_mbarrier(operation, load.mbarrier, load.site);
    if (!mbarrier.fenced) {
        fail(LAUNCH_FAILED, load.site,
             "%s: the asynchronous proxy does not see the mbarrier at byte %u: thread %u, which made it, has not called "
             "fence_mbarrier_init since",
             operation_name(operation), load.mbarrier - SHARED_BASE, mbarrier.initialiser);
    }
    sanitizer::write(shared + load.to, load.bytes);
    sanitizer::release(mbarrier.meeting);
    if (counting) {
        count_bulk_shared(load.bytes);
    }
    set_state(load.to, load.bytes, COPY_IN);
    loads.push_back(load);
    if (launch->config.copies == EMU_AT_ISSUE) {
        land(loads.back());
    }
}

void Worker::land(BulkLoad &load) {
    load.landed = true;
    // Bits 4 and on of an address are turned by its bits 7 and on.
    const uint32_t turned = load.permuted_bytes != 0 ? load.permuted_bytes / BULK_UNIT - 1 : 0;
    for (uint32_t row = 0; row < load.bytes / load.row_bytes; ++row) {
        const uint32_t inside = row < load.inside_rows ? load.inside_bytes : 0;
        for (uint32_t piece = 0; piece < load.row_bytes; piece += BULK_UNIT) {
            Shared to = load.to + row * load.row_bytes + piece;
            to ^= (to >> 7 & turned) << 4;
            const uint32_t bytes = std::min(inside - std::min(inside, piece), BULK_UNIT);
            if (bytes != 0) {
                memcpy(shared + to, load.from + row * load.stride + piece, bytes);
            }
            memset(shared + to + bytes, 0, BULK_UNIT - bytes);
        }
    }
    MBarrier &mbarrier = *find_mbarrier(load.mbarrier);
    mbarrier.bytes -= load.bytes;
    settle(mbarrier, load.operation, load.site);
}

// False if there is none under way.
bool Worker::land_one_load() {
    size_t under_way = 0;
    for (const BulkLoad &load : loads) {
        under_way += !load.landed;
    }
    if (under_way == 0) {
        return false;
    }
    size_t skipped = launch->config.copies == EMU_AT_RANDOM ? random() % under_way : 0;
    for (BulkLoad &load : loads) {
        if (!load.landed && skipped-- == 0) {
            land(load);
            break;
        }
    }
    return true;
}

void Worker::bulk_store(Thread &thread, uint64_t to, Shared from, uint32_t bytes, Site site) {
    const Operation operation = Operation::BULK_STORE;
    if (bytes == 0 || bytes % BULK_UNIT != 0) {
        fail(LAUNCH_FAILED, site, "bulk_store: %u bytes: not a positive multiple of 16", bytes);
    }
    check_range(operation, from, bytes, BULK_UNIT, site);
    check_load(operation, from, bytes, site);
    check_fenced(operation, from, bytes, site);
    unsigned char *host = check_global(operation, to, bytes, BULK_UNIT, site);
    sanitizer::read(shared + from, bytes);
    sanitizer::write(host, bytes);
    if (counting) {
        count_bulk(operation, to, bytes);
        count_bulk_shared(bytes);
    }
    Fiber &me = fiber(thread);
    BulkStore store{host, from, bytes, me.open_store_group, false, false, false, site, {}};
    const EmuCopies copies = launch->config.copies;
    if (copies == EMU_AT_ISSUE || (copies == EMU_AT_RANDOM && random() % 2 == 0)) {
        read(store);
        write(store);
    }
    set_state(from, bytes, WRITTEN | COPY_OUT);
    me.stores.push_back(std::move(store));
}

void Worker::read(BulkStore &store) {
    if (!store.read) {
        store.read = true;
        store.data.assign(shared + store.from, shared + store.from + store.bytes);
    }
}

void Worker::write(BulkStore &store) {
    if (!store.written) {
        store.written = true;
        memcpy(store.to, store.data.data(), store.bytes);
    }
}

// The thread has waited until a store has read its shared memory.
void Worker::release(BulkStore &store) {
    if (store.released) {
        return;
    }
    read(store);
    sanitizer::read(shared + store.from, store.bytes);
    store.released = true;
    set_state(store.from, store.bytes, WRITTEN);
    // Others may still read some of the same bytes.
    for (uint32_t i = 0; i < launch->thread_count; ++i) {
        for (const BulkStore &other : fibers[i].stores) {
            if (!other.released) {
                set_state(other.from, other.bytes, WRITTEN | COPY_OUT);
            }
        }
    }
}

void Worker::bulk_commit(Thread &thread) { ++fiber(thread).open_store_group; }

void Worker::bulk_wait(Thread &thread, uint32_t pending, bool written) {
    Fiber &me = fiber(thread);
    for (BulkStore &store : me.stores) {
        if (!must_be_complete(store.group, me.open_store_group, pending)) {
            break;
        }
        release(store);
        if (written) {
            write(store);
            sanitizer::write(store.to, store.bytes);
        }
    }
    while (!me.stores.empty() && me.stores.front().released && me.stores.front().written) {
        me.stores.erase(me.stores.begin());
    }
}

// The thread exits: what it copies lands at the latest now.
void Worker::end_copies(Fiber &me) {
    for (const ThreadCopy &copy : me.copies) {
        land(copy);
        set_written(copy.to, COPY_BYTES, me.thread->tag);
    }
    me.copies.clear();
    for (BulkStore &store : me.stores) {
        if (!store.released) {
            fail(LAUNCH_FAILED, store.site,
                 "bulk_store: the thread exits before the copy has read its shared memory: it needs bulk_wait_read");
        }
        write(store);
    }
    me.stores.clear();
}

} // namespace emu
