// Attention of several rows at once: tiles of keys, values and distances in shared memory.

#ifdef VOCE_EMULATED
#define METHOD inline
#else
#define METHOD __device__ __forceinline__
#endif

// A block has Q queries, and heads of W dimensions, or as many as the arguments say where W is 0.
#define TILE_THREADS 256
#define TILE_WARPS (TILE_THREADS / 32)

// Sixteen bytes to shared memory in the background, or zeros.
DEV void copy16(void* to, const void* from, bool real) {
#ifdef VOCE_EMULATED
    const uint4 none = {0, 0, 0, 0};
    *static_cast<uint4*>(to) = real ? *static_cast<const uint4*>(from) : none;
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(real ? 16 : 0)
                 : "memory");
#endif
}
// Ends a batch of copies.
DEV void copies_end() {
#ifndef VOCE_EMULATED
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits for all batches but the last N.
template <int N> DEV void copies_wait() {
#ifndef VOCE_EMULATED
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

// d[16][8] += a[16][16] b[8][16]^T over a warp, as mma.m16n8k16 lays them out: with g = lane / 4 and t = lane % 4, a
// is (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8), b is (g, 2t), (g, 2t + 8), d is (g, 2t), (g, 2t + 1), (g + 8, ..).
DEV void mma(float (&d)[4], const uint4 a, const uint2 b) {
#ifdef VOCE_EMULATED
    const u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const emulator::Places &left = emulator::show(a), &right = emulator::show(b);
    for (u32 k = 0; k < 4; k++) {
        const uint4 x = emulator::seen<uint4>(left, g * 4 + k);
        for (u32 c = 0; c < 2; c++) {
            const uint2 y = emulator::seen<uint2>(right, (2 * t + c) * 4 + k);
            d[c] += low(x.x) * low(y.x) + high(x.x) * high(y.x) + low(x.z) * low(y.y) + high(x.z) * high(y.y);
            d[2 + c] += low(x.y) * low(y.x) + high(x.y) * high(y.x) + low(x.w) * low(y.y) + high(x.w) * high(y.y);
        }
    }
#else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
#endif
}

// The left operand of `mma` at column k of 16 rows in shared memory, which begin at multiples of 16 bytes.
DEV uint4 left_of(const bf16* rows, u32 stride, u32 k) {
    const u32 lane = threadIdx.x % 32;
#ifdef VOCE_EMULATED
    const bf16* x = rows + lane / 4 * stride + k + 2 * (lane % 4);
    const bf16* y = x + 8 * stride;
    return {*reinterpret_cast<const u32*>(x), *reinterpret_cast<const u32*>(y),
            *reinterpret_cast<const u32*>(x + 8), *reinterpret_cast<const u32*>(y + 8)};
#else
    const u32 from = (u32)__cvta_generic_to_shared(rows + lane % 16 * stride + k + lane / 16 * 8);
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
#endif
}

// The right operand: columns k.. of 8 rows.
DEV uint2 right_of(const bf16* rows, u32 stride, u32 k) {
    const u32 lane = threadIdx.x % 32;
    const bf16* x = rows + lane / 4 * stride + k + 2 * (lane % 4);
    return {*reinterpret_cast<const u32*>(x), *reinterpret_cast<const u32*>(x + 8)};
}

// The right operands of 16 rows in shared memory, which begin at multiples of 16 bytes.
DEV void right_pair_of(const bf16* rows, u32 stride, u32 k, uint2& b, uint2& c) {
#ifdef VOCE_EMULATED
    b = right_of(rows, stride, k), c = right_of(rows + 8 * stride, stride, k);
#else
    const u32 lane = threadIdx.x % 32;
    const u32 from = (u32)__cvta_generic_to_shared(rows + (lane / 16 * 8 + lane % 8) * stride + k + lane / 8 % 2 * 8);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b.x), "=r"(b.y), "=r"(c.x), "=r"(c.y)
                 : "r"(from)
                 : "memory");
#endif
}

// The right operand from 16 rows of 8 values: the transpose.
DEV uint2 right_across(const bf16* rows, u32 stride) {
    const u32 lane = threadIdx.x % 32;
#ifdef VOCE_EMULATED
    const bf16* x = rows + 2 * (lane % 4) * stride + lane / 4;
    return {(u32)x[0] | (u32)x[stride] << 16, (u32)x[8 * stride] | (u32)x[9 * stride] << 16};
#else
    uint2 b;
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(b.x), "=r"(b.y)
                 : "r"((u32)__cvta_generic_to_shared(rows + lane % 16 * stride))
                 : "memory");
    return b;
#endif
}

// scores[Q][columns] = q[Q][width] rows[columns][width]^T; columns are a multiple of 16. A warp takes 16 columns.
template <int Q> DEV void tile_scores(const bf16* q, const bf16* rows, u32 stride, u32 width, u32 columns, float* scores, u32 scores_stride) {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (u32 c = warp * 16; c < columns; c += TILE_WARPS * 16) {
        float d[Q / 16][2][4] = {};
        for (u32 k = 0; k < width; k += 16) {
            uint2 left, right;
            right_pair_of(rows + c * stride, stride, k, left, right);
#pragma unroll
            for (int m = 0; m < Q / 16; m++) {
                const uint4 x = left_of(q + 16 * m * stride, stride, k);
                mma(d[m][0], x, left);
                mma(d[m][1], x, right);
            }
        }
#pragma unroll
        for (int m = 0; m < Q / 16; m++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float* to = scores + (16 * m + lane / 4) * scores_stride + c + 8 * h + 2 * (lane % 4);
                to[0] = d[m][h][0];
                to[1] = d[m][h][1];
                to[8 * scores_stride] = d[m][h][2];
                to[8 * scores_stride + 1] = d[m][h][3];
            }
        }
    }
}

// The same in f32: a thread takes a column and four queries at a time.
template <int Q> DEV void tile_scores(const float* q, const float* rows, u32 stride, u32 width, u32 columns, float* scores, u32 scores_stride) {
    for (u32 e = threadIdx.x; e < columns * (Q / 4); e += TILE_THREADS) {
        const u32 c = e % columns, first = e / columns * 4;
        float sum[4] = {};
        for (u32 k = 0; k < width; k += 4) {
            const float4 y = *reinterpret_cast<const float4*>(rows + c * stride + k);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float4 x = *reinterpret_cast<const float4*>(q + (first + i) * stride + k);
                sum[i] += x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) scores[(first + i) * scores_stride + c] = sum[i];
    }
}

// A block's weighted sums of values, in registers: what each thread holds differs by format.
template <class T, int Q, int W> struct Sums;

// Fragments of 16 queries by 8 dimensions: a warp has every eighth, up to 256 dimensions in all.
template <int Q, int W> struct Sums<bf16, Q, W> {
    static constexpr int PARTS = (W ? W : 256) / 8 / TILE_WARPS;
    float d[Q / 16][PARTS][4];
    // Weights are [Q][tile + 8].
    static METHOD u32 weight_at(u32 query, u32 key, u32 tile) { return query * (tile + 8) + key; }
    METHOD void clear() {
#pragma unroll
        for (int m = 0; m < Q / 16; m++)
#pragma unroll
            for (int j = 0; j < PARTS; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) d[m][j][i] = 0.0f;
    }
    METHOD void add(const bf16* weights, const bf16* values, const float* scale, u32 stride, u32 width, u32 tile, u32 n) {
        const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
        for (int m = 0; m < Q / 16; m++) {
            const float upper = scale[16 * m + lane / 4], lower = scale[16 * m + lane / 4 + 8];
#pragma unroll
            for (int j = 0; j < PARTS; j++) {
                d[m][j][0] *= upper;
                d[m][j][1] *= upper;
                d[m][j][2] *= lower;
                d[m][j][3] *= lower;
            }
        }
        for (u32 k = 0; k < n; k += 16) {
            uint4 w[Q / 16];
#pragma unroll
            for (int m = 0; m < Q / 16; m++) w[m] = left_of(weights + 16 * m * (tile + 8), tile + 8, k);
#pragma unroll
            for (int j = 0; j < PARTS; j++) {
                const u32 c = (warp + TILE_WARPS * j) * 8;
                if (c >= width) continue;
                const uint2 v = right_across(values + k * stride + c, stride);
#pragma unroll
                for (int m = 0; m < Q / 16; m++) mma(d[m][j], w[m], v);
            }
        }
    }
    // Calls put(query, dimension, sum, next sum) for each two sums of this thread, of dimensions side by side.
    template <class F> METHOD void each(u32 width, F put) const {
        const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
        for (int m = 0; m < Q / 16; m++)
#pragma unroll
            for (int j = 0; j < PARTS; j++) {
                const u32 c = (warp + TILE_WARPS * j) * 8 + 2 * (lane % 4);
                if (c >= width) continue;
                put(16 * m + lane / 4, c, d[m][j][0], d[m][j][1]);
                put(16 * m + lane / 4 + 8, c, d[m][j][2], d[m][j][3]);
            }
    }
};

// A thread has one dimension of all queries.
template <int Q, int W> struct Sums<float, Q, W> {
    float d[Q];
    // Weights are [tile][Q].
    static METHOD u32 weight_at(u32 query, u32 key, u32 tile) { return key * Q + query; }
    METHOD void clear() {
#pragma unroll
        for (int i = 0; i < Q; i++) d[i] = 0.0f;
    }
    METHOD void add(const float* weights, const float* values, const float* scale, u32 stride, u32 width, u32 tile, u32 n) {
        if (threadIdx.x >= width) return;
#pragma unroll
        for (int i = 0; i < Q; i++) d[i] *= scale[i];
        for (u32 k = 0; k < n; k++) {
            const float v = values[k * stride + threadIdx.x];
#pragma unroll
            for (int i = 0; i < Q; i += 4) {
                const float4 w = *reinterpret_cast<const float4*>(weights + k * Q + i);
                d[i] += w.x * v;
                d[i + 1] += w.y * v;
                d[i + 2] += w.z * v;
                d[i + 3] += w.w * v;
            }
        }
    }
    // Calls put(query, dimension, sum) for each sum of this thread.
    template <class F> METHOD void each(u32 width, F put) const {
        if (threadIdx.x >= width) return;
#pragma unroll
        for (int i = 0; i < Q; i++) put(i, threadIdx.x, d[i]);
    }
};

// Where sums go, divided by the totals of their queries.
struct TilePut {
    const AttendArgs& a;
    const float* totals;
    u32 row, from_head, group, queries;
    METHOD void operator()(u32 query, u32 d, float sum) const {
        if (query < queries && d < a.dim)
            put_attended(a, row + query / group, (from_head + query % group) * a.dim + d, sum / totals[query]);
    }
    METHOD void operator()(u32 query, u32 d, float sum, float next) const {
        operator()(query, d, sum);
        operator()(query, d + 1, next);
    }
};

// Rows of `width` values into shared memory, `count` rows of it from memory and zeros up to `room`. `row_of` gives a
// row's place; `real` pieces of a row are there, the others zeros.
template <class T, class F> DEV void tile_load(T* to, u32 stride, u32 width, u32 real, u32 count, u32 room, const T* from, F row_of) {
    const u32 V = 16 / sizeof(T), pieces = width / V;
    for (u32 e = threadIdx.x; e < room * pieces; e += TILE_THREADS) {
        const u32 r = e / pieces, p = e % pieces;
        const bool there = r < count && p < real;
        copy16(to + r * stride + p * V, there ? from + row_of(r) + p * V : from, there);
    }
}

// The same from a ring of e4m3, as bf16: `index_of` gives a row's place in the ring, `exponents` are behind it. A thread
// has some loads under way at once; a code times its power of two is a bf16 without rounding.
#define TILE_AHEAD 4
template <class F>
DEV void tile_load(bf16* to, u32 stride, u32 width, u32 count, u32 room, const fp8* from, const fp8* exponents, F index_of) {
    const u32 pieces = width / 16;
    const uint4 none = {0, 0, 0, 0};
    for (u32 base = threadIdx.x; base < room * pieces; base += TILE_AHEAD * TILE_THREADS) {
        uint4 codes[TILE_AHEAD];
        float scales[TILE_AHEAD];
#pragma unroll
        for (int u = 0; u < TILE_AHEAD; u++) {
            const u32 e = base + u * TILE_THREADS, r = e / pieces;
            const u32 place = r < count ? index_of(r) : 0;
            codes[u] = r < count ? *reinterpret_cast<const uint4*>(from + (u64)place * width + e % pieces * 16) : none;
            scales[u] = power_of(exponents[place].code);
        }
#pragma unroll
        for (int u = 0; u < TILE_AHEAD; u++) {
            const u32 e = base + u * TILE_THREADS;
            if (e >= room * pieces) continue;
            const u32 q[4] = {codes[u].x, codes[u].y, codes[u].z, codes[u].w};
            u32 pairs[8];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float4 v = from_e4m3_four(q[i]);
                const float s = scales[u];
                pairs[2 * i] = __float_as_uint(v.x * s) >> 16 | (__float_as_uint(v.y * s) & 0xffff0000u);
                pairs[2 * i + 1] = __float_as_uint(v.z * s) >> 16 | (__float_as_uint(v.w * s) & 0xffff0000u);
            }
            uint4* target = reinterpret_cast<uint4*>(to + e / pieces * stride + e % pieces * 16);
            target[0] = {pairs[0], pairs[1], pairs[2], pairs[3]};
            target[1] = {pairs[4], pairs[5], pairs[6], pairs[7]};
        }
    }
}

// The scaled queries of a task, turned to their positions, zeros after the last; for relative positions those that meet
// keys, and those that meet distances in `q_far`.
template <class T, int Q> DEV void tile_queries(const AttendArgs& a, const AttendTask& t, u32 from_head, u32 group, T* q, T* q_far) {
    const u32 width = a.width, stride = width + 16 / sizeof(T), queries = t.rows * group;
    const bool relative = a.distances != 0;
    for (u32 e = threadIdx.x; e < Q * width; e += TILE_THREADS) {
        const u32 i = e / width, d = e % width, h = from_head + i % group;
        float x = 0.0f, y = 0.0f;
        if (i < queries && d < a.dim) {
            const float* row = at<const float>(a.qkv) + (u64)(t.row + i / group) * a.qkv_stride + h * a.dim;
            x = rotated(a, row, d, t.position + i / group);
            if (relative) {
                y = (x + at<const float>(a.position)[h * a.dim + d]) * a.scale;
                x += at<const float>(a.content)[h * a.dim + d];
            }
            x *= a.scale;
        }
        keep_kv(q + i * stride + d, x);
        if (relative) keep_kv(q_far + i * stride + d, y);
    }
}

// The same with relative positions, for heads of W dimensions that each have their own keys: a thread takes four values.
template <int Q, int W> DEV void tile_queries_plain(const AttendArgs& a, const AttendTask& t, u32 head, bf16* q, bf16* q_far) {
    const u32 stride = W + 8;
#pragma unroll
    for (u32 e = threadIdx.x; e < Q * W / 4; e += TILE_THREADS) {
        const u32 i = e / (W / 4), d = e % (W / 4) * 4, h = head * W + d;
        uint2 near = {0, 0}, far = {0, 0};
        if (i < t.rows) {
            const float4 x = *at<const float4>(a.qkv + 4 * ((u64)(t.row + i) * a.qkv_stride + h));
            const float4 c = *at<const float4>(a.content + 4 * h), p = *at<const float4>(a.position + 4 * h);
            near = {narrow2((x.x + c.x) * a.scale, (x.y + c.y) * a.scale), narrow2((x.z + c.z) * a.scale, (x.w + c.w) * a.scale)};
            far = {narrow2((x.x + p.x) * a.scale, (x.y + p.y) * a.scale), narrow2((x.z + p.z) * a.scale, (x.w + p.w) * a.scale)};
        }
        *reinterpret_cast<uint2*>(q + i * stride + d) = near;
        *reinterpret_cast<uint2*>(q_far + i * stride + d) = far;
    }
}

// A block per task (up to Q rows, or one row's Q query heads) and key head: tiles of keys one after the other with a
// running maximum. bf16 on tensor cores, bound by reading rings and distances; f32 bound by its plain products. With W
// positions are relative. RING is what rings hold; those of e4m3 are multiplied as bf16.
template <class T, class RING, int Q, int W> DEV void tile_rows(const AttendArgs& a) {
    // Threads that share a query's softmax.
    const u32 SHARE = TILE_THREADS / Q;
    const AttendTask t = at<const AttendTask>(a.tasks)[blockIdx.x / a.kv_heads];
    const u32 head = blockIdx.x % a.kv_heads, width = W ? W : a.width, tile = a.tile;
    const u32 all = W ? 1 : a.heads / a.kv_heads, per = min(all, (u32)Q);
    const u32 from_head = head * all + blockIdx.y * per, group = W ? 1 : min(per, all - blockIdx.y * per);
    const u32 queries = t.rows * group;
    const bool relative = W || a.distances != 0;
    const u32 stride = width + 16 / sizeof(T), score_stride = tile + 4, far_stride = tile + Q + 4;
    SHARED(T, q);
    T* q_far = q + Q * stride;
    T* keys = q_far + (relative ? Q * stride : 0);
    T* values = keys + tile * stride;
    T* distances = values + tile * stride;
    T* weights = distances + (relative ? (tile + Q) * stride : 0);
    float* scores = reinterpret_cast<float*>(weights + Q * (tile + 8));
    float* far = scores + Q * score_stride;
    __shared__ float scale[Q], totals[Q];

    // Some threads of a warp have a query's maximum and sum.
    const u32 i = threadIdx.x / SHARE, share = threadIdx.x % SHARE, position = t.position + i / group;
    u32 seen = t.first, end = t.end;
    if (a.causal) {
        const u32 frame_end = (position / a.causal + 1) * a.causal;
        seen = a.window && frame_end > a.window ? min(frame_end - a.window, position) : 0;
        end = position + 1;
    }
    if (i >= queries) end = 0;
    float top = -INF, total = 0.0f;
    Sums<T, Q, W> sums;
    sums.clear();
    const RING* k_ring = ring_of<RING>(a, t.slot, head, 0);
    const RING* v_ring = ring_of<RING>(a, t.slot, head, 1);
    const T* far_rows = relative ? at<const T>(at<const u64>(a.distances)[head]) : 0;
    const u32 V = 16 / sizeof(T);
    for (u32 base = t.first; base < t.end; base += tile) {
        const u32 n = min(tile, t.end - base), start = base % a.capacity, room = (n + 15) / 16 * 16;
        const auto index = [&](u32 r) { return start + r < a.capacity ? start + r : start + r - a.capacity; };
        const auto ring_load = [&](T* to, const RING* ring) {
            if constexpr (sizeof(RING) == 1)
                tile_load(to, stride, width, n, room, ring, ring + a.capacity * width, index);
            else
                tile_load(to, stride, width, width / V, n, room, ring, [&](u32 r) { return (u64)index(r) * width; });
        };
        ring_load(keys, k_ring);
        // Column c of `far` is distance number `near + c`; the last row's first key is its column 0.
        const u32 columns = n + t.rows - 1, far_room = (columns + 15) / 16 * 16;
        if (relative) {
            const u32 near = a.farthest + base - (t.position + t.rows - 1);
            const auto row = [&](u32 r) { return (u64)(near + r) * a.distance_stride; };
            tile_load(distances, stride, width, a.distance_stride / V, columns, far_room, far_rows, row);
        }
        copies_end();
        ring_load(values, v_ring);
        copies_end();
        if (base == t.first) {
            if constexpr (W > 0) tile_queries_plain<Q, W>(a, t, head, q, q_far);
            else tile_queries<T, Q>(a, t, from_head, group, q, q_far);
        }
        copies_wait<1>();
        __syncthreads();
        tile_scores<Q>(q, keys, stride, width, room, scores, score_stride);
        if (relative) tile_scores<Q>(q_far, distances, stride, width, far_room, far, far_stride);
        __syncthreads();
        float most = -INF;
        const u32 skew = relative ? t.rows - 1 - min(i, t.rows - 1) : 0;
        for (u32 c = share; c < room; c += SHARE) {
            float s = scores[i * score_stride + c];
            if (relative) s += c < n ? far[i * far_stride + c + skew] : 0.0f;
            if (base + c < seen || base + c >= end) s = -INF;
            scores[i * score_stride + c] = s;
            most = fmaxf(most, s);
        }
        for (int m = SHARE / 2; m > 0; m /= 2) most = fmaxf(most, __shfl_xor_sync(FULL, most, m));
        const float before = top;
        top = fmaxf(top, most);
        float sum = 0.0f;
        for (u32 c = share; c < room; c += SHARE) {
            const float s = scores[i * score_stride + c];
            const float w = s == -INF ? 0.0f : expf(s - top);
            keep_kv(weights + sums.weight_at(i, c, tile), w);
            sum += w;
        }
        for (int m = SHARE / 2; m > 0; m /= 2) sum += __shfl_xor_sync(FULL, sum, m);
        const float shrink = before == top ? 1.0f : expf(before - top);
        total = total * shrink + sum;
        if (share == 0) scale[i] = shrink;
        copies_wait<0>();
        __syncthreads();
        sums.add(weights, values, scale, stride, width, tile, room);
        __syncthreads();
    }
    if (share == 0) totals[i] = total;
    __syncthreads();
    if constexpr (W > 0) {
        if (a.narrow)
            return sums.each(width, [&](u32 query, u32 d, float sum, float next) {
                if (query >= queries) return;
                const u64 place = (u64)(t.row + query) * a.out_stride + head * W + d;
                *at<u32>(a.out + 2 * place) = narrow2(sum / totals[query], next / totals[query]);
            });
    }
    sums.each(width, TilePut{a, totals, t.row, from_head, group, queries});
}

KERNEL(tile_f32, AttendArgs, TILE_THREADS) { tile_rows<float, float, 16, 0>(a); }
KERNEL(tile_bf16, AttendArgs, TILE_THREADS) { tile_rows<bf16, bf16, 16, 0>(a); }
KERNEL_DENSE(tile_fp8, AttendArgs, TILE_THREADS, 2) { tile_rows<bf16, fp8, 16, 0>(a); }
// Relative positions and heads of 128: chunks, and whole utterances, whose keys are read half as often.
KERNEL(tile_chunk_bf16, AttendArgs, TILE_THREADS) { tile_rows<bf16, bf16, 16, 128>(a); }
KERNEL(tile_whole_bf16, AttendArgs, TILE_THREADS) { tile_rows<bf16, bf16, 32, 128>(a); }
