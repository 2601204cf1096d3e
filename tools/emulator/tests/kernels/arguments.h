/* What every test kernel takes. */
#ifndef SETRANK_TEST_ARGUMENTS_H
#define SETRANK_TEST_ARGUMENTS_H
#include <stdint.h>

typedef struct TestArguments {
    const uint32_t *input;
    uint32_t *output;
    int32_t a;
    int32_t b;
} TestArguments;

#endif
