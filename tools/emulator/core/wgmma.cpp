// Matrix products of warpgroups, in the background. Each warp's 16 rows are a product of their own: what the four warps of a
// warpgroup have to do alike is written down by the first of them and compared by the others.
#include "descriptor.hpp"
#include "matrix.hpp"
#include "worker.hpp"

#include <algorithm>
#include <cstring>

namespace emu {

namespace {

// What is in accumulators while they are not to be touched: NaN.
constexpr uint32_t POISON = 0xffffffff;

bool same(const WgmmaOperands &a, const WgmmaOperands &b) {
    return a.fragments == b.fragments && a.in_registers == b.in_registers &&
           a.left_transposed == b.left_transposed && a.transposed == b.transposed && a.add == b.add &&
           (a.in_registers || a.left == b.left) && a.right == b.right;
}

bool covers(const FencedRegisters &known, const void *at, size_t bytes) {
    const auto *begin = static_cast<const unsigned char *>(known.at), *from = static_cast<const unsigned char *>(at);
    return from >= begin && from + bytes <= begin + known.values.size() * sizeof(uint32_t);
}

bool overlaps(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    const auto *first = static_cast<const unsigned char *>(a), *second = static_cast<const unsigned char *>(b);
    return first < second + b_bytes && second < first + a_bytes;
}

size_t result_bytes(const Product &product) { return product.fragments * size_t{16}; }

} // namespace

// ---------------------------------------------------------------- what the warps of a warpgroup do alike

// Called by the last lane of a warp that comes to it.
void Worker::warpgroup_does(Warp &warp, const GroupStep &step) {
    const uint32_t number = warp.number / GROUP_WARPS, own = warp.number % GROUP_WARPS;
    const char *name = operation_name(step.operation);
    if ((number + 1) * GROUP_WARPS > warp_count) {
        fail(LAUNCH_FAILED, step.site, "%s needs a warpgroup of four warps: warps %u to %u are all of the block's last",
             name, number * GROUP_WARPS, warp_count - 1);
    }
    Warpgroup &group = warpgroups[number];
    const uint64_t at = group.done[own]++;
    GroupStep &first = group.steps[at % MOST_AHEAD];
    if (at == group.most) {
        if (at - *std::min_element(group.done, group.done + GROUP_WARPS) >= MOST_AHEAD) {
            fail(LAUNCH_FAILED, step.site, "%s: warp %u is %u steps ahead of another one of its warpgroup", name,
                 warp.number, static_cast<uint32_t>(MOST_AHEAD));
        }
        first = step;
        ++group.most;
        return;
    }
    if (first.operation != step.operation || !same_place(first.site, step.site)) {
        fail(LAUNCH_FAILED, step.site, "divergent warpgroup: warp %u is at %s where another one did %s (%s:%d)",
             warp.number, name, operation_name(first.operation), short_file(first.site.file), first.site.line);
    }
    if (!same(first.operands, step.operands) || first.value != step.value) {
        fail(LAUNCH_FAILED, step.site, "%s: warp %u of the warpgroup gives other operands than another one", name,
             warp.number);
    }
}

// At the block's end: false where warps of a warpgroup did not do the same.
bool Worker::warpgroups_agree() {
    for (uint32_t number = 0; number * GROUP_WARPS < warp_count; ++number) {
        const Warpgroup &group = warpgroups[number];
        const uint64_t *behind = std::min_element(group.done, group.done + GROUP_WARPS);
        if (*behind < group.most) {
            const GroupStep &step = group.steps[*behind % MOST_AHEAD];
            char text[160];
            snprintf(text, sizeof(text), "%s: warp %u of the warpgroup has exited without it",
                     operation_name(step.operation),
                     number * GROUP_WARPS + static_cast<uint32_t>(behind - group.done));
            record(LAUNCH_FAILED, step.site, text, nullptr);
            return false;
        }
    }
    return true;
}

// ---------------------------------------------------------------- registers

// The registers of a product must have been handed to wgmma_fence since they were touched.
void Worker::check_registers(Fiber &me, const void *at, size_t bytes, const char *what, Site site) {
    for (const FencedRegisters &known : me.fenced) {
        if (covers(known, at, bytes)) {
            const size_t offset = static_cast<size_t>(static_cast<const unsigned char *>(at) -
                                                      static_cast<const unsigned char *>(known.at));
            if (memcmp(reinterpret_cast<const unsigned char *>(known.values.data()) + offset, at, bytes) != 0) {
                fail(LAUNCH_FAILED, site, "wgmma_m64k16_bf16: registers of %s were written since wgmma_fence had them",
                     what);
            }
            return;
        }
    }
    fail(LAUNCH_FAILED, site, "wgmma_m64k16_bf16: wgmma_fence has not had the registers of %s since they were used", what);
}

// The registers of a product that is under way must be as it left them.
void Worker::check_untouched(const Product &product, Site site) {
    const char *what = nullptr;
    if (product.left != nullptr && memcmp(product.left, product.left_values, sizeof(product.left_values)) != 0) {
        what = "a";
    }
    for (uint32_t i = 0; what == nullptr && product.newest && i < product.fragments * 4; ++i) {
        uint32_t bits;
        memcpy(&bits, product.d + i, sizeof(bits));
        uint32_t expected = POISON;
        if (product.landed) {
            memcpy(&expected, &product.results[i], sizeof(expected));
        }
        if (bits != expected) {
            what = "d";
        }
    }
    if (what != nullptr) {
        fail(LAUNCH_FAILED, site, "registers of %s were written while a wgmma_m64k16_bf16 (%s:%d) was under way", what,
             short_file(product.site.file), product.site.line);
    }
}

void Worker::wgmma_fence(Thread &thread, const Registers *of, uint32_t count, Site site) {
    Fiber &me = fiber(thread);
    for (uint32_t i = 0; i < count; ++i) {
        const size_t bytes = of[i].words * sizeof(uint32_t);
        for (const Product &product : me.products) {
            if (overlaps(of[i].at, bytes, product.d, result_bytes(product)) ||
                (product.left != nullptr && overlaps(of[i].at, bytes, product.left, sizeof(product.left_values)))) {
                fail(LAUNCH_FAILED, site, "wgmma_fence: registers of a wgmma_m64k16_bf16 (%s:%d) that is under way",
                     short_file(product.site.file), product.site.line);
            }
        }
        const auto known = std::find_if(me.fenced.begin(), me.fenced.end(),
                                        [&](const FencedRegisters &one) { return one.at == of[i].at; });
        FencedRegisters &fenced = known != me.fenced.end() ? *known : me.fenced.emplace_back();
        const auto *words = static_cast<const uint32_t *>(of[i].at);
        fenced.at = of[i].at;
        fenced.values.assign(words, words + of[i].words);
    }
    const bool last = meet(me, Operation::WGMMA_FENCE, site);
    if (last) {
        warpgroup_does(*me.warp, {Operation::WGMMA_FENCE, site, {}, count});
    }
    finish(me, last);
}

// ---------------------------------------------------------------- products

// The values of an operand, checked: `outer` units along M or N.
void Worker::read_operand(uint64_t bits, uint32_t outer, bool transposed, uint16_t (*to)[INNER_VALUES], Site site) {
    const Operation operation = Operation::WGMMA;
    const Descriptor descriptor(bits);
    // A permuted unit is eight rows, and begins at a multiple of its size.
    const uint32_t unit = descriptor.row_bytes * ATOM;
    const bool permuted = descriptor.row_bytes > PIECE_BYTES;
    if (permuted && (descriptor.start % unit >= descriptor.row_bytes || descriptor.base_offset != 0)) {
        fail(MISALIGNED_ADDRESS, site,
             "wgmma_m64k16_bf16: byte %lld of shared memory is not in the first row of a multiple of %u, where its units "
             "of permuted pieces are to begin",
             static_cast<long long>(descriptor.start) - SHARED_BASE, unit);
    }
    Shared rows[LANES] = {};
    uint32_t number = 0;
    for_each_piece(bits, outer, transposed, [&](Shared at) {
        check_range(operation, at, PIECE_BYTES, PIECE_BYTES, site);
        check_load(operation, at, PIECE_BYTES, site);
        check_fenced(operation, at, PIECE_BYTES, site);
        const uint32_t row = number % ATOM, k = number / ATOM % (INNER / ATOM), n = number / INNER;
        uint16_t values[ATOM];
        memcpy(values, shared + at, sizeof(values));
        for (uint32_t i = 0; i < ATOM; ++i) {
            to[n * ATOM + (transposed ? i : row)][k * ATOM + (transposed ? row : i)] = values[i];
        }
        rows[row] = at;
        if (counting && row == ATOM - 1) {
            unit_wavefronts += count_unit(rows);
        }
        ++number;
    });
}

// A lane reads its share of what the warp's product does.
void Worker::tell_sanitizer([[maybe_unused]] const WgmmaOperands &operands, [[maybe_unused]] uint32_t lane) {
#if defined(SETRANK_TSAN)
    uint32_t number = 0;
    for_each_piece(operands, [&](Shared at) {
        if (number++ % LANES == lane) {
            sanitizer::read(shared + at, PIECE_BYTES);
        }
    });
#endif
}

void Worker::wgmma(Thread &thread, const WgmmaOperands *operands, Site site) {
    Fiber &me = fiber(thread);
    Warp &warp = *me.warp;
    const uint32_t lane = thread.number % LANES, words = operands->fragments * 4;
    // Products of the same shape add to the same accumulators one after the other, without a fence.
    Product *before = nullptr;
    for (Product &product : me.products) {
        if (product.newest && product.d == operands->d && product.fragments == operands->fragments) {
            before = &product;
        } else if (overlaps(product.d, result_bytes(product), operands->d, words * sizeof(float)) && product.newest) {
            fail(LAUNCH_FAILED, site, "wgmma_m64k16_bf16: registers of d are those of another shape's (%s:%d), under way",
                 short_file(product.site.file), product.site.line);
        }
    }
    if (before == nullptr) {
        check_registers(me, operands->d, words * sizeof(float), "d", site);
    } else {
        check_untouched(*before, site);
    }
    if (operands->in_registers) {
        check_registers(me, operands->a, 4 * sizeof(uint32_t), "a", site);
    }
    Product product{};
    product.site = site;
    product.group = me.open_products;
    product.d = operands->d;
    product.fragments = operands->fragments;
    product.newest = true;
    product.operands = *operands;
    if (operands->in_registers) {
        product.left = operands->a;
        memcpy(product.left_values, operands->a, sizeof(product.left_values));
    }
    // What is added to.
    for (uint32_t i = 0; i < words; ++i) {
        product.results[i] = !operands->add ? 0.0f : before != nullptr ? before->results[i] : operands->d[i];
    }
    if (before != nullptr) {
        before->newest = false;
    }
    me.products.push_back(product);
    if (warp.arrived != 0 && !same(warp.operands, *operands)) {
        fail(LAUNCH_FAILED, site, "wgmma_m64k16_bf16: this lane gives other operands than lanes %08x", warp.arrived);
    }
    warp.operands = *operands;
    const bool last = meet(me, Operation::WGMMA, site);
    if (last) {
        warpgroup_does(warp, {Operation::WGMMA, site, *operands, 0});
        multiply_warp(warp, *operands, site);
    }
    finish(me, last);
    tell_sanitizer(*operands, lane);
    Product &mine = me.products.back();
    const EmuCopies copies = launch->config.copies;
    mine.landed = copies == EMU_AT_ISSUE || (copies == EMU_AT_RANDOM && random() % 2 == 0);
    for (uint32_t i = 0; i < words; ++i) {
        uint32_t bits = POISON;
        if (mine.landed) {
            memcpy(&bits, &mine.results[i], sizeof(bits));
        }
        memcpy(mine.d + i, &bits, sizeof(bits));
    }
}

// The product of a warp's rows, when all of its lanes have come.
void Worker::multiply_warp(Warp &warp, const WgmmaOperands &operands, Site site) {
    static_assert(INNER_VALUES == INNER);
    const uint32_t first = warp.number * LANES;
    uint16_t a[ROWS_OF_WARP][INNER], left[GROUP_WARPS * ROWS_OF_WARP][INNER], right[MOST_FRAGMENTS * ATOM][INNER];
    unit_wavefronts = 0;
    if (operands.in_registers) {
        for (uint32_t lane = 0; lane < LANES; ++lane) {
            // As those of mma: lane 4·g + t holds columns 2t and 2t + 1, and those 8 further, of rows g and g + 8.
            const uint32_t g = lane / 4, t = lane % 4, *from = fibers[first + lane].products.back().left_values;
            memcpy(&a[g][2 * t], from, 4);
            memcpy(&a[g + 8][2 * t], from + 1, 4);
            memcpy(&a[g][2 * t + 8], from + 2, 4);
            memcpy(&a[g + 8][2 * t + 8], from + 3, 4);
        }
    } else {
        read_operand(operands.left, GROUP_WARPS * ROWS_OF_WARP / ATOM, operands.left_transposed, left, site);
        memcpy(a, left[warp.number % GROUP_WARPS * ROWS_OF_WARP], sizeof(a));
    }
    read_operand(operands.right, operands.fragments, operands.transposed, right, site);
    if (counting && warp.number % GROUP_WARPS == 0) {
        // The four warps share what is read.
        counters.wavefronts += unit_wavefronts;
        for_each_piece(operands, [&, row = 0u](Shared) mutable { counters.ideal_wavefronts += ++row % ATOM == 0; });
    }
    for (uint32_t j = 0; j < operands.fragments; ++j) {
        uint16_t b[ATOM][INNER];
        float c[ROWS_OF_WARP][ATOM];
        memcpy(b, right[j * ATOM], sizeof(b));
        for (uint32_t lane = 0; lane < LANES; ++lane) {
            const float *from = fibers[first + lane].products.back().results + 4 * j;
            memcpy(&c[lane / 4][lane % 4 * 2], from, 8);
            memcpy(&c[lane / 4 + 8][lane % 4 * 2], from + 2, 8);
        }
        multiply(a, b, c, launch->config.sums);
        for (uint32_t lane = 0; lane < LANES; ++lane) {
            float *to = fibers[first + lane].products.back().results + 4 * j;
            memcpy(to, &c[lane / 4][lane % 4 * 2], 8);
            memcpy(to + 2, &c[lane / 4 + 8][lane % 4 * 2], 8);
        }
    }
    counters.mma += operands.fragments;
    if (warp.end_read - warp.first_read == MOST_READS) {
        fail(LAUNCH_FAILED, site, "wgmma_m64k16_bf16: more than %u are under way", static_cast<uint32_t>(MOST_READS));
    }
    warp.reads[warp.end_read++ % MOST_READS] = {fibers[first].products.back().group, site, operands};
    for_each_piece(operands, [&](Shared at) {
        if (shared_reads[at / PIECE_BYTES]++ == 0) {
            for (uint32_t i = 0; i < PIECE_BYTES; ++i) {
                state[at + i] |= IN_PRODUCT;
            }
        }
    });
}

void Worker::wgmma_commit(Thread &thread, Site site) {
    Fiber &me = fiber(thread);
    const bool last = meet(me, Operation::WGMMA_COMMIT, site);
    if (last) {
        warpgroup_does(*me.warp, {Operation::WGMMA_COMMIT, site, {}, 0});
    }
    finish(me, last);
    ++me.open_products;
}

void Worker::wgmma_wait(Thread &thread, uint32_t pending, const Registers *results, Site site) {
    Fiber &me = fiber(thread);
    Warp &warp = *me.warp;
    const bool last = meet(me, Operation::WGMMA_WAIT, site);
    const auto done = [&](uint32_t group) { return static_cast<int32_t>(group + pending - me.open_products) < 0; };
    if (last) {
        warpgroup_does(warp, {Operation::WGMMA_WAIT, site, {}, pending});
        for (; warp.first_read < warp.end_read; ++warp.first_read) {
            const ProductReads &oldest = warp.reads[warp.first_read % MOST_READS];
            if (!done(oldest.group)) {
                break;
            }
            for_each_piece(oldest.operands, [&](Shared at) {
                if (--shared_reads[at / PIECE_BYTES] == 0) {
                    for (uint32_t i = 0; i < PIECE_BYTES; ++i) {
                        state[at + i] &= static_cast<uint8_t>(~IN_PRODUCT);
                    }
                }
            });
        }
    }
    finish(me, last);
    while (!me.products.empty() && done(me.products.front().group)) {
        const Product &product = me.products.front();
        check_untouched(product, site);
        tell_sanitizer(product.operands, thread.number % LANES);
        if (product.newest) {
            memcpy(product.d, product.results, result_bytes(product));
            // The next use of these registers is a touch.
            const auto is_of_it = [&](const FencedRegisters &known) {
                return overlaps(known.at, known.values.size() * sizeof(uint32_t), product.d, result_bytes(product));
            };
            me.fenced.erase(std::remove_if(me.fenced.begin(), me.fenced.end(), is_of_it), me.fenced.end());
        }
        me.products.pop_front();
    }
    for (const Product &product : me.products) {
        if (overlaps(results->at, results->words * sizeof(uint32_t), product.d, result_bytes(product))) {
            fail(LAUNCH_FAILED, site, "wgmma_wait: the wgmma_m64k16_bf16 (%s:%d) of these results is still under way",
                 short_file(product.site.file), product.site.line);
        }
    }
}

// The thread exits: nothing of it may be under way.
void Worker::end_products(Fiber &me) {
    if (!me.products.empty()) {
        fail(LAUNCH_FAILED, me.products.front().site,
             "wgmma_m64k16_bf16: the thread exits before it is complete: it needs wgmma_wait");
    }
}

// ---------------------------------------------------------------- numbers of registers

void Worker::set_registers(Thread &thread, Operation operation, uint32_t count, Site site) {
    constexpr uint32_t LEAST = 24, MOST = 256, UNIT = 8, ALL = 512;
    Fiber &me = fiber(thread);
    const bool last = meet(me, operation, site);
    if (last) {
        const char *name = operation_name(operation);
        if (count < LEAST || count > MOST || count % UNIT != 0) {
            fail(LAUNCH_FAILED, site, "%s: %u registers: not a multiple of 8 from 24 to 256", name, count);
        }
        warpgroup_does(*me.warp, {operation, site, {}, count});
        uint32_t &now = warpgroups[me.warp->number / GROUP_WARPS].registers;
        const bool less = operation == Operation::REGISTERS_DECREASE;
        if (now != 0 && now != count && (count < now) != less) {
            fail(LAUNCH_FAILED, site, "%s: from %u to %u", name, now, count);
        }
        now = count;
        uint32_t sum = 0;
        for (uint32_t group = 0; group * GROUP_WARPS < warp_count; ++group) {
            sum += warpgroups[group].registers;
        }
        if (sum > ALL) {
            fail(LAUNCH_FAILED, site, "%s: the warpgroups have %u registers together: at most %u", name, sum, ALL);
        }
    }
    finish(me, last);
}

} // namespace emu
