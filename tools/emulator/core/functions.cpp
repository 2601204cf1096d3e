// The table through which kernels call the core.
#include "worker.hpp"

namespace emu {

namespace {

// A method of the worker as a function that finds the worker by its stack.
template <auto METHOD> struct Call;
template <class Result, class... Arguments, Result (Worker::*METHOD)(Thread &, Arguments...)> struct Call<METHOD> {
    static Result function(Thread *thread, Arguments... arguments) {
        const sanitizer::Call call(__builtin_return_address(0));
        return (static_cast<Worker &>(block()).*METHOD)(*thread, arguments...);
    }
};

} // namespace

const Functions FUNCTIONS = {
    Call<&Worker::shared_access>::function,
    Call<&Worker::global_access>::function,
    Call<&Worker::add_global>::function,
    Call<&Worker::add_shared>::function,
    Call<&Worker::out_of_budget>::function,
    Call<&Worker::count_exponential>::function,

    Call<&Worker::cp_async>::function,
    Call<&Worker::cp_async_commit>::function,
    Call<&Worker::cp_async_wait>::function,

    Call<&Worker::ldmatrix>::function,
    Call<&Worker::stmatrix>::function,
    Call<&Worker::mma>::function,

    Call<&Worker::barrier>::function,
    Call<&Worker::cluster_barrier>::function,
    Call<&Worker::sync_warp>::function,
    Call<&Worker::shuffle>::function,
    Call<&Worker::ballot>::function,

    Call<&Worker::mbarrier_init>::function,
    Call<&Worker::fence_mbarrier_init>::function,
    Call<&Worker::mbarrier_arrive>::function,
    Call<&Worker::mbarrier_arrive_at>::function,
    Call<&Worker::mbarrier_wait>::function,
    Call<&Worker::fence_proxy_async>::function,
    Call<&Worker::bulk_load>::function,
    Call<&Worker::tensor_load>::function,
    Call<&Worker::bulk_store>::function,
    Call<&Worker::bulk_commit>::function,
    Call<&Worker::bulk_wait>::function,

    Call<&Worker::wgmma>::function,
    Call<&Worker::wgmma_fence>::function,
    Call<&Worker::wgmma_commit>::function,
    Call<&Worker::wgmma_wait>::function,
    Call<&Worker::set_registers>::function,
};

} // namespace emu
