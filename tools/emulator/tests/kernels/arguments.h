/* What test kernels take. */
#ifndef SETRANK_TEST_ARGUMENTS_H
#define SETRANK_TEST_ARGUMENTS_H
#include <stdint.h>

typedef struct TestArguments {
    const uint32_t *input;
    uint32_t *output;
    int32_t a;
    int32_t b;
} TestArguments;

/** The same behind a tensor map of the input. */
typedef struct TensorArguments {
    uint64_t map[16];
    const uint32_t *input;
    uint32_t *output;
    int32_t a, b;
    int32_t unused[10];
} __attribute__((aligned(64))) TensorArguments;

#endif
