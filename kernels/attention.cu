// Attention over sets: the kernels of the templates, which stand, described, in the headers.
#include "attention_backward.cuh"
#include "attention_backward_points.cuh"
#include "attention_backward_resident.cuh"
#include "attention_forward.cuh"

#define ATTENTION_FORWARD(NAME, D, DROPOUT)                                                                          \
    extern "C" __global__ void __launch_bounds__(ATTENTION_FORWARD_THREADS, ATTENTION_FORWARD_BLOCKS_D##D)           \
        NAME(const __grid_constant__ AttentionForward p) {                                                           \
        attention::forward<D, DROPOUT>(p);                                                                           \
    }
ATTENTION_FORWARD(attention_forward_d32, 32, false)
ATTENTION_FORWARD(attention_forward_d32_dropout, 32, true)
ATTENTION_FORWARD(attention_forward_d64, 64, false)
ATTENTION_FORWARD(attention_forward_d64_dropout, 64, true)

#define ATTENTION_FORWARD_SPLIT(NAME, D, DROPOUT)                                                                    \
    extern "C" __global__ void __launch_bounds__(ATTENTION_FORWARD_THREADS, ATTENTION_FORWARD_BLOCKS_D##D)           \
        NAME(const __grid_constant__ AttentionForward p) {                                                           \
        attention::forward_split<D, DROPOUT>(p);                                                                     \
    }
ATTENTION_FORWARD_SPLIT(attention_forward_split_d32, 32, false)
ATTENTION_FORWARD_SPLIT(attention_forward_split_d32_dropout, 32, true)
ATTENTION_FORWARD_SPLIT(attention_forward_split_d64, 64, false)
ATTENTION_FORWARD_SPLIT(attention_forward_split_d64_dropout, 64, true)

#define ATTENTION_D_QUERIES(NAME, D, DROPOUT)                                                                        \
    extern "C" __global__ void __launch_bounds__(ATTENTION_D_QUERIES_THREADS)                                        \
        NAME(const __grid_constant__ AttentionBackward p) {                                                          \
        attention::d_queries<D, DROPOUT>(p);                                                                         \
    }
ATTENTION_D_QUERIES(attention_d_queries_d32, 32, false)
ATTENTION_D_QUERIES(attention_d_queries_d32_dropout, 32, true)
ATTENTION_D_QUERIES(attention_d_queries_d64, 64, false)
ATTENTION_D_QUERIES(attention_d_queries_d64_dropout, 64, true)

#define ATTENTION_D_KEYS(NAME, D, DROPOUT)                                                                           \
    extern "C" __global__ void __launch_bounds__(ATTENTION_D_KEYS_THREADS)                                           \
        NAME(const __grid_constant__ AttentionBackward p) {                                                          \
        attention::d_keys<D, DROPOUT>(p);                                                                            \
    }
ATTENTION_D_KEYS(attention_d_keys_d32, 32, false)
ATTENTION_D_KEYS(attention_d_keys_d32_dropout, 32, true)
ATTENTION_D_KEYS(attention_d_keys_d64, 64, false)
ATTENTION_D_KEYS(attention_d_keys_d64_dropout, 64, true)

#define ATTENTION_BACKWARD(NAME, D, DROPOUT)                                                                         \
    extern "C" __global__ void __launch_bounds__(ATTENTION_GROUPS_WARPS * 32)                                        \
        NAME(const __grid_constant__ AttentionBackward p) {                                                          \
        attention::backward<D, DROPOUT>(p);                                                                          \
    }
ATTENTION_BACKWARD(attention_backward_d32, 32, false)
ATTENTION_BACKWARD(attention_backward_d32_dropout, 32, true)
ATTENTION_BACKWARD(attention_backward_d64, 64, false)
ATTENTION_BACKWARD(attention_backward_d64_dropout, 64, true)

#define ATTENTION_BACKWARD_POINTS(NAME, ROLE, D, DROPOUT)                                                            \
    extern "C" __global__ void __launch_bounds__(ATTENTION_POINTS_WARPS * 32, ATTENTION_POINTS_BLOCKS)               \
        NAME(const __grid_constant__ AttentionBackward p) {                                                          \
        attention::backward_##ROLE<D, DROPOUT>(p);                                                                   \
    }
ATTENTION_BACKWARD_POINTS(attention_backward_induce_d32, induce, 32, false)
ATTENTION_BACKWARD_POINTS(attention_backward_induce_d32_dropout, induce, 32, true)
ATTENTION_BACKWARD_POINTS(attention_backward_induce_d64, induce, 64, false)
ATTENTION_BACKWARD_POINTS(attention_backward_induce_d64_dropout, induce, 64, true)
ATTENTION_BACKWARD_POINTS(attention_backward_attend_d32, attend, 32, false)
ATTENTION_BACKWARD_POINTS(attention_backward_attend_d32_dropout, attend, 32, true)
ATTENTION_BACKWARD_POINTS(attention_backward_attend_d64, attend, 64, false)
ATTENTION_BACKWARD_POINTS(attention_backward_attend_d64_dropout, attend, 64, true)

#define ATTENTION_COMBINE(NAME, PASS, ROLE, D)                                                                       \
    extern "C" __global__ void __launch_bounds__(ATTENTION_COMBINE_WARPS * 32)                                       \
        NAME(const __grid_constant__ Attention##PASS p) {                                                            \
        attention::combine_##ROLE<D>(p);                                                                             \
    }
ATTENTION_COMBINE(attention_combine_forward_d32, Forward, forward, 32)
ATTENTION_COMBINE(attention_combine_forward_d64, Forward, forward, 64)
ATTENTION_COMBINE(attention_combine_induce_d32, Backward, induce, 32)
ATTENTION_COMBINE(attention_combine_induce_d64, Backward, induce, 64)
ATTENTION_COMBINE(attention_combine_attend_d32, Backward, attend, 32)
ATTENTION_COMBINE(attention_combine_attend_d64, Backward, attend, 64)
