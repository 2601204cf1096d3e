// A source of copies that is overwritten before they are waited for.
#include "arguments.h"
#include "ptx.cuh"

extern "C" __global__ void late(const __grid_constant__ TestArguments p) {
    const ptx::Shared at = ptx::shared_base() + threadIdx.x * 16;
    uint32_t *from = const_cast<uint32_t *>(p.input) + threadIdx.x * 4;
    ptx::cp_async_16(at, from, 16);
    ptx::cp_async_commit();
    ptx::store_global(reinterpret_cast<uint4 *>(from), make_uint4(9, 9, 9, 9));
    ptx::cp_async_wait<0>();
    ptx::store_global(reinterpret_cast<uint4 *>(p.output) + threadIdx.x, ptx::load_shared<uint4>(at));
}
