#include "emulator/machine.hpp"
#include "memory.hpp"
#include "work.hpp"

#include <cstring>

namespace mock {
namespace {

// CUtensorMapDataType, CUtensorMapInterleave, CUtensorMapSwizzle and CUtensorMapFloatOOBfill, as far as they are supported.
constexpr int BFLOAT16 = 9, NO_INTERLEAVE = 0, NO_SWIZZLE = 0, SWIZZLE_64 = 2, SWIZZLE_128 = 3, ZEROS = 0;
constexpr uint32_t VALUE_BYTES = 2, MOST_PERMUTED_BYTES = 128, MOST_IN_BOX = 256, UNIT = 16, MAP_ALIGNMENT = 64;
constexpr uint32_t MATRIX = 2, PANELS = 3;
constexpr uint64_t MOST = uint64_t{1} << 32, MOST_STRIDE = uint64_t{1} << 40;

} // namespace
} // namespace mock

using namespace mock;

MOCK_EXPORT CUresult cuTensorMapEncodeTiled(void *to, int type, uint32_t rank, CUdeviceptr address, const uint64_t *sizes,
                                            const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                                            int interleave, int swizzle, int, int fill) {
    return call_always(__func__, [&] {
        const uint32_t permuted = swizzle == SWIZZLE_64 ? 64 : swizzle == SWIZZLE_128 ? 128 : 0;
        if (type != BFLOAT16 || (rank != MATRIX && rank != PANELS) || interleave != NO_INTERLEAVE || fill != ZEROS ||
            (swizzle != NO_SWIZZLE && permuted == 0))
            refuse(CUDA_ERROR_NOT_SUPPORTED, "only maps of matrices of bf16, in panels or not, filled with zeros, are "
                   "supported");
        if (!to || !sizes || !strides || !box || !steps || reinterpret_cast<uintptr_t>(to) % MAP_ALIGNMENT != 0)
            refuse(CUDA_ERROR_INVALID_VALUE, "a map begins at a multiple of 64 bytes, and has sizes, strides and a box");
        for (uint32_t i = 0; i + 1 < rank; ++i) {
            if (address % UNIT != 0 || strides[i] % UNIT != 0 || strides[i] >= MOST_STRIDE)
                refuse(CUDA_ERROR_INVALID_VALUE, "rows begin at multiples of 16 bytes, not at %s, %llu bytes apart",
                       describe(address).c_str(), static_cast<unsigned long long>(strides[i]));
        }
        for (uint32_t i = 0; i < rank; ++i) {
            if (sizes[i] == 0 || sizes[i] > MOST || box[i] == 0 || box[i] > MOST_IN_BOX || steps[i] != 1)
                refuse(CUDA_ERROR_INVALID_VALUE, "dimension %u of %llu values has boxes of 1 to 256 neighbours, not %u", i,
                       static_cast<unsigned long long>(sizes[i]), box[i]);
        }
        const uint32_t row_bytes = box[0] * VALUE_BYTES;
        if (row_bytes % UNIT != 0 || (permuted != 0 && row_bytes > permuted))
            refuse(CUDA_ERROR_INVALID_VALUE, "a box has rows of %u bytes: multiples of 16, and at most %u where pieces are "
                   "permuted", row_bytes, permuted != 0 ? permuted : MOST_PERMUTED_BYTES);
        if (permuted != 0 ? row_bytes != permuted : row_bytes == MOST_PERMUTED_BYTES)
            refuse(CUDA_ERROR_NOT_SUPPORTED, "rows of 128 bytes have pieces that are permuted, and shorter ones fill what is");
        if (!is_device_address(address))
            refuse(CUDA_ERROR_INVALID_VALUE, "%s is no memory of a device", describe(address).c_str());
        const bool in_panels = rank == PANELS;
        const emu::TensorMap map{address,
                                 sizes[0],
                                 sizes[1],
                                 strides[0],
                                 box[0],
                                 box[1],
                                 emu::TENSOR_MAP,
                                 in_panels ? sizes[2] : 1,
                                 in_panels ? strides[1] : 0,
                                 in_panels ? box[2] : 1,
                                 permuted,
                                 rank,
                                 {}};
        memcpy(to, &map, sizeof(map));
        return CUDA_SUCCESS;
    });
}
