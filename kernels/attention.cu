// Attention over sets: the kernels of the templates, which stand, described, in the headers.
#include "attention_forward.cuh"

#define ATTENTION_FORWARD(NAME, D, DROPOUT)                                                                           \
    extern "C" __global__ void __launch_bounds__(ATTENTION_FORWARD_THREADS)                                          \
        NAME(const __grid_constant__ AttentionForward p) {                                                            \
        attention::forward<D, DROPOUT>(p);                                                                            \
    }
ATTENTION_FORWARD(attention_forward_d32, 32, false)
ATTENTION_FORWARD(attention_forward_d32_dropout, 32, true)
ATTENTION_FORWARD(attention_forward_d64, 64, false)
ATTENTION_FORWARD(attention_forward_d64_dropout, 64, true)
