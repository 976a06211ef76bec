// Selection over rows of logits: the best, what it is worth, the best few. A block per row, bound by reading it.
// NaN never wins and never spreads; of equal values the one with the lowest index wins.

#define NO_INDEX 0xffffffffu

struct Best { float value; u32 index; };

// Whether one comes before the other; false where either is NaN.
DEV bool before(const Best& x, const Best& y) {
    return x.value > y.value || (x.value == y.value && x.index < y.index);
}
DEV Best warp_best(Best x) {
    for (int m = 16; m > 0; m >>= 1) {
        const Best other = {__shfl_xor_sync(FULL, x.value, m), __shfl_xor_sync(FULL, x.index, m)};
        if (before(other, x)) x = other;
    }
    return x;
}
// The best of all threads' for every thread; `scratch` has room for 33.
DEV Best block_best(Best x, Best* scratch) {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const Best none = {-INF, NO_INDEX};
    x = warp_best(x);
    __syncthreads();
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    if (warp == 0) {
        x = warp_best(lane < warps ? scratch[lane] : none);
        if (lane == 0) scratch[32] = x;
    }
    __syncthreads();
    return scratch[32];
}

// This thread's best of a row whose values are dealt out to threads in turn; with a limit, of those after `last`.
template <bool LIMIT> DEV Best own_best(const float* x, u32 n, const Best& last) {
    Best best = {-INF, NO_INDEX};
#pragma unroll 4
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
        const Best now = {x[i], i};
        if (before(now, best) && (!LIMIT || before(last, now))) best = now;
    }
    return best;
}

// `more` are `m` further columns of the same rows, and `tail` is where their result goes. Rows that are NO_ROW in the list
// `rows`, if there is one, are skipped.
struct SelectArgs {
    u64 x, more, stats, top, tail, rows;
    u32 stride, n, k, m;
    float alpha;
    u32 pad;
};

// `RowStats` of the CPU kernels, in their order.
struct RowStats { u32 index; float max, sum, dot, power; };

// Sums over a row relative to its best; NaN and what is far below count as e^-87: nothing.
DEV void row_stats(const SelectArgs& a, const float* x, const Best& best, float* scratch) {
    RowStats s = {best.index == NO_INDEX ? 0 : best.index, best.value, 1.0f, 0.0f, 1.0f};
    if (fabsf(best.value) < INF) {
        float sum = 0.0f, dot = 0.0f, power = 0.0f;
        for (u32 i = threadIdx.x; i < a.n; i += blockDim.x) {
            const float d = fmaxf(x[i] - best.value, -87.0f), e = expf(d);
            sum += e;
            dot += e * d;
            if (a.alpha > 0.0f) power += expf(a.alpha * d);
        }
        s.sum = block_sum(sum, scratch);
        s.dot = block_sum(dot, scratch);
        s.power = block_sum(power, scratch);
    }
    if (threadIdx.x == 0) at<RowStats>(a.stats)[blockIdx.x] = s;
}

KERNEL(argmax, SelectArgs, 256) {
    __shared__ Best winners[33];
    const float* x = at<const float>(a.x) + (u64)blockIdx.x * a.stride;
    const Best best = block_best(own_best<false>(x, a.n, {}), winners);
    if (threadIdx.x == 0) at<u32>(a.top)[blockIdx.x] = best.index == NO_INDEX ? 0 : best.index;
}

// The best of a row with its sums, and the best of the further columns.
KERNEL(choose, SelectArgs, 256) {
    __shared__ Best winners[33];
    __shared__ float scratch[33];
    const float* x = at<const float>(a.x) + (u64)blockIdx.x * a.stride;
    row_stats(a, x, block_best(own_best<false>(x, a.n, {}), winners), scratch);
    if (a.m == 0) return;
    const float* more = at<const float>(a.more) + (u64)blockIdx.x * a.stride;
    const Best second = block_best(own_best<false>(more, a.m, {}), winners);
    if (threadIdx.x == 0) at<u32>(a.tail)[blockIdx.x] = second.index == NO_INDEX ? 0 : second.index;
}

// The best of the threads' own bests wins a place; only the thread that had it looks for its next. The further
// columns are copied as they are.
KERNEL(top_k, SelectArgs, 256) {
    __shared__ Best winners[33];
    __shared__ float scratch[33];
    if (a.rows && at<const u32>(a.rows)[blockIdx.x] == NO_ROW) return;
    const float* x = at<const float>(a.x) + (u64)blockIdx.x * a.stride;
    Best own = own_best<false>(x, a.n, {});
    Best winner = block_best(own, winners);
    row_stats(a, x, winner, scratch);
    const float* more = at<const float>(a.more) + (u64)blockIdx.x * a.stride;
    float* tail = at<float>(a.tail) + (u64)blockIdx.x * a.m;
    for (u32 i = threadIdx.x; i < a.m; i += blockDim.x) tail[i] = more[i];
    Best* top = at<Best>(a.top) + (u64)blockIdx.x * a.k;
    for (u32 place = 0; place < a.k; place++) {
        const bool found = winner.value > -INF;
        if (threadIdx.x == 0) top[place] = {winner.value, found ? winner.index : NO_INDEX};
        if (!found || place + 1 == a.k) continue;
        if (winner.index % blockDim.x == threadIdx.x) own = own_best<true>(x, a.n, winner);
        winner = block_best(own, winners);
    }
}
