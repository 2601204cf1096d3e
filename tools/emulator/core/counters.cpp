// Counters that do not depend on the schedule: an access is told by its place in the source and how often its lane was
// there since its warp last met; the accesses of a warp's lanes with the same two are one request,
// as are those of lanes that come to one function's line by two branches, which a card issues apart.
#include "counters.hpp"

#include "worker.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string_view>
#include <tuple>

namespace emu {

namespace {

constexpr uint32_t SECTOR_BYTES = 32;
constexpr uint32_t BANKS = 32;
constexpr uint32_t WORD_BYTES = 4;
constexpr uint32_t WAVEFRONT_BYTES = BANKS * WORD_BYTES;

constexpr uint32_t WORD_BITS = 64;

// Lanes that shared memory serves at a time, for accesses of so many bytes.
uint32_t lanes_at_a_time(uint32_t bytes) { return bytes <= WORD_BYTES ? LANES : LANES * WORD_BYTES / bytes; }

bool reads(Operation operation) {
    return operation == Operation::LOAD_CONSTANT || operation == Operation::LOAD_GLOBAL ||
           operation == Operation::ATOMIC_ADD_GLOBAL || operation == Operation::CP_ASYNC ||
           operation == Operation::BULK_LOAD || operation == Operation::TENSOR_LOAD;
}

bool writes(Operation operation) {
    return operation == Operation::STORE_GLOBAL || operation == Operation::ATOMIC_ADD_GLOBAL ||
           operation == Operation::BULK_STORE;
}

// Cycles that shared memory needs for accesses of lanes, those of `active` bits: banks give one word a cycle, the same
// word to any number of lanes, or, to atomic operations, to one lane.
uint32_t wavefronts(const Shared (&addresses)[LANES], uint32_t active, uint32_t bytes, bool atomic) {
    const uint32_t at_a_time = lanes_at_a_time(bytes);
    uint32_t cycles = 0;
    for (uint32_t first = 0; first < LANES; first += at_a_time) {
        uint32_t words[BANKS][LANES], counts[BANKS] = {}, most = 0;
        for (uint32_t lane = first; lane < first + at_a_time; ++lane) {
            if ((active >> lane & 1) == 0) {
                continue;
            }
            const uint32_t last = (addresses[lane] + bytes - 1) / WORD_BYTES;
            for (uint32_t word = addresses[lane] / WORD_BYTES; word <= last; ++word) {
                uint32_t &count = counts[word % BANKS];
                uint32_t *known = words[word % BANKS];
                if (atomic || std::find(known, known + count, word) == known + count) {
                    known[count++] = word;
                    most = std::max(most, count);
                }
            }
        }
        cycles += most;
    }
    return cycles;
}

// How many different values the active lanes have.
template <class T> uint32_t distinct(const T (&values)[LANES], uint32_t active) {
    T sorted[LANES];
    uint32_t count = 0;
    for (uint32_t lane = 0; lane < LANES; ++lane) {
        if ((active >> lane & 1) != 0) {
            sorted[count++] = values[lane];
        }
    }
    std::sort(sorted, sorted + count);
    return static_cast<uint32_t>(std::unique(sorted, sorted + count) - sorted);
}

uint32_t ideal_wavefronts(uint32_t bytes) { return (bytes + WAVEFRONT_BYTES - 1) / WAVEFRONT_BYTES; }

bool same_request(const Record &a, const Record &b) {
    return a.operation == b.operation && a.bytes == b.bytes && same_place(a.site, b.site);
}

} // namespace

// ---------------------------------------------------------------- bytes touched

void Footprint::Free::operator()(uint64_t *bits) const { free(bits); }

Footprint::Footprint(uint64_t bytes)
    : words(bytes / WORD_BITS + 1), bits_read(static_cast<uint64_t *>(calloc(words, sizeof(uint64_t)))),
      bits_written(static_cast<uint64_t *>(calloc(words, sizeof(uint64_t)))) {}

void Footprint::set(uint64_t *bits, uint64_t first, uint64_t bytes) {
    while (bytes > 0) {
        const uint64_t offset = first % WORD_BITS, here = std::min(bytes, WORD_BITS - offset);
        const uint64_t mask = (here == WORD_BITS ? ~uint64_t{0} : (uint64_t{1} << here) - 1) << offset;
        uint64_t *word = bits + first / WORD_BITS;
        if ((__atomic_load_n(word, __ATOMIC_RELAXED) & mask) != mask) {
            __atomic_fetch_or(word, mask, __ATOMIC_RELAXED);
        }
        first += here;
        bytes -= here;
    }
}

uint64_t Footprint::count(const uint64_t *bits) const {
    uint64_t sum = 0;
    for (uint64_t word = 0; word < words; ++word) {
        sum += static_cast<uint64_t>(__builtin_popcountll(bits[word]));
    }
    return sum;
}

void Worker::count_global_bytes(Operation operation, uint64_t at, uint32_t bytes) {
    const auto above = std::upper_bound(launch->spans.begin(), launch->spans.end(), at,
                                        [](uint64_t address, const Span &span) { return address < span.begin; });
    const auto span = std::prev(above);
    Footprint &footprint = (*launch->footprints)[static_cast<size_t>(span - launch->spans.begin())];
    if (reads(operation)) {
        footprint.read(at - span->begin, bytes);
    }
    if (writes(operation)) {
        footprint.write(at - span->begin, bytes);
    }
}

// A request of so many sectors, each of which goes to L2 or comes from it as a whole, once for all lanes.
void Worker::count_sectors(Operation operation, uint64_t sectors) {
    ++counters.requests;
    counters.sectors += sectors;
    counters.requested_read += reads(operation) ? sectors * SECTOR_BYTES : 0;
    counters.requested_written += writes(operation) ? sectors * SECTOR_BYTES : 0;
}

// ---------------------------------------------------------------- requests of warps

void Worker::count_access(const Thread &thread, Operation operation, Shared at, uint32_t bytes, Site site) {
    fiber(thread).records.push_back({site, operation, static_cast<uint8_t>(bytes), true, false, at, 0});
}

void Worker::count_access(const Thread &thread, Operation operation, uint64_t at, uint32_t bytes, Site site) {
    count_global_bytes(operation, at, bytes);
    fiber(thread).records.push_back({site, operation, static_cast<uint8_t>(bytes), false, true, 0, at});
}

void Worker::count_copy(const Thread &thread, Shared to, uint64_t from, uint32_t bytes, Site site) {
    if (bytes > 0) {
        count_global_bytes(Operation::CP_ASYNC, from, bytes);
    }
    fiber(thread).records.push_back({site, Operation::CP_ASYNC, 16, true, bytes > 0, to, from});
}

// The warp has met: its lanes' records can be put together.
void Worker::count_warp(Warp &warp) {
    Fiber *lanes = &fibers[warp.number * LANES];
    const size_t lane_count = std::min(LANES, launch->thread_count - warp.number * LANES);
    size_t most = 0;
    for (size_t lane = 0; lane < lane_count; ++lane) {
        most = std::max(most, lanes[lane].records.size());
    }
    // As long as all lanes do the same, the same number in each lane is the same request.
    bool uniform = true;
    for (size_t lane = 0; lane < lane_count && uniform; ++lane) {
        uniform = lanes[lane].records.size() == most;
        for (size_t i = 0; i < most && uniform; ++i) {
            uniform = same_request(lanes[lane].records[i], lanes[0].records[i]);
        }
    }
    if (uniform) {
        for (size_t i = 0; i < most; ++i) {
            std::array<const Record *, LANES> request{};
            for (size_t lane = 0; lane < lane_count; ++lane) {
                request[lane] = &lanes[lane].records[i];
            }
            count_request(request);
        }
    } else {
        count_divergent(lanes, lane_count);
    }
    for (size_t lane = 0; lane < lane_count; ++lane) {
        lanes[lane].records.clear();
    }
}

// Lanes did different things: a request is a place and the how manieth time that its lane was there.
void Worker::count_divergent(const Fiber *lanes, size_t lane_count) {
    using Place = std::tuple<std::string_view, int, Operation, uint8_t>;
    using Request = std::array<const Record *, LANES>;
    std::map<std::pair<Place, size_t>, Request> requests;
    for (size_t lane = 0; lane < lane_count; ++lane) {
        std::map<Place, size_t> times;
        for (const Record &record : lanes[lane].records) {
            const Place place{record.site.file, record.site.line, record.operation, record.bytes};
            const auto [request, added] = requests.try_emplace({place, times[place]++});
            if (added) {
                request->second.fill(nullptr);
            }
            request->second[lane] = &record;
        }
    }
    for (const auto &[place, request] : requests) {
        count_request(request);
    }
}

void Worker::count_request(const std::array<const Record *, LANES> &lanes) {
    Shared shared_addresses[LANES] = {};
    uint64_t sectors[LANES] = {};
    uint32_t shared_lanes = 0, global_lanes = 0, bytes = 0;
    Operation operation{};
    for (uint32_t lane = 0; lane < LANES; ++lane) {
        const Record *record = lanes[lane];
        if (record == nullptr) {
            continue;
        }
        bytes = record->bytes;
        operation = record->operation;
        shared_addresses[lane] = record->shared;
        sectors[lane] = record->global / SECTOR_BYTES;
        shared_lanes |= uint32_t{record->in_shared} << lane;
        global_lanes |= uint32_t{record->in_global} << lane;
    }
    if (shared_lanes != 0) {
        const bool atomic = operation == Operation::ATOMIC_ADD_SHARED;
        counters.wavefronts += wavefronts(shared_addresses, shared_lanes, bytes, atomic);
        counters.ideal_wavefronts += ideal_wavefronts(distinct(shared_addresses, shared_lanes) * bytes);
    }
    if (global_lanes != 0) {
        count_sectors(operation, distinct(sectors, global_lanes));
    }
}

// The rows of ldmatrix and stmatrix, 16 bytes each.
void Worker::count_rows(const Shared (&rows)[LANES]) {
    constexpr uint32_t ROW_BYTES = 16;
    counters.wavefronts += wavefronts(rows, ALL_LANES, ROW_BYTES, false);
    counters.ideal_wavefronts += ideal_wavefronts(distinct(rows, ALL_LANES) * ROW_BYTES);
}

// Cycles of eight rows of 16 bytes.
uint32_t Worker::count_unit(const Shared (&rows)[LANES]) const {
    constexpr uint32_t ROW_BYTES = 16, EIGHT = 0xff;
    return wavefronts(rows, EIGHT, ROW_BYTES, false);
}

void Worker::count_bulk(Operation operation, uint64_t global, uint32_t bytes) {
    count_global_bytes(operation, global, bytes);
    count_sectors(operation, (global + bytes - 1) / SECTOR_BYTES - global / SECTOR_BYTES + 1);
}

void Worker::count_bulk_shared(uint32_t bytes) {
    counters.wavefronts += ideal_wavefronts(bytes);
    counters.ideal_wavefronts += ideal_wavefronts(bytes);
}

} // namespace emu
