// The plainest kernels: what a card that runs anything at all runs.
#include "arguments.h"
#include "ptx.cuh"

namespace {

__device__ uint32_t number() { return blockIdx.x * blockDim.x + threadIdx.x; }

} // namespace

// The first `b` words of the input.
extern "C" __global__ void __launch_bounds__(256) copy(const __grid_constant__ TestArguments p) {
    if (number() < static_cast<uint32_t>(p.b)) {
        ptx::store_global(p.output + number(), ptx::load_constant(p.input + number()));
    }
}

// The first `b` words of the input, and `a` added to each.
extern "C" __global__ void __launch_bounds__(256) add(const __grid_constant__ TestArguments p) {
    if (number() < static_cast<uint32_t>(p.b)) {
        const uint32_t value = ptx::load_global(p.input + number());
        ptx::store_global(p.output + number(), value + static_cast<uint32_t>(p.a));
    }
}
