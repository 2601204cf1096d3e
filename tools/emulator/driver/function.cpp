#include "function.hpp"

namespace mock {

std::shared_ptr<Function> function_of(Context &context, CUfunction handle) {
    const auto found = context.functions.find(handle);
    if (found == context.functions.end())
        refuse(CUDA_ERROR_INVALID_HANDLE, "%p is no function of the current context", static_cast<void *>(handle));
    return found->second;
}

int max_threads(const Function &function) {
    return std::min(function.description.max_threads, threads_by_registers(function.description.registers));
}

namespace {

int attribute_of(const Function &function, int attribute) {
    const Image &image = function.module->image;
    const Card &card = *driver().configuration.card;
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        return max_threads(function);
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        return function.description.shared_bytes;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
        return function.description.local_bytes;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        return function.description.registers;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
        return image.virtual_architecture;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        // The driver compiles PTX for the card.
        return image.ptx_version ? 10 * card.major + card.minor : image.architecture;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        return function.max_dynamic_shared;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        return -1;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA:
        return 0;
    default:
        refuse(CUDA_ERROR_NOT_SUPPORTED, "attribute %d is not supported", attribute);
    }
}

// Shared memory that a block takes up on a multiprocessor.
int64_t shared_of(const Function &function, int64_t dynamic) {
    const int64_t reserved = driver().configuration.card->major >= 8 ? SHARED_RESERVED : 0;
    return (function.description.shared_bytes + dynamic + reserved + SHARED_UNIT - 1) / SHARED_UNIT * SHARED_UNIT;
}

// Blocks of this many threads that a multiprocessor holds at once.
int blocks_of(const Function &function, int threads, size_t dynamic) {
    const Card &card = *driver().configuration.card;
    if (threads <= 0)
        refuse(CUDA_ERROR_INVALID_VALUE, "a block cannot have %d threads", threads);
    if (threads > max_threads(function) ||
        dynamic + size_t(function.description.shared_bytes) > size_t(card.shared_opt_in))
        return 0;
    const int warps = (threads + WARP - 1) / WARP;
    int blocks = std::min(card.blocks_multiprocessor, card.threads_multiprocessor / (warps * WARP));
    if (function.description.registers > 0)
        blocks = std::min(blocks, REGISTERS / 4 / warp_registers(function.description.registers) * 4 / warps);
    if (const int64_t shared = shared_of(function, int64_t(dynamic)))
        blocks = int(std::min<int64_t>(blocks, card.shared_multiprocessor / shared));
    return blocks;
}

} // namespace
} // namespace mock

using namespace mock;

MOCK_EXPORT CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction handle) {
    return call_in_context(__func__, [&](Context &context) {
        output(value) = attribute_of(*function_of(context, handle), attribute);
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuFuncSetAttribute(CUfunction handle, int attribute, int value) {
    return call_in_context(__func__, [&](Context &context) {
        const std::shared_ptr<Function> function = function_of(context, handle);
        const int most = driver().configuration.card->shared_opt_in - function->description.shared_bytes;
        switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
            if (value < 0 || value > most)
                refuse(CUDA_ERROR_INVALID_VALUE, "kernel %s cannot have %d bytes of dynamic shared memory, %d at most",
                       function->description.name.c_str(), value, most);
            function->max_dynamic_shared = value;
            return CUDA_SUCCESS;
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
            if (value < -1 || value > 100)
                refuse(CUDA_ERROR_INVALID_VALUE, "a carveout is -1 or from 0 to 100, not %d", value);
            return CUDA_SUCCESS;
        default:
            refuse(CUDA_ERROR_INVALID_VALUE, "attribute %d cannot be set", attribute);
        }
    });
}

MOCK_EXPORT CUresult cuFuncSetCacheConfig(CUfunction handle, int) {
    return call_in_context(__func__, [&](Context &context) {
        function_of(context, handle);
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction handle, int threads,
                                                                          size_t dynamic, unsigned) {
    return call_in_context(__func__, [&](Context &context) {
        output(blocks) = blocks_of(*function_of(context, handle), threads, dynamic);
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction handle, int threads,
                                                                 size_t dynamic) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, handle, threads, dynamic, 0);
}

MOCK_EXPORT CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *dynamic, CUfunction handle, int blocks,
                                                             int threads) {
    return call_in_context(__func__, [&](Context &context) {
        const std::shared_ptr<Function> function = function_of(context, handle);
        const Card &card = *driver().configuration.card;
        if (blocks <= 0 || blocks > blocks_of(*function, threads, 0))
            refuse(CUDA_ERROR_INVALID_VALUE, "%d blocks of %d threads do not fit at all", blocks, threads);
        const int64_t each = card.shared_multiprocessor / blocks / SHARED_UNIT * SHARED_UNIT;
        const int64_t free = each - shared_of(*function, 0);
        output(dynamic) = size_t(std::min<int64_t>(free, card.shared_opt_in - function->description.shared_bytes));
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction handle,
                                                               size_t (*dynamic_of)(int), size_t dynamic, int limit,
                                                               unsigned) {
    return call_in_context(__func__, [&](Context &context) {
        output(grid);
        output(block);
        const std::shared_ptr<Function> function = function_of(context, handle);
        const int most = limit > 0 ? std::min(limit, max_threads(*function)) : max_threads(*function);
        int best = 0;
        for (int threads = most; threads > 0; threads = (threads - 1) / WARP * WARP) {
            const int blocks = blocks_of(*function, threads, dynamic_of ? dynamic_of(threads) : dynamic);
            if (threads * blocks > best) {
                best = threads * blocks;
                *block = threads;
                *grid = blocks * driver().configuration.multiprocessors();
            }
        }
        if (best == 0)
            refuse(CUDA_ERROR_INVALID_VALUE, "no block of kernel %s fits", function->description.name.c_str());
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction handle,
                                                      size_t (*dynamic_of)(int), size_t dynamic, int limit) {
    return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, handle, dynamic_of, dynamic, limit, 0);
}
