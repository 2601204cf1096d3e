// Device memory: what addresses mean.
#pragma once

#include "driver.hpp"

namespace mock {

// The allocation that holds `bytes` bytes at an address, or null.
std::shared_ptr<Allocation> find_allocation(CUdeviceptr address, uint64_t bytes);
// As find_allocation, but the call ends with CUDA_ERROR_INVALID_VALUE and a message where there is none; `role` says in
// it what the address was given as.
std::shared_ptr<Allocation> allocation_at(const char *role, CUdeviceptr address, uint64_t bytes);
// Whether an address is, or may have been, one of device memory: no address of the host is as high.
bool is_device_address(CUdeviceptr address);
// What an address is, for messages: "a pointer to freed memory: 256 bytes, allocation 3 (from cuMemAllocAsync)".
std::string describe(CUdeviceptr address);
// What an allocation is, for messages.
std::string describe(const Allocation &allocation);

// Host pointer to device memory when queued work touches it; null, with a complaint, if it was freed meanwhile or the
// stream that it was asked of has not come to its allocation: then the program forgot to order the two.
void *touch(const char *work, const Allocation &allocation, CUdeviceptr address, uint64_t bytes);

// Frees all memory of a device.
void free_all(Device &device);

// Allocates; `ordered`: it is usable only when the work that allocates runs.
std::shared_ptr<Allocation> allocate(Device &device, uint64_t bytes, const char *made_by, bool ordered);
// Orders an allocation in a stream: cuMemAllocAsync. 0 bytes are address 0.
CUdeviceptr allocate_ordered(Context &context, CUstream stream, uint64_t bytes, const char *made_by);

} // namespace mock
