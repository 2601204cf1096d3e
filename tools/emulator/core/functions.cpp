// The table through which kernels call the core.
#include "worker.hpp"

namespace emu {

namespace {

// A method of the worker as a function that finds the worker by its stack.
template <auto METHOD> struct Call;
template <class Result, class... Arguments, Result (Worker::*METHOD)(Thread &, Arguments...)> struct Call<METHOD> {
    static Result call(Thread *thread, Arguments... arguments) {
        return (static_cast<Worker &>(block()).*METHOD)(*thread, arguments...);
    }
};

} // namespace

const Functions FUNCTIONS = {
    Call<&Worker::shared_access>::call,
    Call<&Worker::global_access>::call,
    Call<&Worker::add_global>::call,
    Call<&Worker::add_shared>::call,
    Call<&Worker::out_of_budget>::call,
    Call<&Worker::count_exponential>::call,

    Call<&Worker::cp_async>::call,
    Call<&Worker::cp_async_commit>::call,
    Call<&Worker::cp_async_wait>::call,

    Call<&Worker::ldmatrix>::call,
    Call<&Worker::stmatrix>::call,
    Call<&Worker::mma>::call,

    Call<&Worker::barrier>::call,
    Call<&Worker::sync_warp>::call,
    Call<&Worker::shuffle>::call,
    Call<&Worker::ballot>::call,

    Call<&Worker::mbarrier_init>::call,
    Call<&Worker::fence_mbarrier_init>::call,
    Call<&Worker::mbarrier_arrive>::call,
    Call<&Worker::mbarrier_wait>::call,
    Call<&Worker::fence_proxy_async>::call,
    Call<&Worker::bulk_load>::call,
    Call<&Worker::bulk_store>::call,
    Call<&Worker::bulk_commit>::call,
    Call<&Worker::bulk_wait>::call,
};

} // namespace emu
