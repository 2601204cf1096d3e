#include "emulator/machine.hpp"
#include "memory.hpp"
#include "work.hpp"

#include <cstring>

namespace mock {
namespace {

// CUtensorMapDataType, CUtensorMapInterleave, CUtensorMapSwizzle and CUtensorMapFloatOOBfill, as far as they are supported.
constexpr int BFLOAT16 = 9, NO_INTERLEAVE = 0, NO_SWIZZLE = 0, SWIZZLE_128 = 3, ZEROS = 0;
constexpr uint32_t VALUE_BYTES = 2, PERMUTED_BYTES = 128, MOST_IN_BOX = 256, UNIT = 16, MAP_ALIGNMENT = 64;
constexpr uint64_t MOST = uint64_t{1} << 32;

} // namespace
} // namespace mock

using namespace mock;

MOCK_EXPORT CUresult cuTensorMapEncodeTiled(void *to, int type, uint32_t rank, CUdeviceptr address, const uint64_t *sizes,
                                            const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                                            int interleave, int swizzle, int, int fill) {
    return call_always(__func__, [&] {
        if (type != BFLOAT16 || rank != 2 || interleave != NO_INTERLEAVE || fill != ZEROS ||
            (swizzle != NO_SWIZZLE && swizzle != SWIZZLE_128))
            refuse(CUDA_ERROR_NOT_SUPPORTED, "only maps of matrices of bf16, filled with zeros, are supported");
        if (!to || !sizes || !strides || !box || !steps || reinterpret_cast<uintptr_t>(to) % MAP_ALIGNMENT != 0)
            refuse(CUDA_ERROR_INVALID_VALUE, "a map begins at a multiple of 64 bytes, and has sizes, strides and a box");
        if (address % UNIT != 0 || strides[0] % UNIT != 0)
            refuse(CUDA_ERROR_INVALID_VALUE, "rows begin at multiples of 16 bytes, not at %s, %llu bytes apart",
                   describe(address).c_str(), static_cast<unsigned long long>(strides[0]));
        for (int i = 0; i < 2; ++i) {
            if (sizes[i] == 0 || sizes[i] > MOST || box[i] == 0 || box[i] > MOST_IN_BOX || steps[i] != 1)
                refuse(CUDA_ERROR_INVALID_VALUE, "dimension %d of %llu values has boxes of 1 to 256 neighbours, not %u", i,
                       static_cast<unsigned long long>(sizes[i]), box[i]);
        }
        const uint32_t row_bytes = box[0] * VALUE_BYTES;
        if (row_bytes % UNIT != 0 || (swizzle == SWIZZLE_128 && row_bytes > PERMUTED_BYTES))
            refuse(CUDA_ERROR_INVALID_VALUE, "a box has rows of %u bytes: multiples of 16, and at most 128 where pieces are "
                   "permuted", row_bytes);
        if ((swizzle == SWIZZLE_128) != (row_bytes == PERMUTED_BYTES))
            refuse(CUDA_ERROR_NOT_SUPPORTED, "pieces are permuted in rows of 128 bytes alone");
        if (!is_device_address(address))
            refuse(CUDA_ERROR_INVALID_VALUE, "%s is no memory of a device", describe(address).c_str());
        const emu::TensorMap map{address, sizes[0], sizes[1], strides[0], box[0], box[1], emu::TENSOR_MAP, {}};
        memcpy(to, &map, sizeof(map));
        return CUDA_SUCCESS;
    });
}
