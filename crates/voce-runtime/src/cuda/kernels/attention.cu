// Attention over rings of keys and values, and what moves keys and values.
//
// A ring is rows of `width` values (the head's dimension and zeros up to a whole number of 16-byte pieces);
// a slot's rings of a layer are [head][keys, values][capacity][width].

// Some rows of one slot: their place in the batch, the slot, the first one's position, and which positions the
// rows see between them.
struct AttendTask {
    u32 row, rows, slot, position, first, end, pad0, pad1;
};

#define ROPE_NONE 0
#define ROPE_INTERLEAVED 1
#define ROPE_HALVES 2

struct AttendArgs {
    u64 qkv, out, cache, tasks, rope_table, rope_freqs, partials, counters, distances, content, position;
    u32 qkv_stride, out_stride, heads, kv_heads, dim, width, capacity, window;
    u32 rope, rope_rows, splits, tile, farthest, distance_stride, causal;
    float scale;
};

DEV float widened(float x) { return x; }
DEV float widened(bf16 x) { return widen(x); }
DEV void keep_kv(float* to, float x) { *to = x; }
DEV void keep_kv(bf16* to, float x) { *to = narrow(x); }

// One value of a head's row, turned to its position. The angle is an f32 product; where the table ends, its cosine and
// sine are taken in f64.
DEV float rotated(const AttendArgs& a, const float* x, u32 d, u32 position) {
    if (a.rope == ROPE_NONE) return x[d];
    const u32 half = a.dim / 2;
    const bool pairs = a.rope == ROPE_INTERLEAVED;
    const u32 i = pairs ? d / 2 : d % half;
    const bool second = pairs ? d & 1 : d >= half;
    if (i >= half) return x[d];
    float c, s;
    if (position < a.rope_rows) {
        const float* row = at<const float>(a.rope_table) + (u64)position * 2 * half;
        c = row[i];
        s = row[half + i];
    } else {
        const double angle = (double)(at<const float>(a.rope_freqs)[i] * (float)position);
        c = (float)cos(angle);
        s = (float)sin(angle);
    }
    const float re = x[pairs ? 2 * i : i], im = x[pairs ? 2 * i + 1 : i + half];
    return second ? re * s + im * c : re * c - im * s;
}

// The ring of a slot's head: keys (0) or values (1).
template <class T> DEV T* ring_of(const AttendArgs& a, u32 slot, u32 head, u32 kv) {
    return at<T>(a.cache) + (((u64)slot * a.kv_heads + head) * 2 + kv) * a.capacity * a.width;
}

// Keys, rotated, and values of the rows to their rings: a block per row. Bound by launch latency or by memory.
template <class T> DEV void put_kv(const AttendArgs& a) {
    const AttendTask t = at<const AttendTask>(a.tasks)[blockIdx.x];
    const u32 r = blockIdx.y;
    if (r >= t.rows) return;
    const u32 place = (t.position + r) % a.capacity;
    const float* row = at<const float>(a.qkv) + (u64)(t.row + r) * a.qkv_stride + a.heads * a.dim;
    for (u32 e = threadIdx.x; e < a.kv_heads * a.dim; e += blockDim.x) {
        const u32 head = e / a.dim, d = e % a.dim;
        T* keys = ring_of<T>(a, t.slot, head, 0) + (u64)place * a.width;
        keep_kv(keys + d, rotated(a, row + head * a.dim, d, t.position + r));
        keep_kv(keys + (u64)a.capacity * a.width + d, row[(a.kv_heads + head) * a.dim + d]);
    }
}

KERNEL(put_kv_f32, AttendArgs, 256) { put_kv<float>(a); }
KERNEL(put_kv_bf16, AttendArgs, 256) { put_kv<bf16>(a); }

// Sixteen bytes as floats.
DEV void unpack16(const uint4 w, float (&x)[4], float) {
    x[0] = __uint_as_float(w.x);
    x[1] = __uint_as_float(w.y);
    x[2] = __uint_as_float(w.z);
    x[3] = __uint_as_float(w.w);
}
DEV void unpack16(const uint4 w, float (&x)[8], bf16) {
    x[0] = low(w.x);
    x[1] = high(w.x);
    x[2] = low(w.y);
    x[3] = high(w.y);
    x[4] = low(w.z);
    x[5] = high(w.z);
    x[6] = low(w.w);
    x[7] = high(w.w);
}

// Positions of a part: what a block reads before it takes a new maximum. Parts are counted from the first position
// that a row sees and merged in order. They are short where each has a block of its own, so that few rows keep the
// device busy, and long where a block reads them all.
#define SHORT_PART 64
#define LONG_PART 256
#define DECODE_THREADS 128
#define DECODE_WARPS (DECODE_THREADS / 32)

// Adds a part to a running result of weights `exp(s - top)`, their sum and the weighted values.
DEV void merge_weights(float top, float part_top, float* old_scale, float* part_scale) {
    const float most = fmaxf(top, part_top);
    *old_scale = expf(top - most);
    *part_scale = expf(part_top - most);
}

// One row per task and up to QUERIES query heads of a key head: a block per task, key head and part, or per task and
// key head when there are enough of those. Bound by reading the ring: every lane has AHEAD loads of 16 bytes under
// way, and the query heads share them. The row's own key and value come from its row and go to the ring here.
// With parts in several blocks the last one to finish merges.
template <class T, int PIECES, int QUERIES, int AHEAD, int PART> DEV void decode_parts(const AttendArgs& a) {
    const int V = 16 / sizeof(T);
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 head = blockIdx.x % a.kv_heads, group = a.heads / a.kv_heads, width = a.width;
    const AttendTask t = at<const AttendTask>(a.tasks)[blockIdx.x / a.kv_heads];
    const u32 parts = (t.end - t.first + PART - 1) / PART;
    SHARED(float, q);                                // [QUERIES][width]
    float* weights = q + QUERIES * width;            // [QUERIES][PART]
    float* sums = weights + QUERIES * PART;          // [warps][QUERIES][width]
    float* result = sums + DECODE_WARPS * QUERIES * width;  // [QUERIES][width]
    __shared__ float tops[QUERIES], totals[QUERIES], top[QUERIES], total[QUERIES];
    T* own = reinterpret_cast<T*>(result + QUERIES * width);  // [key, value][width]
    __shared__ u32 last;
    const float* qkv = at<const float>(a.qkv) + (u64)t.row * a.qkv_stride;
    const float* row = qkv + head * group * a.dim;
    for (u32 e = threadIdx.x; e < QUERIES * width; e += DECODE_THREADS) {
        const u32 g = e / width, d = e % width;
        q[e] = g < group && d < a.dim ? rotated(a, row + g * a.dim, d, t.position) * a.scale : 0.0f;
        result[e] = 0.0f;
    }
    if (threadIdx.x < QUERIES) {
        top[threadIdx.x] = -INF;
        total[threadIdx.x] = 0.0f;
    }
    T* ring = ring_of<T>(a, t.slot, head, 0);
    const u32 ring_size = a.capacity * width;
    for (u32 d = threadIdx.x; d < width; d += DECODE_THREADS) {
        const float* key = qkv + (a.heads + head) * a.dim;
        keep_kv(own + d, d < a.dim ? rotated(a, key, d, t.position) : 0.0f);
        keep_kv(own + width + d, d < a.dim ? key[a.kv_heads * a.dim + d] : 0.0f);
        if (blockIdx.y == 0) {
            T* to = ring + t.position % a.capacity * width + d;
            to[0] = own[d];
            to[ring_size] = own[width + d];
        }
    }
    __syncthreads();
    // Lanes share a key: one 16-byte piece each, or PIECES of them.
    const u32 pieces = width / V;
    u32 lanes = 1;
    while (lanes * PIECES < pieces) lanes *= 2;
    const u32 keys = 32 / lanes, mine = lane % lanes, which = lane / lanes;
    float mq[QUERIES][PIECES][V];
#pragma unroll
    for (int g = 0; g < QUERIES; g++)
#pragma unroll
        for (int p = 0; p < PIECES; p++)
#pragma unroll
            for (int v = 0; v < V; v++) {
                const u32 piece = mine + p * lanes;
                mq[g][p][v] = piece < pieces ? q[g * width + piece * V + v] : 0.0f;
            }
    const uint4 none = {0, 0, 0, 0};
    const uint4* own_pieces = reinterpret_cast<const uint4*>(own);
    const uint4* k_ring = reinterpret_cast<const uint4*>(ring);
    const uint4* v_ring = reinterpret_cast<const uint4*>(ring + ring_size);
    const u32 step = DECODE_WARPS * keys;
    for (u32 part = blockIdx.y; part < parts; part += a.splits) {
        const u32 first = t.first + part * PART, n = min((u32)PART, t.end - first), start = first % a.capacity;
        // The row's own place, if it is in this part.
        const u32 self = t.end - 1 - first;
        for (u32 i0 = warp * keys; i0 < n; i0 += AHEAD * step) {
            uint4 raw[AHEAD][PIECES];
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                const u32 i = i0 + u * step + which;
                const u32 place = start + i < a.capacity ? start + i : start + i - a.capacity;
#pragma unroll
                for (int p = 0; p < PIECES; p++) {
                    const u32 piece = mine + p * lanes;
                    if (i >= n || piece >= pieces) raw[u][p] = none;
                    else raw[u][p] = i == self ? own_pieces[piece] : k_ring[place * pieces + piece];
                }
            }
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                const u32 i = i0 + u * step + which;
                float sum[QUERIES] = {};
#pragma unroll
                for (int p = 0; p < PIECES; p++) {
                    float x[V];
                    unpack16(raw[u][p], x, T());
#pragma unroll
                    for (int g = 0; g < QUERIES; g++)
#pragma unroll
                        for (int v = 0; v < V; v++) sum[g] += x[v] * mq[g][p][v];
                }
#pragma unroll
                for (int g = 0; g < QUERIES; g++) {
                    for (u32 m = lanes / 2; m > 0; m /= 2) sum[g] += __shfl_xor_sync(FULL, sum[g], m);
                    if (mine == 0 && i < n) weights[g * PART + i] = sum[g];
                }
            }
        }
        __syncthreads();
        for (u32 g = warp; g < QUERIES; g += DECODE_WARPS) {
            float most = -INF, sum = 0.0f;
            for (u32 i = lane; i < n; i += 32) most = fmaxf(most, weights[g * PART + i]);
            most = warp_max(most);
            for (u32 i = lane; i < n; i += 32) {
                const float w = expf(weights[g * PART + i] - most);
                weights[g * PART + i] = w;
                sum += w;
            }
            sum = warp_sum(sum);
            if (lane == 0) {
                tops[g] = most;
                totals[g] = sum;
            }
        }
        __syncthreads();
        float acc[QUERIES][PIECES][V] = {};
        for (u32 i0 = warp * keys; i0 < n; i0 += AHEAD * step) {
            uint4 raw[AHEAD][PIECES];
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                const u32 i = i0 + u * step + which;
                const u32 place = start + i < a.capacity ? start + i : start + i - a.capacity;
#pragma unroll
                for (int p = 0; p < PIECES; p++) {
                    const u32 piece = mine + p * lanes;
                    if (i >= n || piece >= pieces) raw[u][p] = none;
                    else raw[u][p] = i == self ? own_pieces[pieces + piece] : v_ring[place * pieces + piece];
                }
            }
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                const u32 i = i0 + u * step + which;
#pragma unroll
                for (int p = 0; p < PIECES; p++) {
                    float x[V];
                    unpack16(raw[u][p], x, T());
#pragma unroll
                    for (int g = 0; g < QUERIES; g++) {
                        const float w = i < n ? weights[g * PART + i] : 0.0f;
#pragma unroll
                        for (int v = 0; v < V; v++) acc[g][p][v] += w * x[v];
                    }
                }
            }
        }
#pragma unroll
        for (int g = 0; g < QUERIES; g++)
#pragma unroll
            for (int p = 0; p < PIECES; p++)
#pragma unroll
                for (int v = 0; v < V; v++) {
                    for (u32 m = lanes; m < 32; m *= 2) acc[g][p][v] += __shfl_xor_sync(FULL, acc[g][p][v], m);
                    const u32 piece = mine + p * lanes;
                    if (which == 0 && piece < pieces)
                        sums[(warp * QUERIES + g) * width + piece * V + v] = acc[g][p][v];
                }
        __syncthreads();
        for (u32 e = threadIdx.x; e < QUERIES * width; e += DECODE_THREADS) {
            const u32 g = e / width;
            float sum = 0.0f;
            for (u32 w = 0; w < DECODE_WARPS; w++) sum += sums[w * QUERIES * width + e];
            if (a.splits > 1) {
                result[e] = sum;
            } else {
                float old_scale, part_scale;
                merge_weights(top[g], tops[g], &old_scale, &part_scale);
                result[e] = result[e] * old_scale + sum * part_scale;
            }
        }
        __syncthreads();
        if (threadIdx.x < QUERIES) {
            const u32 g = threadIdx.x;
            float old_scale, part_scale;
            merge_weights(top[g], tops[g], &old_scale, &part_scale);
            total[g] = total[g] * old_scale + totals[g] * part_scale;
            top[g] = fmaxf(top[g], tops[g]);
        }
        __syncthreads();
    }
    if (a.splits > 1) {
        // [block][part][QUERIES][width + 2]: values, maximum, sum.
        const u32 record = QUERIES * (width + 2);
        float* partials = at<float>(a.partials) + (u64)blockIdx.x * a.splits * record;
        if (blockIdx.y < parts) {
            float* to = partials + blockIdx.y * record;
            for (u32 e = threadIdx.x; e < QUERIES * width; e += DECODE_THREADS) to[e] = result[e];
            if (threadIdx.x < QUERIES) {
                to[QUERIES * width + threadIdx.x] = top[threadIdx.x];
                to[QUERIES * width + QUERIES + threadIdx.x] = total[threadIdx.x];
            }
        }
        __threadfence();
        __syncthreads();
        u32* counter = at<u32>(a.counters) + blockIdx.x;
        if (threadIdx.x == 0) last = atomicAdd(counter, 1u) == a.splits - 1;
        __syncthreads();
        if (!last) return;
        if (threadIdx.x == 0) *counter = 0;
        __threadfence();
        if (threadIdx.x < QUERIES) {
            top[threadIdx.x] = -INF;
            total[threadIdx.x] = 0.0f;
        }
        for (u32 e = threadIdx.x; e < QUERIES * width; e += DECODE_THREADS) result[e] = 0.0f;
        __syncthreads();
        for (u32 part = 0; part < parts; part++) {
            const volatile float* from = partials + part * record;
            for (u32 e = threadIdx.x; e < QUERIES * width; e += DECODE_THREADS) {
                const u32 g = e / width;
                float old_scale, part_scale;
                merge_weights(top[g], from[QUERIES * width + g], &old_scale, &part_scale);
                result[e] = result[e] * old_scale + from[e] * part_scale;
            }
            __syncthreads();
            if (threadIdx.x < QUERIES) {
                const u32 g = threadIdx.x;
                const float part_top = from[QUERIES * width + g];
                float old_scale, part_scale;
                merge_weights(top[g], part_top, &old_scale, &part_scale);
                total[g] = total[g] * old_scale + from[QUERIES * width + QUERIES + g] * part_scale;
                top[g] = fmaxf(top[g], part_top);
            }
            __syncthreads();
        }
    }
    float* out = at<float>(a.out) + (u64)t.row * a.out_stride + head * group * a.dim;
    for (u32 e = threadIdx.x; e < QUERIES * width; e += DECODE_THREADS) {
        const u32 g = e / width, d = e % width;
        if (g < group && d < a.dim) out[g * a.dim + d] = result[e] / total[g];
    }
}

template <class T, int PIECES, int QUERIES, int AHEAD> DEV void decode_rows(const AttendArgs& a) {
    if (a.splits > 1) decode_parts<T, PIECES, QUERIES, AHEAD, SHORT_PART>(a);
    else decode_parts<T, PIECES, QUERIES, AHEAD, LONG_PART>(a);
}

KERNEL(decode_f32, AttendArgs, DECODE_THREADS) { decode_rows<float, 2, 1, 4>(a); }
KERNEL(decode_bf16, AttendArgs, DECODE_THREADS) { decode_rows<bf16, 1, 1, 8>(a); }
KERNEL(decode_group_f32, AttendArgs, DECODE_THREADS) { decode_rows<float, 2, 4, 2>(a); }
KERNEL(decode_group_bf16, AttendArgs, DECODE_THREADS) { decode_rows<bf16, 1, 4, 4>(a); }
