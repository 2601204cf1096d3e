// Shared memory: bounds, alignment, and what state its bytes are in.
#include "descriptor.hpp"
#include "worker.hpp"

#include <cstring>

namespace emu {

namespace {

constexpr uint32_t TAG_BYTES = 2;

} // namespace

void Worker::check_range(Operation operation, Shared at, uint32_t bytes, uint32_t alignment, Site site) {
    const uint32_t size = launch->shared_bytes;
    if (at < SHARED_BASE || uint64_t{at - SHARED_BASE} + bytes > size) {
        fail(ILLEGAL_ADDRESS, site, "%s: bytes %lld to %lld of the block's %u bytes of shared memory",
             operation_name(operation), static_cast<long long>(at) - SHARED_BASE,
             static_cast<long long>(at) - SHARED_BASE + bytes, size);
    }
    if (at % alignment != 0) {
        fail(MISALIGNED_ADDRESS, site, "%s: byte %u of shared memory is not aligned to %u", operation_name(operation),
             at - SHARED_BASE, alignment);
    }
}

void Worker::check_load(Operation operation, Shared at, uint32_t bytes, Site site) {
    for (Shared byte = at; byte < at + bytes; ++byte) {
        const uint8_t is = state[byte];
        if ((is & (WRITTEN | COPY_IN | IN_MBARRIER)) == WRITTEN) {
            continue;
        }
        const char *name = operation_name(operation);
        if ((is & COPY_IN) != 0) {
            fail(LAUNCH_FAILED, site, "%s: byte %u of shared memory is read while %s", name, byte - SHARED_BASE,
                 describe_copy(byte, true).c_str());
        }
        if ((is & IN_MBARRIER) != 0) {
            fail(LAUNCH_FAILED, site, "%s: byte %u of shared memory is part of an mbarrier", name, byte - SHARED_BASE);
        }
        fail(LAUNCH_FAILED, site, "%s: byte %u of shared memory is read before anything is written to it", name,
             byte - SHARED_BASE);
    }
}

void Worker::check_store(Operation operation, Shared at, uint32_t bytes, Site site) {
    for (Shared byte = at; byte < at + bytes; ++byte) {
        const uint8_t is = state[byte];
        if ((is & (COPY_IN | COPY_OUT | IN_MBARRIER | IN_PRODUCT)) == 0) {
            continue;
        }
        const char *name = operation_name(operation);
        if ((is & IN_MBARRIER) != 0) {
            fail(LAUNCH_FAILED, site, "%s: byte %u of shared memory is part of an mbarrier", name, byte - SHARED_BASE);
        }
        const bool in_product = (is & (COPY_IN | COPY_OUT)) == 0;
        fail(LAUNCH_FAILED, site, "%s: byte %u of shared memory is overwritten while %s", name, byte - SHARED_BASE,
             (in_product ? describe_product(byte) : describe_copy(byte, (is & COPY_IN) != 0)).c_str());
    }
}

void Worker::check_fenced(Operation operation, Shared at, uint32_t bytes, Site site) {
    for (Shared byte = at; byte < at + bytes; byte += TAG_BYTES) {
        const uint32_t tag = tags[byte / TAG_BYTES];
        if ((state[byte] & WRITTEN) == 0 || tag == NO_TAG) {
            continue;
        }
        const uint32_t writer = tag % TAG_FENCE;
        if (threads[writer].tag == tag) {
            fail(LAUNCH_FAILED, site,
                 "%s: byte %u of shared memory was written by thread %u, which has not called fence_proxy_async since",
                 operation_name(operation), byte - SHARED_BASE, writer);
        }
    }
}

void Worker::set_state(Shared at, uint32_t bytes, uint8_t value) { memset(state + at, value, bytes); }

void Worker::set_written(Shared at, uint32_t bytes, uint32_t tag) {
    set_state(at, bytes, WRITTEN);
    for (uint32_t i = 0; i < bytes / TAG_BYTES; ++i) {
        tags[at / TAG_BYTES + i] = tag;
    }
}

std::string Worker::describe_copy(Shared at, bool into) {
    char text[256];
    const auto covers = [at](Shared from, uint32_t bytes) { return at >= from && at < from + bytes; };
    if (into) {
        for (const BulkLoad &load : loads) {
            if (covers(load.to, load.bytes)) {
                snprintf(text, sizeof(text),
                         "a %s into it is under way (%s:%d, thread %u), its phase not complete",
                         operation_name(load.operation), short_file(load.site.file), load.site.line, load.thread);
                return text;
            }
        }
    }
    for (uint32_t i = 0; i < launch->thread_count; ++i) {
        for (const ThreadCopy &copy : fibers[i].copies) {
            if (into && covers(copy.to, 16)) {
                snprintf(text, sizeof(text), "a cp_async_16 into it is under way (%s:%d, thread %u), not waited for",
                         short_file(copy.site.file), copy.site.line, i);
                return text;
            }
        }
        for (const BulkStore &store : fibers[i].stores) {
            if (!into && !store.released && covers(store.from, store.bytes)) {
                snprintf(text, sizeof(text), "a bulk_store reads it (%s:%d, thread %u), not waited for",
                         short_file(store.site.file), store.site.line, i);
                return text;
            }
        }
    }
    return "a copy is under way";
}

std::string Worker::describe_product(Shared at) {
    for (uint32_t i = 0; i < warp_count; ++i) {
        for (uint64_t number = warps[i].first_read; number < warps[i].end_read; ++number) {
            const ProductReads &reads = warps[i].reads[number % MOST_READS];
            bool is_read = false;
            for_each_piece(reads.operands, [&](Shared piece) { is_read = is_read || at - piece < 16; });
            if (is_read) {
                char text[256];
                snprintf(text, sizeof(text), "a wgmma_m64k16_bf16 reads it (%s:%d, warp %u), not waited for",
                         short_file(reads.site.file), reads.site.line, i);
                return text;
            }
        }
    }
    return "a product reads it";
}

unsigned char *Worker::shared_access(Thread &thread, Operation operation, Shared at, uint32_t bytes, Site site) {
    check_range(operation, at, bytes, bytes, site);
    if (operation == Operation::LOAD_SHARED) {
        check_load(operation, at, bytes, site);
    } else {
        check_store(operation, at, bytes, site);
        set_written(at, bytes, thread.tag);
    }
    if (counting) {
        count_access(thread, operation, at, bytes, site);
    }
    return shared + at;
}

uint32_t Worker::add_shared(Thread &thread, Shared at, uint32_t value, Site site) {
    const Operation operation = Operation::ATOMIC_ADD_SHARED;
    check_range(operation, at, 4, 4, site);
    check_load(operation, at, 4, site);
    check_store(operation, at, 4, site);
    set_written(at, 4, thread.tag);
    if (counting) {
        count_access(thread, operation, at, 4, site);
    }
    uint32_t *counter = reinterpret_cast<uint32_t *>(shared + at);
    const uint32_t before = sanitizer::add(counter, value);
    preempt(fiber(thread));
    return before;
}

void Worker::fence_proxy_async(Thread &thread) { thread.tag += TAG_FENCE; }

} // namespace emu
