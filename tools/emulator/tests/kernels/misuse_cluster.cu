// Kernels that do something wrong with clusters and copies of boxes: each must be reported, at a line that ends in
// "// reported".
#include "arguments.h"
#include "ptx.cuh"

#define KERNEL extern "C" __global__ void __cluster_dims__(2)

namespace {

// An mbarrier behind 2048 bytes, for one arrival.
__device__ ptx::Shared full() { return ptx::shared_base() + 2048; }

__device__ void begin() {
    if (threadIdx.x == 0) {
        ptx::mbarrier_init(full(), 1);
        ptx::fence_mbarrier_init();
    }
    ptx::cluster_barrier();
}

// The first thread of the first block.
__device__ bool is_first() { return ptx::cluster_rank() == 0 && threadIdx.x == 0; }

} // namespace

KERNEL to_no_block(const __grid_constant__ TensorArguments) {
    begin();
    if (is_first()) ptx::mbarrier_arrive_at(full(), 2); // reported
    ptx::cluster_barrier();
}

KERNEL to_an_exited_block(const __grid_constant__ TensorArguments) {
    begin();
    if (ptx::cluster_rank() == 1) return;
    // Those who have exited are not waited for.
    ptx::cluster_barrier();
    if (is_first()) ptx::mbarrier_arrive_at(full(), 1); // reported
}

KERNEL before_the_other_is_ready(const __grid_constant__ TensorArguments) {
    if (is_first()) ptx::mbarrier_arrive_at(full(), 1); // reported
    begin();
}

KERNEL boxes_to_no_block(const __grid_constant__ TensorArguments p) {
    begin();
    if (is_first()) ptx::tensor_load(ptx::shared_base(), p.map, 0, 0, full(), 5); // reported
}

KERNEL no_map(const __grid_constant__ TensorArguments p) {
    begin();
    if (is_first()) ptx::tensor_load(ptx::shared_base(), p.map + 2, 0, 0, full(), 1); // reported
}

KERNEL panels_of_a_matrix(const __grid_constant__ TensorArguments p) {
    begin();
    if (is_first()) ptx::tensor_load(ptx::shared_base(), p.map, 0, 0, 0, full(), 1); // reported
}

KERNEL box_misaligned(const __grid_constant__ TensorArguments p) {
    begin();
    if (is_first()) ptx::tensor_load(ptx::shared_base() + 64, p.map, 0, 0, full(), 1); // reported
}

KERNEL mbarrier_not_fenced(const __grid_constant__ TensorArguments p) {
    if (threadIdx.x == 0) ptx::mbarrier_init(full(), 1);
    ptx::cluster_barrier();
    if (is_first()) ptx::tensor_load(ptx::shared_base(), p.map, 0, 0, full(), 3); // reported
}

KERNEL over_what_the_other_has_stored(const __grid_constant__ TensorArguments p) {
    if (ptx::cluster_rank() == 1) ptx::store_shared<uint32_t>(ptx::shared_base() + threadIdx.x * 4, 1);
    begin();
    if (is_first()) ptx::tensor_load(ptx::shared_base(), p.map, 0, 0, full(), 2); // reported
    ptx::cluster_barrier();
}

KERNEL not_waited_for(const __grid_constant__ TensorArguments p) {
    begin();
    if (threadIdx.x == 0) ptx::mbarrier_arrive_expect(full(), 2048);
    if (is_first()) ptx::tensor_load(ptx::shared_base(), p.map, 0, 0, full(), 3);
    if (threadIdx.x == 0) ptx::load_shared<uint32_t>(ptx::shared_base()); // reported
    ptx::cluster_barrier();
}

KERNEL apart(const __grid_constant__ TensorArguments) {
    begin();
    if (ptx::cluster_rank() == 0) {
        ptx::cluster_barrier(); // reported
    } else {
        ptx::mbarrier_wait(full(), 0); // reported
    }
}
