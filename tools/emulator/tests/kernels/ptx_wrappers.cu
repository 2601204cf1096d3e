// Every function of kernels/ptx.cuh that compute_80 has, once at least, so that its PTX is run and compared.
// Thread t of the one block of 64 writes its results as words `output[t * RESULTS + n]`.
#include "../../../../kernels/ptx.cuh"

struct Arguments {
    // [64 * 8] words, of which a thread has eight.
    const uint32_t *input;
    // [64 * RESULTS] words.
    uint32_t *output;
    // [2] words: counters.
    uint32_t *counters;
};

namespace {

constexpr int RESULTS = 48;

struct Writer {
    uint32_t *to;
    int count = 0;

    __device__ __forceinline__ void put(uint32_t value) { ptx::store_global(to + count++, value); }
    __device__ __forceinline__ void put(float value) { put(__float_as_uint(value)); }
};

} // namespace

extern "C" __global__ void __launch_bounds__(64) ptx_wrappers(const __grid_constant__ Arguments p) {
    const uint32_t thread = ptx::thread(), lane = thread % 32;
    const ptx::Shared base = ptx::shared_base();
    Writer writer{p.output + thread * RESULTS};
    const uint32_t *own = p.input + thread * 8;

    // Global memory, each width, and read-only loads.
    const uint4 four = ptx::load_constant(reinterpret_cast<const uint4 *>(own));
    const uint2 two = ptx::load_constant(reinterpret_cast<const uint2 *>(own + 4));
    writer.put(four.x + two.y);
    writer.put(ptx::load_constant(own + 6));
    writer.put(static_cast<uint32_t>(ptx::load_constant(reinterpret_cast<const uint16_t *>(own + 7) + 1)));
    const uint4 again = ptx::load_global(reinterpret_cast<const uint4 *>(own + 4));
    const uint2 less = ptx::load_global(reinterpret_cast<const uint2 *>(own + 2));
    writer.put(again.w + less.x);
    writer.put(ptx::load_global(own + 1));
    writer.put(static_cast<uint32_t>(ptx::load_global(reinterpret_cast<const uint16_t *>(own) + 1)));
    // 6: stores of each width, into the results themselves.
    ptx::store_global(reinterpret_cast<uint2 *>(writer.to + 6), make_uint2(four.y, four.z));
    ptx::store_global(reinterpret_cast<uint4 *>(writer.to + 8), make_uint4(four.w, two.x, two.y, thread));
    ptx::store_global(reinterpret_cast<uint16_t *>(writer.to + 12), static_cast<uint16_t>(four.x));
    ptx::store_global(reinterpret_cast<uint16_t *>(writer.to + 12) + 1, static_cast<uint16_t>(four.y));
    writer.count = 13;

    // 13: shared memory, each width; a thread has 32 bytes.
    const ptx::Shared cell = base + thread * 32;
    ptx::store_shared(cell, four);
    ptx::store_shared(cell + 16, two);
    ptx::store_shared(cell + 24, four.x ^ two.x);
    ptx::store_shared(cell + 28, static_cast<uint16_t>(two.y));
    ptx::store_shared(cell + 30, static_cast<uint16_t>(thread));
    ptx::barrier();
    const ptx::Shared other = base + (63 - thread) * 32;
    writer.put(ptx::load_shared<uint4>(other).z);
    writer.put(ptx::load_shared<uint2>(other + 16).y);
    writer.put(ptx::load_shared<uint32_t>(other + 24));
    writer.put(static_cast<uint32_t>(ptx::load_shared<uint16_t>(other + 30)));
    ptx::barrier();

    // 17: atomic additions.
    if (thread == 0) ptx::store_shared(base, 100u);
    ptx::barrier();
    writer.put(ptx::atomic_add_shared(base, 1u) >= 100u ? 1u : 0u);
    writer.put(ptx::atomic_add_global(p.counters, thread) < 2048u ? 1u : 0u);
    ptx::barrier();
    writer.put(ptx::load_shared<uint32_t>(base));
    ptx::barrier();

    // 20: copies in the background: two groups, the second one zeros.
    const ptx::Shared tile = base + thread * 16, zeros = base + 1024 + thread * 16;
    ptx::cp_async_16(tile, own, 16);
    ptx::cp_async_commit();
    ptx::cp_async_16(zeros, own, 0);
    ptx::cp_async_commit();
    ptx::cp_async_wait<1>();
    writer.put(ptx::load_shared<uint32_t>(tile + 8));
    ptx::cp_async_wait<0>();
    writer.put(ptx::load_shared<uint32_t>(zeros + 4));
    ptx::barrier();

    // 22: matrices: a warp's 512 bytes of the tile are four of 8 × 8.
    uint32_t a[4], transposed[4];
    ptx::ldmatrix_x4(a, base + thread * 16);
    ptx::ldmatrix_x4_transposed(transposed, base + thread * 16);
    for (int n = 0; n < 4; ++n) {
        writer.put(a[n]);
        writer.put(transposed[n]);
    }

    // 30: a product: numbers 1 to 4 and 0.5 to 2 as bf16.
    const float low = static_cast<float>(1 + lane % 4), high = static_cast<float>(1 + lane / 8);
    const uint32_t left = ptx::pack_bf16(low, high), right = ptx::pack_bf16(high * 0.5f, low * 0.5f);
    const uint32_t rows[4] = {left, right, right, left};
    float c[4] = {1.f, 2.f, 3.f, 4.f};
    ptx::mma_m16n8k16_bf16(c, rows, left, right);
    for (float element : c) writer.put(element);

    // 34: warp 1 hands a value to warp 0 at barrier 1, and both meet at barrier 2.
    if (thread >= 32) {
        ptx::store_shared(base + 2048 + lane * 4, lane + 7);
        ptx::barrier_arrive(1, 64);
        writer.put(0u);
    } else {
        ptx::barrier_sync(1, 64);
        writer.put(ptx::load_shared<uint32_t>(base + 2048 + lane * 4));
    }
    ptx::barrier_sync(2, 64);

    // 35: inside a warp.
    ptx::sync_warp();
    writer.put(ptx::shuffle_xor(thread, 3u));
    writer.put(ptx::shuffle_xor(static_cast<float>(thread), 16u));
    writer.put(ptx::shuffle(thread, 31 - lane));
    writer.put(ptx::shuffle(static_cast<float>(thread), 5u));
    writer.put(ptx::shuffle_up(thread, 2u));
    writer.put(ptx::shuffle_down(thread, 3u));
    writer.put(ptx::ballot(lane % 3 == 0));

    // 42: arithmetic.
    const float x = __uint_as_float(four.w);
    writer.put(ptx::exp2(x));
    writer.put(ptx::log2(x));
    writer.put(ptx::pack_bf16(x, -x));
}
