// Sampling: a block draws a token from a row of logits. Every thread keeps its values in shared memory; the limit of
// what is drawn from is found by halving the range of values and counting, which needs about ten rounds of one
// barrier each. Bound by latency. Arithmetic that decides is that of `exec/philox.rs`, never fused.

#define SAMPLE_THREADS 512
#define SAMPLE_WARPS (SAMPLE_THREADS / 32)
#define BEST_THREADS 256
// Tokens that threads share out evenly before they draw noise for them.
#define SAMPLE_LIST 1024

struct SampleRow {
    u32 slot, step, seed_low, seed_high;
    float inverse, top_p, penalty;
    u32 top_k, below, also, pad0, pad1;
};

struct SampleArgs {
    u64 logits, rows, tokens, history, table, next, spill;
    u32 stride, n, columns, column, words, table_rows, table_stride, table_bf16, dim, next_stride, first, every, less, pad;
};

#ifdef VOCE_EMULATED
DEV float plain_mul(float x, float y) { return x * y; }
DEV float plain_add(float x, float y) { return x + y; }
DEV u32 warp_total(u32 x) {
    for (int m = 16; m > 0; m >>= 1) x += __shfl_xor_sync(FULL, x, m);
    return x;
}
DEV u32 warp_most(u32 x) {
    for (int m = 16; m > 0; m >>= 1) x = max(x, __shfl_xor_sync(FULL, x, m));
    return x;
}
#else
DEV float plain_mul(float x, float y) { return __fmul_rn(x, y); }
DEV float plain_add(float x, float y) { return __fadd_rn(x, y); }
DEV u32 warp_total(u32 x) { return __reduce_add_sync(FULL, x); }
DEV u32 warp_most(u32 x) { return __reduce_max_sync(FULL, x); }
#endif
DEV u64 warp_total(u64 x) {
    for (int m = 16; m > 0; m >>= 1) x += __shfl_xor_sync(FULL, x, m);
    return x;
}

DEV u32 philox(u32 key0, u32 key1, u32 c0, u32 c1) {
    u32 c2 = 0, c3 = 0;
    for (int round = 0; round < 10; round++) {
        if (round > 0) {
            key0 += 0x9e3779b9u;
            key1 += 0xbb67ae85u;
        }
        const u64 x = (u64)0xd2511f53u * c0, y = (u64)0xcd9e8d57u * c2;
        c0 = (u32)(y >> 32) ^ c1 ^ key0;
        c1 = (u32)y;
        c2 = (u32)(x >> 32) ^ c3 ^ key1;
        c3 = (u32)x;
    }
    return c0;
}

DEV float plain_ln(float x) {
    const u32 bits = __float_as_uint(x);
    int exponent = (int)(bits >> 23) - 127;
    float m = __uint_as_float((bits & 0x007fffffu) | 0x3f800000u);
    if (m > 1.4142135f) {
        m = plain_mul(m, 0.5f);
        exponent++;
    }
    const float s = quotient(plain_add(m, -1.0f), plain_add(m, 1.0f));
    const float z = plain_mul(s, s);
    float p = 0.11111111f;
    p = plain_add(plain_mul(p, z), 0.14285714f);
    p = plain_add(plain_mul(p, z), 0.2f);
    p = plain_add(plain_mul(p, z), 0.33333334f);
    p = plain_add(plain_mul(p, z), 1.0f);
    return plain_add(plain_mul((float)exponent, 0.69314718f), plain_mul(plain_add(s, s), p));
}

DEV u32 fixed_exp(float d) {
    if (!(d > -21.0f)) return 0;
    const int n = (int)plain_add(0.5f, -plain_mul(d, 1.44269504f));
    const float r = plain_add(d, plain_mul((float)n, 0.69314718f));
    float p = 0.0013888889f;
    p = plain_add(plain_mul(p, r), 0.008333334f);
    p = plain_add(plain_mul(p, r), 0.041666668f);
    p = plain_add(plain_mul(p, r), 0.16666667f);
    p = plain_add(plain_mul(p, r), 0.5f);
    p = plain_add(plain_mul(p, r), 1.0f);
    p = plain_add(plain_mul(p, r), 1.0f);
    return (u32)plain_mul(p, __uint_as_float((u32)(127 + 30 - n) << 23));
}

DEV float gumbel(const SampleRow& r, u32 index) {
    const u32 word = philox(r.seed_low, r.seed_high, index, r.step);
    const float u = plain_mul(plain_add((float)(word >> 9), 0.5f), 1.0f / 8388608.0f);
    return -plain_ln(-plain_ln(u));
}

// Numbers in the order of floats; 0 is below all of them.
DEV u32 key_of(float x) {
    const u32 bits = __float_as_uint(x);
    return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}
DEV float value_of(u32 key) { return __uint_as_float(key ^ (key >> 31 ? 0x80000000u : 0xffffffffu)); }

// Sums over the block by one barrier each: `turn` says which half of the scratch is free.
template <class W> DEV W total_of(W x, W (*scratch)[SAMPLE_WARPS], u32& turn) {
    x = warp_total(x);
    if (threadIdx.x % 32 == 0) scratch[turn][threadIdx.x / 32] = x;
    __syncthreads();
    W sum = 0;
#pragma unroll
    for (int w = 0; w < SAMPLE_WARPS; w++) sum += scratch[turn][w];
    turn ^= 1;
    return sum;
}

// The largest limit such that the keys from it on reach the target: by their number, or with weights (2^-16 of the
// unit counts one) by their weight. Those from `low` on reach it, those from `high` on do not.
template <bool WEIGHTED, class W>
DEV u32 limit_of(const u32* keys, const u32* weights, u32 n, u32 low, u32 high, W target, W (*scratch)[SAMPLE_WARPS],
                 u32& turn) {
    W at_low = ~(W)0, at_high = 0;
    for (u32 round = 0; high - low > 1; round++) {
        u32 middle = low + (high - low) / 2;
        // Halves of the values' range need fewer rounds than halves of the keys', but may not end.
        if (round < 24) {
            const u32 key = key_of(0.5f * (value_of(low) + value_of(high)));
            if (key > low && key < high) middle = key;
        }
        W sum = 0;
        for (u32 i = threadIdx.x; i < n; i += SAMPLE_THREADS)
            if (keys[i] >= middle) sum += WEIGHTED ? ((W)weights[i] << 16) + 1 : 1;
        sum = total_of(sum, scratch, turn);
        if ((WEIGHTED ? sum >> 16 : sum) >= target) {
            low = middle;
            at_low = sum;
        } else {
            high = middle;
            at_high = sum;
        }
        if (!WEIGHTED && sum == target) break;
        // One key is left between them.
        if ((u32)(at_low & 0xffff) - (u32)(at_high & 0xffff) == 1 && at_low != ~(W)0) break;
    }
    return low;
}

DEV SampleRow sample_row(const SampleArgs& a) {
    const u64 settings = a.rows + sizeof(SampleRow) * blockIdx.x;
    const uint4 x = table_load(settings), y = table_load(settings + 16), z = table_load(settings + 32);
    return {x.x, x.y, x.z, x.w, __uint_as_float(y.x), __uint_as_float(y.y), __uint_as_float(y.z), y.w, z.x, z.y, 0, 0};
}

// The token to its place, to what was drawn before, and its row of the table to where it is read next.
DEV void take_token(const SampleArgs& a, u32 slot, u32 token) {
    if (threadIdx.x == 0) {
        at<u32>(a.tokens)[(u64)slot * a.columns + a.column] = token;
        if (a.history) at<u32>(a.history)[(u64)slot * a.words + token / 32] |= 1u << (token % 32);
    }
    if (!a.next) return;
    float* to = at<float>(a.next) + ((u64)a.first + (u64)blockIdx.x * a.every) * a.next_stride;
    const u64 row = (u64)token * a.table_stride;
#pragma unroll 4
    for (u32 i = threadIdx.x; i < a.dim; i += blockDim.x) {
        float v = 0.0f;
        if (token < a.table_rows)
            v = a.table_bf16 ? widen(at<const bf16>(a.table)[row + i]) : at<const float>(a.table)[row + i];
        to[i] = a.less ? to[i] - v : v;
    }
}

// The largest of a row without a penalty, as `sample` finds it where nothing is drawn: read once, kept nowhere.
KERNEL_AHEAD(sample_best, SampleArgs, BEST_THREADS, 4) {
    __shared__ Best winners[33];
    const SampleRow r = sample_row(a);
    dependents_may_start();
    wait_for_others();
    const float* x = at<const float>(a.logits) + (u64)blockIdx.x * a.stride;
    Best best = {-INF, NO_INDEX};
#pragma unroll 8
    for (u32 i = threadIdx.x; i < a.n; i += BEST_THREADS) {
        const float v = i < r.below || i == r.also ? x[i] : -INF;
        // Neither NaN nor minus infinity is taken.
        if (v > best.value && fminf(v, 3e38f) > best.value) best = {fminf(v, 3e38f), i};
    }
    best = block_best(best, winners);
    take_token(a, r.slot, best.index == NO_INDEX ? 0 : best.index);
}

KERNEL_AHEAD(sample, SampleArgs, SAMPLE_THREADS, 1) {
    // [n], then as many weights where a row has a top_p; those of long rows are in memory.
    SHARED(u32, near_keys);
    u32* keys = a.spill ? at<u32>(a.spill) + (u64)blockIdx.x * 2 * a.n : near_keys;
    u32* weights = keys + a.n;
    __shared__ u32 counts[2][SAMPLE_WARPS], tops[SAMPLE_WARPS], floors[SAMPLE_WARPS];
    __shared__ u64 sums[2][SAMPLE_WARPS];
    __shared__ Best winners[33];
    __shared__ u32 list[SAMPLE_LIST], listed;
    const SampleRow r = sample_row(a);
    dependents_may_start();
    wait_for_others();
    const float* x = at<const float>(a.logits) + (u64)blockIdx.x * a.stride;
    const u32* seen = a.history && r.penalty != 1.0f ? at<const u32>(a.history) + (u64)r.slot * a.words : 0;
    u32 own = 0, allowed = 0, turn = 0;
    if (threadIdx.x == 0) listed = 0;
#pragma unroll 4
    for (u32 i = threadIdx.x; i < a.n; i += SAMPLE_THREADS) {
        float v = x[i];
        if (seen && (seen[i / 32] >> (i % 32) & 1)) v = v < 0.0f ? plain_mul(v, r.penalty) : v / r.penalty;
        if (r.inverse > 0.0f) v = plain_mul(v, r.inverse);
        // Neither NaN nor minus infinity is drawn.
        const u32 key = (i < r.below || i == r.also) && v > -INF ? key_of(fminf(v, 3e38f)) : 0;
        keys[i] = key;
        own = max(own, key);
        allowed += key > 0;
    }
    const u32 most = warp_most(own), least = ~warp_most(~own);
    if (threadIdx.x % 32 == 0) {
        tops[threadIdx.x / 32] = most;
        floors[threadIdx.x / 32] = least;
    }
    allowed = total_of(allowed, counts, turn);
    u32 top = 0, low = ~0u;
    for (int w = 0; w < SAMPLE_WARPS; w++) {
        top = max(top, tops[w]);
        low = min(low, floors[w]);
    }
    u32 limit = 1;
    if (r.inverse > 0.0f && top > 0) {
        // Every thread has a key from the lowest of the threads' highest on.
        if (r.top_k > 0 && r.top_k < allowed) {
            low = r.top_k <= SAMPLE_THREADS ? max(low, 1u) : 1u;
            limit = limit_of<false, u32>(keys, weights, a.n, low, top + 1, r.top_k, counts, turn);
        }
        if (r.top_p < 1.0f) {
            u64 sum = 0;
            for (u32 i = threadIdx.x; i < a.n; i += SAMPLE_THREADS) {
                weights[i] = keys[i] >= limit ? fixed_exp(plain_add(value_of(keys[i]), -value_of(top))) : 0;
                sum += weights[i];
            }
            sum = total_of(sum, sums, turn);
            const u64 target = max((u64)((double)r.top_p * (double)sum), (u64)1);
            limit = limit_of<true, u64>(keys, weights, a.n, limit, top + 1, target, sums, turn);
        }
    }
    Best best = {-INF, NO_INDEX};
    // Noise is many instructions, and few tokens are left that need it.
    const bool few = r.inverse > 0.0f && r.top_k > 0 && r.top_k <= SAMPLE_LIST / 2;
    if (few) {
        for (u32 i = threadIdx.x; i < a.n; i += SAMPLE_THREADS) {
            if (keys[i] < limit) continue;
            const u32 place = atomicAdd(&listed, 1u);
            if (place < SAMPLE_LIST) list[place] = i;
        }
        __syncthreads();
    }
    const bool whole = few && listed <= SAMPLE_LIST;
    for (u32 j = threadIdx.x; j < (whole ? listed : a.n); j += SAMPLE_THREADS) {
        const u32 i = whole ? list[j] : j;
        if (keys[i] < limit) continue;
        const Best now = {plain_add(value_of(keys[i]), r.inverse > 0.0f ? gumbel(r, i) : 0.0f), i};
        if (before(now, best)) best = now;
    }
    best = block_best(best, winners);
    take_token(a, r.slot, best.index == NO_INDEX ? 0 : best.index);
}
