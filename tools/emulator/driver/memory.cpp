#include "memory.hpp"

#include "capture.hpp"
#include "work.hpp"

namespace mock {
namespace {

// Freed memory that is remembered.
constexpr size_t REMEMBERED = 4096;

std::shared_ptr<Allocation> find_in(const std::map<CUdeviceptr, std::shared_ptr<Allocation>> &map, CUdeviceptr address,
                                    uint64_t bytes) {
    auto after = map.upper_bound(address);
    if (after == map.begin())
        return nullptr;
    const std::shared_ptr<Allocation> &allocation = std::prev(after)->second;
    const uint64_t offset = address - allocation->address;
    const bool inside = offset < allocation->bytes && bytes <= allocation->bytes - offset;
    return inside ? allocation : nullptr;
}

// Frees an allocation at once. Its device has a fault if something wrote behind its end.
void release(const std::shared_ptr<Allocation> &allocation) {
    Driver &state = driver();
    allocation->state = Allocation::FREED;
    state.allocations.erase(allocation->address);
    state.freed[allocation->address] = allocation;
    if (state.freed.size() > REMEMBERED)
        state.freed.erase(state.freed.begin());
    Device &device = *allocation->device;
    if (emu_free(device.memory, allocation->address) != 0 && device.fault == CUDA_SUCCESS)
        device.fault = fault(CUDA_ERROR_ILLEGAL_ADDRESS, "something wrote behind the end of %s",
                             describe(*allocation).c_str());
}

} // namespace

std::shared_ptr<Allocation> find_allocation(CUdeviceptr address, uint64_t bytes) {
    return find_in(driver().allocations, address, bytes);
}

bool is_device_address(CUdeviceptr address) {
    // Between the host's addresses and what would be small negative numbers.
    constexpr int HOST_BITS = 47, DEVICE_BITS = 56;
    return address >> HOST_BITS != 0 && address >> DEVICE_BITS == 0;
}

std::string describe(const Allocation &allocation) {
    return std::to_string(allocation.bytes) + " bytes, allocation " + std::to_string(allocation.number) + " (from " +
           allocation.made_by + ")";
}

std::string describe(CUdeviceptr address) {
    if (address == 0)
        return "null";
    if (const auto allocation = find_allocation(address, 1))
        return "byte " + std::to_string(address - allocation->address) + " of " + describe(*allocation);
    if (const auto allocation = find_in(driver().freed, address, 1))
        return "a pointer to freed memory: " + describe(*allocation);
    const auto after = driver().allocations.upper_bound(address);
    if (after != driver().allocations.begin()) {
        const Allocation &before = *std::prev(after)->second;
        const uint64_t behind = address - before.address - before.bytes;
        if (behind < 65536)
            return std::to_string(behind) + " bytes behind the end of " + describe(before);
    }
    return "no address of device memory";
}

std::shared_ptr<Allocation> allocation_at(const char *role, CUdeviceptr address, uint64_t bytes) {
    const std::shared_ptr<Allocation> allocation = find_allocation(address, bytes);
    if (!allocation)
        refuse(CUDA_ERROR_INVALID_VALUE, "%llu bytes at 0x%llx are no %s: the address is %s",
               static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(address), role,
               describe(address).c_str());
    return allocation;
}

void *touch(const char *work, const Allocation &allocation, CUdeviceptr address, uint64_t bytes) {
    if (allocation.state == Allocation::LIVE)
        return emu_host(allocation.device->memory, address, bytes);
    const bool freed = allocation.state == Allocation::FREED;
    complain("%s uses %s %s: nothing orders the two", work, describe(allocation).c_str(),
             freed ? "after it was freed" : "before its stream comes to its allocation");
    return nullptr;
}

std::shared_ptr<Allocation> allocate(Device &device, uint64_t bytes, const char *made_by, bool ordered) {
    Driver &state = driver();
    const uint64_t number = ++state.allocations_asked;
    if (number == state.configuration.out_of_memory_at)
        refuse(CUDA_ERROR_OUT_OF_MEMORY, "allocation %llu fails as configured",
               static_cast<unsigned long long>(number));
    CUdeviceptr address = emu_alloc(device.memory, bytes);
    if (!address) {
        // Memory whose freeing is ordered is still in use; the driver waits for it before it gives up.
        finish(*device.context);
        address = emu_alloc(device.memory, bytes);
    }
    if (!address)
        refuse(CUDA_ERROR_OUT_OF_MEMORY, "%llu bytes do not fit: %llu of %llu bytes are in use",
               static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(emu_allocated(device.memory)),
               static_cast<unsigned long long>(state.configuration.memory));
    ++state.counters.allocations;
    state.freed.erase(address);
    const auto allocation = std::make_shared<Allocation>(
        Allocation{address, bytes, &device, number, made_by, ordered ? Allocation::ORDERED : Allocation::LIVE});
    state.allocations[address] = allocation;
    emu_name(device.memory, address, ("allocation " + std::to_string(number)).c_str());
    return allocation;
}

CUdeviceptr allocate_ordered(Context &context, CUstream handle, uint64_t bytes, const char *made_by) {
    if (!driver().configuration.pools)
        refuse(CUDA_ERROR_NOT_SUPPORTED, "the device has no memory pools");
    Stream &stream = stream_of(context, handle);
    refuse_capturing(stream, "an allocation");
    if (bytes == 0)
        return 0;
    const std::shared_ptr<Allocation> allocation = allocate(*stream.context->device, bytes, made_by, true);
    enqueue(stream, [allocation] {
        allocation->state = Allocation::LIVE;
        return CUDA_SUCCESS;
    });
    return allocation->address;
}

void free_all(Device &device) {
    std::vector<std::shared_ptr<Allocation>> all;
    for (const auto &[address, allocation] : driver().allocations)
        if (allocation->device == &device)
            all.push_back(allocation);
    for (const auto &allocation : all)
        release(allocation);
}

namespace {

// The allocation that begins at an address and may be freed.
std::shared_ptr<Allocation> allocation_to_free(CUdeviceptr address) {
    const auto found = driver().allocations.find(address);
    if (found == driver().allocations.end())
        refuse(CUDA_ERROR_INVALID_VALUE, "0x%llx cannot be freed: it is %s", static_cast<unsigned long long>(address),
               describe(address).c_str());
    if (found->second->free_ordered)
        refuse(CUDA_ERROR_INVALID_VALUE, "%s is freed already", describe(*found->second).c_str());
    return found->second;
}

} // namespace
} // namespace mock

using namespace mock;

MOCK_EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    return call_in_context(__func__, [&](Context &context) {
        output(total) = driver().configuration.memory;
        output(free) = *total - emu_allocated(context.device->memory);
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    return call_in_context(__func__, [&](Context &context) {
        output(address);
        if (bytes == 0)
            refuse(CUDA_ERROR_INVALID_VALUE, "0 bytes cannot be allocated");
        refuse_unsafe();
        *address = allocate(*context.device, bytes, "cuMemAlloc", false)->address;
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream) {
    return call_in_context(__func__, [&](Context &context) {
        output(address) = allocate_ordered(context, stream, bytes, "cuMemAllocAsync");
        return CUDA_SUCCESS;
    });
}

MOCK_EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
    return call_in_context(__func__, [&](Context &) {
        if (address == 0)
            return CUDA_SUCCESS;
        refuse_unsafe();
        const std::shared_ptr<Allocation> allocation = allocation_to_free(address);
        finish_everything();
        release(allocation);
        return allocation->device->fault;
    });
}

MOCK_EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
    return call_in_context(__func__, [&](Context &context) {
        Stream &stream = stream_of(context, handle);
        refuse_capturing(stream, "freeing");
        if (address == 0)
            return CUDA_SUCCESS;
        const std::shared_ptr<Allocation> allocation = allocation_to_free(address);
        allocation->free_ordered = true;
        enqueue(stream, [allocation] {
            if (allocation->state != Allocation::LIVE)
                return fault(CUDA_ERROR_ILLEGAL_ADDRESS,
                             "%s is freed before its stream comes to its allocation: nothing orders the two",
                             describe(*allocation).c_str());
            release(allocation);
            return allocation->device->fault;
        });
        return CUDA_SUCCESS;
    });
}
