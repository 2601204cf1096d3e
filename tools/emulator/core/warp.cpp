// Operations that all lanes of a warp execute together.
#include "matrix.hpp"
#include "worker.hpp"

#include <cstring>

namespace emu {

namespace {

// A thread that has met others so often loops without end.
constexpr uint32_t MOST_MEETINGS = 1 << 20;

} // namespace

bool same_place(Site a, Site b) {
    return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

void Worker::count_meeting(Fiber &me, Site site) {
    exhausted = 0;
    if (++me.meetings > MOST_MEETINGS) {
        fail(LAUNCH_FAILED, site, "endless loop: the thread has met others %u times", MOST_MEETINGS);
    }
}

void Worker::diverged(const Warp &warp, Operation operation, Site site) {
    fail(LAUNCH_FAILED, site, "divergent warp: this lane is at %s while lanes %08x wait at %s (%s:%d)",
         operation_name(operation), warp.arrived, operation_name(warp.operation), short_file(warp.site.file),
         warp.site.line);
}

bool Worker::meet(Fiber &me, Operation operation, Site site) {
    Warp &warp = *me.warp;
    if (warp.arrived == 0) {
        if (warp.live != ALL_LANES) {
            fail(LAUNCH_FAILED, site, "%s needs all 32 lanes of the warp: only lanes %08x have not exited",
                 operation_name(operation), warp.live);
        }
        warp.operation = operation;
        warp.site = site;
    } else if (warp.operation != operation || !same_place(warp.site, site)) {
        diverged(warp, operation, site);
    }
    count_meeting(me, site);
    warp.arrived |= me.bit;
    return warp.arrived == ALL_LANES;
}

void Worker::finish(Fiber &me, bool last) {
    if (!last) {
        wait(me);
        return;
    }
    Warp &warp = *me.warp;
    if (counting) {
        count_warp(warp);
    }
    warp.arrived = 0;
    make_ready(warp, ALL_LANES & ~me.bit);
    preempt(me);
}

void Worker::sync_warp(Thread &thread, Site site) {
    Fiber &me = fiber(thread);
    // Of the two meetings, a lane releases the one that it acquires: the others are at most one operation away.
    sanitizer::Meeting &meeting = me.warp->sync_meetings[me.turn ^= 1];
    sanitizer::release(meeting);
    finish(me, meet(me, Operation::SYNC_WARP, site));
    sanitizer::acquire(meeting);
}

uint32_t Worker::shuffle(Thread &thread, Operation operation, uint32_t value, uint32_t from, Site site) {
    Fiber &me = fiber(thread);
    Exchange &exchange = me.warp->exchange[me.turn ^= 1];
    exchange.words[thread.number % LANES] = value;
    finish(me, meet(me, operation, site));
    return exchange.words[from];
}

uint32_t Worker::ballot(Thread &thread, bool is, Site site) {
    Fiber &me = fiber(thread);
    Exchange &exchange = me.warp->exchange[me.turn ^= 1];
    exchange.words[thread.number % LANES] = is;
    finish(me, meet(me, Operation::BALLOT, site));
    uint32_t lanes = 0;
    for (uint32_t lane = 0; lane < LANES; ++lane) {
        lanes |= exchange.words[lane] << lane;
    }
    return lanes;
}

void Worker::ldmatrix(Thread &thread, Operation operation, uint32_t *to, Shared row, Site site) {
    check_range(operation, row, MATRIX_ROW_BYTES, MATRIX_ROW_BYTES, site);
    check_load(operation, row, MATRIX_ROW_BYTES, site);
    Fiber &me = fiber(thread);
    auto &exchange = me.warp->exchange[me.turn ^= 1].matrices;
    const uint32_t lane = thread.number % LANES;
    exchange.rows[lane] = row;
    const bool last = meet(me, operation, site);
    if (last) {
        // Lane 8·i + r names row r of matrix i; lane 4·r + w gets word w of that row.
        for (uint32_t i = 0; i < 4; ++i) {
            unsigned char *matrix = reinterpret_cast<unsigned char *>(exchange.words[i]);
            for (uint32_t r = 0; r < 8; ++r) {
                memcpy(matrix + r * MATRIX_ROW_BYTES, shared + exchange.rows[8 * i + r], MATRIX_ROW_BYTES);
            }
            if (operation == Operation::LDMATRIX_TRANSPOSED) {
                transpose(exchange.words[i]);
            }
        }
        if (counting) {
            count_rows(exchange.rows);
        }
    }
    finish(me, last);
    for (uint32_t i = 0; i < 4; ++i) {
        to[i] = exchange.words[i][lane];
        // For the sanitizer, a lane accesses what it gets, not the row that it names.
        const Shared *rows = &exchange.rows[8 * i];
        if (operation == Operation::LDMATRIX) {
            sanitizer::read(shared + rows[lane / 4] + lane % 4 * 4, 4);
        } else {
            sanitizer::read(shared + rows[lane % 4 * 2] + lane / 4 * 2, 2);
            sanitizer::read(shared + rows[lane % 4 * 2 + 1] + lane / 4 * 2, 2);
        }
    }
}

void Worker::stmatrix(Thread &thread, Operation operation, Shared row, const uint32_t *from, Site site) {
    check_range(operation, row, MATRIX_ROW_BYTES, MATRIX_ROW_BYTES, site);
    check_store(operation, row, MATRIX_ROW_BYTES, site);
    Fiber &me = fiber(thread);
    auto &exchange = me.warp->exchange[me.turn ^= 1].matrices;
    const uint32_t lane = thread.number % LANES;
    exchange.rows[lane] = row;
    for (uint32_t i = 0; i < 4; ++i) {
        exchange.words[i][lane] = from[i];
    }
    const bool last = meet(me, operation, site);
    if (last) {
        if (operation == Operation::STMATRIX_TRANSPOSED) {
            for (auto &matrix : exchange.words) {
                transpose(matrix);
            }
        }
        for (uint32_t lane_of_row = 0; lane_of_row < LANES; ++lane_of_row) {
            const Shared to = exchange.rows[lane_of_row];
            memcpy(shared + to, &exchange.words[lane_of_row / 8][lane_of_row % 8 * 4], MATRIX_ROW_BYTES);
            set_written(to, MATRIX_ROW_BYTES, threads[me.warp->number * LANES + lane_of_row].tag);
        }
        if (counting) {
            count_rows(exchange.rows);
        }
    }
    finish(me, last);
    for (uint32_t i = 0; i < 4; ++i) {
        const Shared *rows = &exchange.rows[8 * i];
        if (operation == Operation::STMATRIX) {
            sanitizer::write(shared + rows[lane / 4] + lane % 4 * 4, 4);
        } else {
            sanitizer::write(shared + rows[lane % 4 * 2] + lane / 4 * 2, 2);
            sanitizer::write(shared + rows[lane % 4 * 2 + 1] + lane / 4 * 2, 2);
        }
    }
}

void Worker::mma(Thread &thread, MmaOperands *operands, Site site) {
    Fiber &me = fiber(thread);
    auto &exchange = me.warp->exchange[me.turn ^= 1].mma;
    // Lane 4·g + t holds columns 2t and 2t + 1, and those 8 further, of rows g and g + 8.
    const uint32_t g = thread.number % LANES / 4, t = thread.number % 4;
    memcpy(&exchange.a[g][2 * t], &operands->a[0], 4);
    memcpy(&exchange.a[g + 8][2 * t], &operands->a[1], 4);
    memcpy(&exchange.a[g][2 * t + 8], &operands->a[2], 4);
    memcpy(&exchange.a[g + 8][2 * t + 8], &operands->a[3], 4);
    memcpy(&exchange.b[g][2 * t], &operands->b[0], 4);
    memcpy(&exchange.b[g][2 * t + 8], &operands->b[1], 4);
    memcpy(&exchange.c[g][2 * t], &operands->c[0], 8);
    memcpy(&exchange.c[g + 8][2 * t], &operands->c[2], 8);
    const bool last = meet(me, Operation::MMA, site);
    if (last) {
        multiply(exchange.a, exchange.b, exchange.c, launch->config.sums);
        ++counters.mma;
    }
    finish(me, last);
    memcpy(&operands->c[0], &exchange.c[g][2 * t], 8);
    memcpy(&operands->c[2], &exchange.c[g + 8][2 * t], 8);
}

} // namespace emu
