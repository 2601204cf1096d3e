// Random numbers by their place: src/rng.rs draws the same.
#pragma once

#include "ptx.cuh"

// Philox4x32-10: makes the four words of a counter the four that are drawn for it.
__device__ __forceinline__ void philox(uint32_t (&words)[4], uint32_t key_low, uint32_t key_high) {
    uint32_t key[2] = {key_low, key_high};
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const uint64_t even = static_cast<uint64_t>(words[0]) * 0xD2511F53u;
        const uint64_t odd = static_cast<uint64_t>(words[2]) * 0xCD9E8D57u;
        words[0] = static_cast<uint32_t>(odd >> 32) ^ words[1] ^ key[0];
        words[1] = static_cast<uint32_t>(odd);
        words[2] = static_cast<uint32_t>(even >> 32) ^ words[3] ^ key[1];
        words[3] = static_cast<uint32_t>(even);
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
}
