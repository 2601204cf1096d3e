// The loss of a set and its gradients by the scores, by a block that has the set in shared memory: what the kernels of `loss` and
// `score_loss` share.
#pragma once

#include "loss.h"

#include "ptx.cuh"

namespace loss {

constexpr int WARPS = SET_LOSSES_THREADS / 32;
static_assert(SET_LOSSES_SLOTS >= WARPS);

constexpr float INFINITE = __builtin_huge_valf();
constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;
// As src/ops/loss/ has them.
constexpr float MU = 10.0f, ALPHA = 10.0f;

// ---------------------------------------------------------------- arithmetic

__device__ __forceinline__ float exponential(float x) { return ptx::exp2(x * LOG2E); }

// ln((1 + t)/(1 − t)) for |t| ≤ 1/3, to all digits however small t is.
__device__ __forceinline__ float log_of_ratio(float t) {
    const float square = t * t;
    float sum = 1.0f / 15.0f;
    sum = sum * square + 1.0f / 13.0f;
    sum = sum * square + 1.0f / 11.0f;
    sum = sum * square + 1.0f / 9.0f;
    sum = sum * square + 1.0f / 7.0f;
    sum = sum * square + 1.0f / 5.0f;
    sum = sum * square + 1.0f / 3.0f;
    return 2.0f * (t + t * square * sum);
}

// log2 x for a normal x > 0: ptx::log2 has few digits near 1.
__device__ __forceinline__ float binary_log(float x) {
    const uint32_t bits = __float_as_uint(x);
    // x = 2^shift·m, m from 2/3 to 4/3.
    const int shift = static_cast<int>(bits - 0x3f2aaaab) >> 23;
    const float m = __uint_as_float(bits - (static_cast<uint32_t>(shift) << 23));
    const float log = static_cast<float>(shift) + LOG2E * log_of_ratio((m - 1.0f) / (m + 1.0f));
    return x < INFINITE ? log : x;
}

// σ(x), and e^{−|x|}, for x = binary/log2 e.
struct Sigmoid {
    float small, value, slope;
    __device__ __forceinline__ explicit Sigmoid(float binary) : small(ptx::exp2(-fabsf(binary))) {
        const float share = 1.0f / (1.0f + small);
        value = binary >= 0.0f ? share : small * share;
        slope = small * share * share;
    }
};

// ---------------------------------------------------------------- a set

// A value for each document, in shared memory.
struct Values {
    ptx::Shared begin;
    __device__ __forceinline__ float at(int i) const { return ptx::load_shared<float>(begin + i * 4); }
    __device__ __forceinline__ void set(int i, float value) const { ptx::store_shared(begin + i * 4, value); }
};

struct Set {
    int rows, longest;
    // −∞ and −1 where a document is not judged.
    Values scores, labels;
    // The largest, and how many are judged.
    float largest_label, judged;

    // Values of documents behind scores and labels.
    __device__ __forceinline__ Values values(int number) const {
        return {labels.begin + static_cast<uint32_t>(number * longest) * 4};
    }

    // What `join` makes of all threads' values; earlier stores to shared memory are seen afterwards.
    template <class Join> __device__ __forceinline__ static float joined(float value, const Join &join) {
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        const Values slots{ptx::shared_base()};
#pragma unroll
        for (int mask = 16; mask > 0; mask /= 2) value = join(value, ptx::shuffle_xor(value, mask));
        // Others may be reading what was passed on before.
        ptx::barrier();
        if (lane == 0) slots.set(warp, value);
        ptx::barrier();
        value = slots.at(0);
        for (int other = 1; other < WARPS; ++other) value = join(value, slots.at(other));
        return value;
    }

    // Over the documents, a thread every 256th.
    template <class Of> __device__ __forceinline__ void each(const Of &of) const {
#pragma unroll 1
        for (int i = threadIdx.x; i < rows; i += SET_LOSSES_THREADS) of(i);
    }
    template <class Of> __device__ __forceinline__ float sum(const Of &of) const {
        float sum = 0.0f;
        each([&](int i) { sum += of(i); });
        return joined(sum, [](float a, float b) { return a + b; });
    }
    template <class Of> __device__ __forceinline__ float most(const Of &of) const {
        float most = -INFINITE;
        each([&](int i) { most = fmaxf(most, of(i)); });
        return joined(most, [](float a, float b) { return fmaxf(a, b); });
    }
};

// Where the scores of the block's set stand.
__device__ __forceinline__ Values scores() { return {ptx::shared_base() + SET_LOSSES_SLOTS * 4}; }

// Puts a set of `rows` documents into shared memory; `score_of(i)` gives a score to the thread whose document it is.
template <class ScoreOf>
__device__ __forceinline__ Set read(int rows, int longest, const ScoreOf &score_of, const float *labels) {
    Set set;
    set.rows = rows;
    set.longest = longest;
    set.scores = scores();
    set.labels.begin = set.scores.begin + static_cast<uint32_t>(longest) * 4;
    set.each([&](int i) {
        const float score = score_of(i), label = ptx::load_constant(labels + i);
        const bool judged = label >= 0.0f;
        set.scores.set(i, judged ? score : -INFINITE);
        set.labels.set(i, judged ? label : -1.0f);
    });
    set.largest_label = set.most([&](int i) { return set.labels.at(i); });
    set.judged = set.sum([&](int i) { return set.labels.at(i) >= 0.0f ? 1.0f : 0.0f; });
    return set;
}

// The attentions of scores and of labels.
struct Attentions {
    const Set &set;
    float largest, total, log_total, total_of_labels;

    __device__ __forceinline__ explicit Attentions(const Set &of) : set(of) {
        largest = set.most([&](int i) { return set.scores.at(i); });
        total = set.sum([&](int i) { return exponential(set.scores.at(i) - largest); });
        log_total = LN2 * binary_log(total);
        total_of_labels = set.sum([&](int i) { return weight(i); });
    }
    __device__ __forceinline__ float weight(int i) const {
        const float label = set.labels.at(i);
        return label > 0.0f ? exponential(label - set.largest_label) : 0.0f;
    }
    __device__ __forceinline__ float given(int i) const {
        return exponential(set.scores.at(i) - largest) / total;
    }
    __device__ __forceinline__ float target(int i) const { return weight(i) / total_of_labels; }
    // −y log a
    __device__ __forceinline__ float entropy(int i, float y) const {
        return y > 0.0f ? y * (log_total - (set.scores.at(i) - largest)) : 0.0f;
    }
};

// Each gives the loss, the same in all threads, and calls `put(i, gradient)` for this thread's documents.

template <class Put> __device__ __forceinline__ float softmax_cross_entropy(const Set &set, const Put &put) {
    const Attentions attentions(set);
    return set.sum([&](int i) {
        const float y = attentions.target(i);
        put(i, attentions.given(i) - y);
        return attentions.entropy(i, y);
    });
}

// 1 − a of the document with the most attention would lose its digits: it is the attention of the others, whose shares of
// that are a softmax of their own. All others have a ≤ ½.
template <class Put> __device__ __forceinline__ float attention_rank(const Set &set, const Put &put) {
    const Attentions attentions(set);
    const float place = set.most([&](int i) {
        return set.scores.at(i) == attentions.largest ? static_cast<float>(set.rows - i) : 0.0f;
    });
    // With scores that are no numbers there may be none.
    const int top = min(set.rows - static_cast<int>(place), set.rows - 1);
    const auto of_others = [&](int i) { return i != top ? set.scores.at(i) : -INFINITE; };
    const float next = set.most(of_others);
    const float total = set.sum([&](int i) { return exponential(of_others(i) - next); });
    const float log_rest = LN2 * binary_log(total) + (next - attentions.largest) - attentions.log_total;
    float loss = 0.0f;
    // Σ (1 − y)·a/(1 − a) over the others.
    const float odds = set.sum([&](int i) {
        const float a = attentions.given(i), y = attentions.target(i), rest = 1.0f - y;
        loss += attentions.entropy(i, y);
        if (i == top) {
            loss -= rest * log_rest;
            return 0.0f;
        }
        // −log(1 − a)
        loss += rest * log_of_ratio(a / (2.0f - a));
        return rest * (a / (1.0f - a));
    });
    const float of_top = (1.0f - attentions.target(top)) * attentions.given(top);
    set.each([&](int i) {
        const float a = attentions.given(i), y = attentions.target(i);
        const float own = i == top ? of_top : (1.0f - y) * (a / (1.0f - a));
        const float share = exponential(of_others(i) - next) / total;
        put(i, a - y + own - a * odds - of_top * share);
    });
    return Set::joined(loss, [](float a, float b) { return a + b; });
}

// Sets the normalised gains: those of labels, over what the best order would give.
__device__ __forceinline__ void set_gains(const Set &set, const Values &gains) {
    const auto gain = [&](int i) {
        const float label = set.labels.at(i);
        return label > 0.0f ? ptx::exp2(label - set.largest_label) - ptx::exp2(-set.largest_label) : 0.0f;
    };
    const float ideal = set.sum([&](int i) {
        const float label = set.labels.at(i);
        if (!(label > 0.0f)) return 0.0f;
        int rank = 1;
        for (int j = 0; j < set.rows; ++j) {
            const float other = set.labels.at(j);
            rank += other > label || (other == label && j < i);
        }
        return gain(i) / binary_log(static_cast<float>(1 + rank));
    });
    set.each([&](int i) { gains.set(i, gain(i) / ideal); });
}

template <class Put> __device__ __forceinline__ float lambda_loss(const Set &set, const Put &put) {
    const Values gains = set.values(1), inverse = set.values(2), ranks = set.values(3), deltas = set.values(4);
    set_gains(set, gains);
    set.each([&](int i) {
        const float score = set.scores.at(i);
        int rank = 1;
        for (int j = 0; j < set.rows; ++j) {
            const float other = set.scores.at(j);
            rank += other > score || (other == score && j < i);
        }
        ranks.set(i, static_cast<float>(rank));
        inverse.set(i, 1.0f / binary_log(static_cast<float>(1 + rank)));
        // 1/log2(1 + d) − 1/log2(2 + d) for d = i, without the difference.
        const float d = static_cast<float>(i), gap = LOG2E * log_of_ratio(1.0f / (2.0f * d + 3.0f));
        deltas.set(i, i > 0 ? gap / (binary_log(1.0f + d) * binary_log(2.0f + d)) : 0.0f);
    });
    ptx::barrier();
    const float loss = set.sum([&](int i) {
        const float score = set.scores.at(i), label = set.labels.at(i), gain = gains.at(i);
        const float of_rank = inverse.at(i), rank = ranks.at(i);
        float loss = 0.0f, gradient = 0.0f;
        for (int j = 0; j < set.rows; ++j) {
            const float other = set.labels.at(j);
            if (label < 0.0f || other < 0.0f || other == label) continue;
            const float delta = deltas.at(static_cast<int>(fabsf(rank - ranks.at(j))));
            const float weight = (MU * delta + fabsf(of_rank - inverse.at(j))) * fabsf(gain - gains.at(j));
            const bool better = label > other;
            const float apart = set.scores.at(j) - score, margin = better ? apart : -apart;
            const Sigmoid sigmoid(margin * LOG2E);
            gradient += better ? -weight * sigmoid.value : weight * sigmoid.value;
            // Each pair once.
            if (better) loss += weight * (fmaxf(margin, 0.0f) + log_of_ratio(sigmoid.small / (2.0f + sigmoid.small)));
        }
        put(i, gradient / LN2);
        return loss;
    });
    return loss / LN2;
}

template <class Put> __device__ __forceinline__ float approx_ndcg(const Set &set, const Put &put) {
    const Values gains = set.values(1), slopes = set.values(2);
    set_gains(set, gains);
    const float ndcg = set.sum([&](int i) {
        const float score = set.scores.at(i), gain = gains.at(i);
        // σ(x) is 1 − σ(−x): whole ones are counted apart, so that what is added to them keeps its digits. Documents that
        // are not judged, at −∞, add nothing.
        int whole = 0;
        float rest = 0.0f;
        for (int j = 0; j < set.rows; ++j) {
            const float apart = set.scores.at(j) - score, lesser = Sigmoid(-fabsf(apart) * (ALPHA * LOG2E)).value;
            whole += apart >= 0.0f;
            rest += apart >= 0.0f ? -lesser : lesser;
        }
        const bool judged = set.labels.at(i) >= 0.0f;
        // The document itself has added a half.
        const float rank = (static_cast<float>(whole) + 0.5f) + rest, log = binary_log(1.0f + rank);
        slopes.set(i, judged ? gain / ((1.0f + rank) * LN2 * log * log) : 0.0f);
        return judged ? gain / log : 0.0f;
    });
    set.each([&](int i) {
        const float score = set.scores.at(i), slope = slopes.at(i);
        float gradient = 0.0f;
        for (int j = 0; j < set.rows; ++j) {
            const Sigmoid sigmoid((set.scores.at(j) - score) * (ALPHA * LOG2E));
            gradient -= (slope - slopes.at(j)) * (ALPHA * sigmoid.slope);
        }
        put(i, set.labels.at(i) >= 0.0f ? gradient : 0.0f);
    });
    return 1.0f - ndcg;
}

// The loss of the block's set of `rows` documents, as `of(set, put)` computes it, the same in all threads; `put(i, gradient)`
// takes the gradients of a thread's documents, the last one given counts.
template <class ScoreOf, class Of, class Put>
__device__ __forceinline__ float of_set(int rows, int longest, const ScoreOf &score_of, const float *labels,
                                        const Of &of, const Put &put) {
    const Set set = read(rows, longest, score_of, labels);
    float loss = 0.0f;
    if (set.largest_label > 0.0f && set.judged > 1.0f) {
        loss = of(set, put);
        // So that nobody takes a step by it.
        if (!(fabsf(loss) < INFINITE)) set.each([&](int i) { put(i, __uint_as_float(0x7fffffff)); });
    } else {
        set.each([&](int i) { put(i, 0.0f); });
    }
    return loss;
}

} // namespace loss
