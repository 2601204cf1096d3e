// Clusters: blocks that run together and reach each other's shared memory, and copies of boxes of matrices into several.
#include "worker.hpp"

#include <algorithm>

namespace emu {

Worker &Worker::block_of_cluster(Operation operation, uint32_t number, Site site) {
    if (number >= cluster->count) {
        fail(LAUNCH_FAILED, site, "%s: there is no block %u in a cluster of %u", operation_name(operation), number,
             cluster->count);
    }
    Worker &block = *cluster->blocks[number];
    if (block.live_warps == 0) {
        fail(LAUNCH_FAILED, site, "%s: block %u of the cluster has exited", operation_name(operation), number);
    }
    return block;
}

void Worker::tensor_load(Thread &thread, Shared to, const TensorBox *box, Shared at, Site site) {
    const Operation operation = Operation::TENSOR_LOAD;
    constexpr uint32_t VALUE_BYTES = 2, ALIGNMENT = 128;
    const TensorMap &map = *box->map;
    if (map.mark != TENSOR_MAP) {
        fail(LAUNCH_FAILED, site, "tensor_load: of what is no tensor map");
    }
    if (box->blocks == 0 || box->blocks >> cluster->count != 0) {
        fail(LAUNCH_FAILED, site, "tensor_load: to blocks %x of a cluster of %u", box->blocks, cluster->count);
    }
    if (box->rank != map.rank) {
        fail(LAUNCH_FAILED, site, "tensor_load: of %u dimensions, by a map of %u", box->rank,
             static_cast<uint32_t>(map.rank));
    }
    const auto [column, row, panel] = box->from;
    if (column < 0 || row < 0 || panel < 0) {
        fail(LAUNCH_FAILED, site, "tensor_load: from column %d, row %d and panel %d on", column, row, panel);
    }
    // How many of `count` from the first on are inside of the matrix.
    const auto inside = [](int32_t first, uint32_t count, uint64_t of) {
        return static_cast<uint32_t>(std::min<uint64_t>(count, of - std::min<uint64_t>(of, static_cast<uint32_t>(first))));
    };
    BulkLoad load{};
    load.operation = operation;
    load.to = to;
    load.row_bytes = map.box_columns * VALUE_BYTES;
    load.permuted_bytes = map.permuted_bytes;
    load.bytes = map.box_rows * load.row_bytes;
    load.inside_bytes = inside(column, map.box_columns, map.columns) * VALUE_BYTES;
    load.stride = map.row_bytes;
    load.mbarrier = at;
    load.thread = thread.number;
    load.site = site;
    if (to % ALIGNMENT != 0) {
        fail(MISALIGNED_ADDRESS, site, "tensor_load: byte %lld of shared memory is not aligned to %u",
             static_cast<long long>(to) - SHARED_BASE, ALIGNMENT);
    }
    const uint64_t first = map.address + static_cast<uint64_t>(panel) * map.panel_bytes +
                           static_cast<uint64_t>(row) * map.row_bytes + static_cast<uint64_t>(column) * VALUE_BYTES;
    const uint32_t inside_panels = inside(panel, map.box_panels, map.panels);
    // Each panel of the box is a copy of its own.
    for (uint32_t number = 0; number < map.box_panels; ++number) {
        const bool is_inside = number < inside_panels && load.inside_bytes != 0;
        load.inside_rows = is_inside ? inside(row, map.box_rows, map.rows) : 0;
        for (uint32_t i = 0; i < load.inside_rows; ++i) {
            const uint64_t from = first + number * map.panel_bytes + i * map.row_bytes;
            const unsigned char *host = check_global(operation, from, load.inside_bytes, VALUE_BYTES, site);
            load.from = i == 0 ? host : load.from;
            sanitizer::read(host, load.inside_bytes);
            if (counting) {
                count_bulk(operation, from, load.inside_bytes);
            }
        }
        for (uint32_t block = 0; block < cluster->count; ++block) {
            if ((box->blocks >> block & 1) != 0) {
                block_of_cluster(operation, block, site).begin_load(load);
            }
        }
        load.to += load.bytes;
    }
}

} // namespace emu
