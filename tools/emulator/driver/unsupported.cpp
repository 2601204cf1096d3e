// The names that cudarc looks up and nothing here defines: a call of one says so. A definition elsewhere in the library
// takes the place of the weak one. names.inc is the list of what cudarc 0.19.10 looks up in any version of CUDA; a test
// compares the two.

#include "driver.hpp"

using namespace mock;

static CUresult unsupported(const char *name) {
    return call_always(name, []() -> CUresult { refuse(CUDA_ERROR_NOT_SUPPORTED, "this call is not supported"); });
}

#define NAME(name)                                                                                                     \
    extern "C" __attribute__((weak, visibility("default"))) CUresult name() { return unsupported(#name); }
#include "names.inc"
