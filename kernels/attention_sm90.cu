// Attention over sets by matrix instructions of warpgroups: the kernels of the templates, which stand, described, in the
// headers.

// A wait that ends in words is a call, beside which ptxas puts wgmmas one behind the other.
#undef SETRANK_BOUNDED_WAITS

#include "attention_backward_sm90.cuh"
#include "attention_forward_sm90.cuh"

#define ATTENTION_FORWARD_WGMMA(NAME, D, DROPOUT)                                                                     \
    extern "C" __global__ void __launch_bounds__(ATTENTION_SM90_THREADS_D##D, ATTENTION_SM90_BLOCKS_D##D)            \
        NAME(const __grid_constant__ AttentionForward p) {                                                            \
        attention::wgmma::forward<D, DROPOUT>(p);                                                                     \
    }
ATTENTION_FORWARD_WGMMA(attention_forward_wgmma_d32, 32, false)
ATTENTION_FORWARD_WGMMA(attention_forward_wgmma_d32_dropout, 32, true)
ATTENTION_FORWARD_WGMMA(attention_forward_wgmma_d64, 64, false)
ATTENTION_FORWARD_WGMMA(attention_forward_wgmma_d64_dropout, 64, true)

#define ATTENTION_BACKWARD_WGMMA(NAME, D, DROPOUT)                                                                    \
    extern "C" __global__ void __launch_bounds__(ATTENTION_SM90_BACKWARD_THREADS, ATTENTION_SM90_BACKWARD_BLOCKS)     \
        NAME(const __grid_constant__ AttentionBackward p) {                                                           \
        attention::wgmma::backward<D, DROPOUT>(p);                                                                    \
    }
ATTENTION_BACKWARD_WGMMA(attention_backward_wgmma_d32, 32, false)
ATTENTION_BACKWARD_WGMMA(attention_backward_wgmma_d32_dropout, 32, true)
ATTENTION_BACKWARD_WGMMA(attention_backward_wgmma_d64, 64, false)
ATTENTION_BACKWARD_WGMMA(attention_backward_wgmma_d64_dropout, 64, true)
