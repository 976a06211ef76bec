// Attention over rings of keys and values, and what moves keys and values.
//
// A ring is rows of `width` values (the head's dimension and zeros up to a whole number of 16-byte pieces);
// a slot's rings of a layer are [head][keys, values][capacity][width]. Behind a ring of e4m3 are the exponents of its rows.

// Some rows of one slot: their place in the batch, the slot, the first one's position, and which positions the
// rows see between them.
struct AttendTask {
    u32 row, rows, slot, position, first, end, pad0, pad1;
};

#define ROPE_NONE 0
#define ROPE_INTERLEAVED 1
#define ROPE_HALVES 2

// `causal` is 0, or the positions of a frame, which leave the window together.
// `query_norm` and `key_norm` are weights of norms of heads that rows alone take on the way; 0 for none.
struct AttendArgs {
    u64 qkv, out, cache, tasks, rope_table, rope_freqs, partials, counters, distances, content, position;
    u64 query_norm, key_norm;
    u32 qkv_stride, out_stride, heads, kv_heads, dim, width, capacity, window;
    u32 rope, rope_rows, splits, tile, farthest, distance_stride, causal;
    float scale, eps;
    u32 narrow;
};

DEV float widened(float x) { return x; }
DEV float widened(bf16 x) { return widen(x); }
DEV void keep_kv(float* to, float x) { *to = x; }
DEV void keep_kv(bf16* to, float x) { *to = narrow(x); }

// A head's row, and what its norm multiplies it by, if it has one.
struct HeadRow { const float* x; const float* weight; float scale; };
DEV float head_value(const HeadRow& r, u32 d) { return r.weight ? r.x[d] * r.scale * r.weight[d] : r.x[d]; }

// One value of a head's row, turned to its position. The angle is an f32 product; where the table ends, its cosine and
// sine are taken in f64.
DEV float rotated(const AttendArgs& a, const HeadRow& x, u32 d, u32 position) {
    if (a.rope == ROPE_NONE) return head_value(x, d);
    const u32 half = a.dim / 2;
    const bool pairs = a.rope == ROPE_INTERLEAVED;
    const u32 i = pairs ? d / 2 : d % half;
    const bool second = pairs ? d & 1 : d >= half;
    if (i >= half) return head_value(x, d);
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
    const float re = head_value(x, pairs ? 2 * i : i), im = head_value(x, pairs ? 2 * i + 1 : i + half);
    return second ? re * s + im * c : re * c - im * s;
}
DEV float rotated(const AttendArgs& a, const float* x, u32 d, u32 position) {
    return rotated(a, HeadRow{x, 0, 1.0f}, d, position);
}

// A value of the result to its place, in the format that is asked for.
DEV void put_attended(const AttendArgs& a, u32 row, u32 i, float x) {
    const u64 place = (u64)row * a.out_stride + i;
    if (a.narrow) at<bf16>(a.out)[place] = narrow(x);
    else at<float>(a.out)[place] = x;
}

// Values from one ring to the next.
template <class T> DEV u32 ring_values(u32 capacity, u32 width) { return capacity * (width + (sizeof(T) == 1 ? 1 : 0)); }

// The ring of a slot's head: keys (0) or values (1).
template <class T> DEV T* ring_of(const AttendArgs& a, u32 slot, u32 head, u32 kv) {
    return at<T>(a.cache) + (((u64)slot * a.kv_heads + head) * 2 + kv) * ring_values<T>(a.capacity, a.width);
}

// Values that a lane has of a head's row, which has up to 256.
#define KEPT_VALUES 8

// A warp keeps a row in e4m3: `value(d)` for each dimension below `dim`, zeros up to `width`. Returns its exponent.
template <class F> DEV u32 keep_row(fp8* to, u32 dim, u32 width, F value) {
    const u32 lane = threadIdx.x % 32;
    float x[KEPT_VALUES], top = 0.0f;
#pragma unroll
    for (int j = 0; j < KEPT_VALUES; j++) {
        const u32 d = lane + 32 * j;
        x[j] = d < dim ? value(d) : 0.0f;
        top = fmaxf(top, fabsf(x[j]));
    }
    const u32 exponent = row_exponent(warp_max(top));
    const float inverse = inverse_power(exponent);
#pragma unroll
    for (int j = 0; j < KEPT_VALUES; j++) {
        const u32 d = lane + 32 * j;
        if (d < width) to[d].code = (unsigned char)to_e4m3(x[j] * inverse);
    }
    return exponent;
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

// The same for heads of whole 16-byte pieces that are not turned: a thread takes eight values.
DEV void put_kv_plain(const AttendArgs& a) {
    const AttendTask t = at<const AttendTask>(a.tasks)[blockIdx.x];
    const u32 r = blockIdx.y;
    if (r >= t.rows) return;
    const u32 place = (t.position + r) % a.capacity, all = a.kv_heads * a.dim;
    const u64 row = a.qkv + 4 * ((u64)(t.row + r) * a.qkv_stride + a.heads * a.dim);
    for (u32 e = 8 * threadIdx.x; e < 2 * all; e += 8 * blockDim.x) {
        const u32 kv = e >= all, i = e - kv * all, head = i / a.dim;
        const float4 x = *at<const float4>(row + 4 * e), y = *at<const float4>(row + 4 * e + 16);
        bf16* to = ring_of<bf16>(a, t.slot, head, kv) + (u64)place * a.width + (i - head * a.dim);
        *reinterpret_cast<uint4*>(to) = {narrow2(x.x, x.y), narrow2(x.z, x.w), narrow2(y.x, y.y), narrow2(y.z, y.w)};
    }
}

KERNEL(put_kv_f32, AttendArgs, 256) { put_kv<float>(a); }
KERNEL(put_kv_bf16, AttendArgs, 256) {
    if (a.rope == ROPE_NONE && a.dim % 8 == 0 && a.qkv_stride % 4 == 0) put_kv_plain(a);
    else put_kv<bf16>(a);
}

// The same in e4m3: a warp has a key or a value.
KERNEL(put_kv_fp8, AttendArgs, 256) {
    const AttendTask t = at<const AttendTask>(a.tasks)[blockIdx.x];
    const u32 r = blockIdx.y, lane = threadIdx.x % 32;
    if (r >= t.rows) return;
    const u32 place = (t.position + r) % a.capacity;
    const float* row = at<const float>(a.qkv) + (u64)(t.row + r) * a.qkv_stride + a.heads * a.dim;
    for (u32 e = threadIdx.x / 32; e < 2 * a.kv_heads; e += blockDim.x / 32) {
        const u32 head = e / 2, kv = e % 2;
        fp8* ring = ring_of<fp8>(a, t.slot, head, kv);
        const float* x = row + (kv * a.kv_heads + head) * a.dim;
        const auto value = [&](u32 d) { return kv ? x[d] : rotated(a, x, d, t.position + r); };
        const u32 exponent = keep_row(ring + (u64)place * a.width, a.dim, a.width, value);
        if (lane == 0) ring[a.capacity * a.width + place].code = (unsigned char)exponent;
    }
}

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

DEV void unpack16(const uint4 w, float (&x)[16], fp8) {
    const u32 q[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float4 v = from_e4m3_four(q[i]);
        x[4 * i] = v.x, x[4 * i + 1] = v.y, x[4 * i + 2] = v.z, x[4 * i + 3] = v.w;
    }
}

// Positions of a part: what a block reads before it takes a new maximum. Parts are counted from the first position
// that a row sees and merged in order. They are short where each has a block of its own, so that few rows keep the
// device busy, and long where a block reads them all.
#define SHORT_PART 64
#define LONG_PART 256

// Adds a part to a running result of weights `exp(s - top)`, their sum and the weighted values.
DEV void merge_weights(float top, float part_top, float* old_scale, float* part_scale) {
    const float most = fmaxf(top, part_top);
    *old_scale = expf(top - most);
    *part_scale = expf(part_top - most);
}

// How a warp's lanes share keys: each has one 16-byte piece of a key, or PIECES of them.
struct Lanes { u32 pieces, lanes, mine, which, keys, step; };

// AHEAD loads of rows of a ring, from row `i0` of the part on; the row's own place is left empty.
template <int PIECES, int AHEAD>
DEV void part_rows(uint4 (&raw)[AHEAD][PIECES], const uint4* ring, const Lanes& l, u32 capacity, u32 start, u32 n, u32 self, u32 i0) {
    const uint4 none = {0, 0, 0, 0};
#pragma unroll
    for (int u = 0; u < AHEAD; u++) {
        const u32 i = i0 + u * l.step + l.which;
        const u32 place = start + i < capacity ? start + i : start + i - capacity;
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
            const u32 piece = l.mine + p * l.lanes;
            raw[u][p] = i < n && i != self && piece < l.pieces ? stream_load(ring + place * l.pieces + piece) : none;
        }
    }
}
// The row's own key or value where it belongs.
template <int PIECES, int AHEAD>
DEV void part_own(uint4 (&raw)[AHEAD][PIECES], const uint4* own, const Lanes& l, u32 self, u32 i0) {
#pragma unroll
    for (int u = 0; u < AHEAD; u++)
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
            const u32 piece = l.mine + p * l.lanes;
            if (i0 + u * l.step + l.which == self && piece < l.pieces) raw[u][p] = own[piece];
        }
}

// Asks for a part's keys and values, for the turns of its row's position and for norms, before the row itself is there.
template <class T, int PART> DEV void attend_ahead(const AttendArgs& a, const AttendTask& t, u32 head) {
    const u32 first = t.first + blockIdx.y * PART, n = min((u32)PART, t.end - first), row = a.width * sizeof(T);
    const u64 keys = (u64)ring_of<T>(a, t.slot, head, 0), values = (u64)ring_of<T>(a, t.slot, head, 1);
    const u32 lines = (row + 127) / 128;
    for (u32 i = threadIdx.x; i < 2 * n * lines; i += blockDim.x) {
        const u32 place = (first + i / 2 / lines) % a.capacity;
        prefetch((i & 1 ? values : keys) + (u64)place * row + 128 * (i / 2 % lines));
    }
    const u32 turns = a.rope == ROPE_NONE ? 0 : a.dim / 2 * 2;
    if (t.position < a.rope_rows && 8 * threadIdx.x < turns)
        touch(a.rope_table + 4 * ((u64)t.position * turns + 8 * threadIdx.x));
    if (a.query_norm && 8 * threadIdx.x < a.dim) {
        touch(a.query_norm + 32 * threadIdx.x);
        touch(a.key_norm + 32 * threadIdx.x);
    }
}

// One row per task and up to QUERIES query heads of a key head: a block per task, key head and part, or per task and
// key head when there are enough of those. Bound by reading the ring: every lane has AHEAD loads of 16 bytes under
// way, and the query heads share them. The row's own key and value come from its row and go to the ring here, after the
// norms of its heads. With parts in several blocks values are asked for together with keys, and the last block to
// finish merges.
template <class T, int PIECES, int QUERIES, int AHEAD, int PART> DEV void decode_parts(const AttendArgs& a) {
    const int V = 16 / sizeof(T);
    constexpr bool EIGHTS = sizeof(T) == 1;
    const bool short_part = PART == SHORT_PART;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, threads = blockDim.x, warps = threads / 32;
    const u32 head = blockIdx.x % a.kv_heads, group = a.heads / a.kv_heads, width = a.width;
    const u64 task = a.tasks + sizeof(AttendTask) * (blockIdx.x / a.kv_heads);
    const uint4 task0 = table_load(task), task1 = table_load(task + 16);
    const AttendTask t = {task0.x, task0.y, task0.z, task0.w, task1.x, task1.y, 0, 0};
    const u32 parts = (t.end - t.first + PART - 1) / PART;
    if (short_part) {
        // What no kernel just before this one writes, to the caches.
        if (blockIdx.y < parts) attend_ahead<T, PART>(a, t, head);
        dependents_may_start();
        wait_for_others();
    }
    SHARED(float, q);                                // [QUERIES][width]
    float* weights = q + QUERIES * width;            // [QUERIES][PART]
    float* result = weights + QUERIES * PART;        // [QUERIES][width]
    float* sums = result + QUERIES * width;          // [warps][QUERIES][width]
    T* own = reinterpret_cast<T*>(sums + warps * QUERIES * width);  // [key, value][width]
    __shared__ float tops[QUERIES], totals[QUERIES], top[QUERIES], total[QUERIES], scales[QUERIES + 1];
    __shared__ u32 last;
    // What rows of keys and of values in e4m3 are multiplied by, and the row's own.
    __shared__ float row_scales[2][EIGHTS ? PART : 1], own_scales[2];
    Lanes l;
    l.pieces = width / V;
    l.lanes = 1;
    while (l.lanes * PIECES < l.pieces) l.lanes *= 2;
    l.keys = 32 / l.lanes, l.mine = lane % l.lanes, l.which = lane / l.lanes, l.step = warps * l.keys;
    T* ring = ring_of<T>(a, t.slot, head, 0);
    const u32 ring_size = ring_values<T>(a.capacity, width);
    const uint4* k_ring = reinterpret_cast<const uint4*>(ring);
    const uint4* v_ring = reinterpret_cast<const uint4*>(ring + ring_size);
    const uint4* own_key = reinterpret_cast<const uint4*>(own);
    const uint4* own_value = own_key + l.pieces;
    const u32 begin = warp * l.keys;
    if (!short_part || blockIdx.y < parts) {
        u32 part = short_part ? blockIdx.y : 0;
        u32 first = t.first + part * PART, n = min((u32)PART, t.end - first), start = first % a.capacity;
        // The row's own place, if it is in this part.
        u32 self = t.end - 1 - first;
        uint4 keys[AHEAD][PIECES], values[AHEAD][PIECES];
        part_rows<PIECES, AHEAD>(keys, k_ring, l, a.capacity, start, n, self, begin);
        if (short_part) part_rows<PIECES, AHEAD>(values, v_ring, l, a.capacity, start, n, self, begin);
        const float* qkv = at<const float>(a.qkv) + (u64)t.row * a.qkv_stride;
        const float* row = qkv + head * group * a.dim;
        const float* key = qkv + (a.heads + head) * a.dim;
        if (a.query_norm) {
            for (u32 h = warp; h <= group; h += warps) {
                const float* x = h < group ? row + h * a.dim : key;
                float sum = 0.0f;
                for (u32 d = lane; d < a.dim; d += 32) sum += x[d] * x[d];
                sum = warp_sum(sum);
                if (lane == 0) scales[h] = rsqrtf(sum / a.dim + a.eps);
            }
            __syncthreads();
        }
        for (u32 e = threadIdx.x; e < QUERIES * width; e += threads) {
            const u32 g = e / width, d = e % width;
            const HeadRow x = {row + g * a.dim, at<const float>(a.query_norm), scales[g]};
            q[e] = g < group && d < a.dim ? rotated(a, x, d, t.position) * a.scale : 0.0f;
            result[e] = 0.0f;
        }
        if (threadIdx.x < QUERIES) {
            top[threadIdx.x] = -INF;
            total[threadIdx.x] = 0.0f;
        }
        const HeadRow own_row = {key, at<const float>(a.key_norm), scales[group]};
        if constexpr (EIGHTS) {
            if (warp < 2) {
                const u32 place = t.position % a.capacity;
                const auto value = [&](u32 d) {
                    return warp == 0 ? rotated(a, own_row, d, t.position) : key[a.kv_heads * a.dim + d];
                };
                const u32 exponent = keep_row(own + warp * width, a.dim, width, value);
                if (lane == 0) own_scales[warp] = power_of(exponent);
                __syncwarp();
                if (blockIdx.y == 0) {
                    T* to = ring + warp * ring_size;
                    for (u32 d = lane; d < width; d += 32) to[place * width + d] = own[warp * width + d];
                    if (lane == 0) to[a.capacity * width + place].code = (unsigned char)exponent;
                }
            }
        } else {
            for (u32 d = threadIdx.x; d < width; d += threads) {
                keep_kv(own + d, d < a.dim ? rotated(a, own_row, d, t.position) : 0.0f);
                keep_kv(own + width + d, d < a.dim ? key[a.kv_heads * a.dim + d] : 0.0f);
                if (blockIdx.y == 0) {
                    T* to = ring + t.position % a.capacity * width + d;
                    to[0] = own[d];
                    to[ring_size] = own[width + d];
                }
            }
        }
        __syncthreads();
        float mq[QUERIES][PIECES][V];
#pragma unroll
        for (int g = 0; g < QUERIES; g++)
#pragma unroll
            for (int p = 0; p < PIECES; p++)
#pragma unroll
                for (int v = 0; v < V; v++) {
                    const u32 piece = l.mine + p * l.lanes;
                    mq[g][p][v] = piece < l.pieces ? q[g * width + piece * V + v] : 0.0f;
                }
        while (true) {
            if constexpr (EIGHTS) {
                for (u32 e = threadIdx.x; e < 2 * n; e += threads) {
                    const u32 kv = e >= n, i = e - kv * n;
                    const u32 place = start + i < a.capacity ? start + i : start + i - a.capacity;
                    const T* exponents = ring + kv * ring_size + a.capacity * width;
                    row_scales[kv][i] = i == self ? own_scales[kv] : power_of(exponents[place].code);
                }
            }
            for (u32 i0 = begin; i0 < n; i0 += AHEAD * l.step) {
                if (i0 != begin) part_rows<PIECES, AHEAD>(keys, k_ring, l, a.capacity, start, n, self, i0);
                part_own<PIECES, AHEAD>(keys, own_key, l, self, i0);
#pragma unroll
                for (int u = 0; u < AHEAD; u++) {
                    const u32 i = i0 + u * l.step + l.which;
                    float sum[QUERIES] = {};
#pragma unroll
                    for (int p = 0; p < PIECES; p++) {
                        float x[V];
                        unpack16(keys[u][p], x, T());
#pragma unroll
                        for (int g = 0; g < QUERIES; g++)
#pragma unroll
                            for (int v = 0; v < V; v++) sum[g] += x[v] * mq[g][p][v];
                    }
#pragma unroll
                    for (int g = 0; g < QUERIES; g++) {
                        for (u32 m = l.lanes / 2; m > 0; m /= 2) sum[g] += __shfl_xor_sync(FULL, sum[g], m);
                        if (l.mine == 0 && i < n) weights[g * PART + i] = sum[g];
                    }
                }
            }
            if (!short_part) part_rows<PIECES, AHEAD>(values, v_ring, l, a.capacity, start, n, self, begin);
            __syncthreads();
            for (u32 g = warp; g < QUERIES; g += warps) {
                float most = -INF, sum = 0.0f;
                for (u32 i = lane; i < n; i += 32) {
                    if constexpr (EIGHTS) weights[g * PART + i] *= row_scales[0][i];
                    most = fmaxf(most, weights[g * PART + i]);
                }
                most = warp_max(most);
                for (u32 i = lane; i < n; i += 32) {
                    const float w = expf(weights[g * PART + i] - most);
                    weights[g * PART + i] = w * (EIGHTS ? row_scales[1][EIGHTS ? i : 0] : 1.0f);
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
            for (u32 i0 = begin; i0 < n; i0 += AHEAD * l.step) {
                if (i0 != begin) part_rows<PIECES, AHEAD>(values, v_ring, l, a.capacity, start, n, self, i0);
                part_own<PIECES, AHEAD>(values, own_value, l, self, i0);
#pragma unroll
                for (int u = 0; u < AHEAD; u++) {
                    const u32 i = i0 + u * l.step + l.which;
#pragma unroll
                    for (int p = 0; p < PIECES; p++) {
                        float x[V];
                        unpack16(values[u][p], x, T());
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
                        for (u32 m = l.lanes; m < 32; m *= 2) acc[g][p][v] += __shfl_xor_sync(FULL, acc[g][p][v], m);
                        const u32 piece = l.mine + p * l.lanes;
                        if (l.which == 0 && piece < l.pieces)
                            sums[(warp * QUERIES + g) * width + piece * V + v] = acc[g][p][v];
                    }
            // The next part's keys, while this one's are summed up.
            const bool more = !short_part && part + 1 < parts;
            if (more) {
                part++;
                first = t.first + part * PART, n = min((u32)PART, t.end - first), start = first % a.capacity;
                self = t.end - 1 - first;
                part_rows<PIECES, AHEAD>(keys, k_ring, l, a.capacity, start, n, self, begin);
            }
            __syncthreads();
            if (short_part) break;
            for (u32 e = threadIdx.x; e < QUERIES * width; e += threads) {
                const u32 g = e / width;
                float sum = 0.0f;
                for (u32 w = 0; w < warps; w++) sum += sums[w * QUERIES * width + e];
                float old_scale, part_scale;
                merge_weights(top[g], tops[g], &old_scale, &part_scale);
                result[e] = result[e] * old_scale + sum * part_scale;
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
            if (!more) break;
        }
    }
    const u32 column = head * group * a.dim;
    if (!short_part) {
        for (u32 e = threadIdx.x; e < QUERIES * width; e += threads) {
            const u32 g = e / width, d = e % width;
            if (g < group && d < a.dim) put_attended(a, t.row, column + g * a.dim + d, result[e] / total[g]);
        }
        return;
    }
    // [block][part][QUERIES][width + 2]: values, maximum, sum.
    const u32 record = QUERIES * (width + 2);
    float* partials = at<float>(a.partials) + (u64)blockIdx.x * a.splits * record;
    float* to = partials + blockIdx.y * record;
    if (blockIdx.y < parts) {
        for (u32 e = threadIdx.x; e < QUERIES * width; e += threads) {
            const u32 g = e / width, d = e % width;
            float sum = 0.0f;
            for (u32 w = 0; w < warps; w++) sum += sums[w * QUERIES * width + e];
            if (a.splits > 1) to[e] = sum;
            else if (g < group && d < a.dim) put_attended(a, t.row, column + g * a.dim + d, sum / totals[g]);
        }
        if (a.splits > 1 && threadIdx.x < QUERIES) {
            to[QUERIES * width + threadIdx.x] = tops[threadIdx.x];
            to[QUERIES * width + QUERIES + threadIdx.x] = totals[threadIdx.x];
        }
    }
    if (a.splits <= 1) return;
    __threadfence();
    __syncthreads();
    u32* counter = at<u32>(a.counters) + blockIdx.x;
    if (threadIdx.x == 0) last = atomicAdd(counter, 1u) == a.splits - 1;
    __syncthreads();
    if (!last) return;
    if (threadIdx.x == 0) *counter = 0;
    __threadfence();
    const volatile float* from = partials;
    for (u32 e = threadIdx.x; e < QUERIES * width; e += threads) {
        const u32 g = e / width, d = e % width;
        if (g >= group || d >= a.dim) continue;
        float most = -INF, sum = 0.0f, value = 0.0f;
        for (u32 p = 0; p < parts; p++) most = fmaxf(most, from[p * record + QUERIES * width + g]);
#pragma unroll 4
        for (u32 p = 0; p < parts; p++) {
            const float scale = expf(from[p * record + QUERIES * width + g] - most);
            sum += from[p * record + QUERIES * width + QUERIES + g] * scale;
            value += from[p * record + e] * scale;
        }
        put_attended(a, t.row, column + g * a.dim + d, value / sum);
    }
}

// Many rows, a block for all parts of one.
KERNEL_DENSE(decode_f32, AttendArgs, 128, 5) { decode_parts<float, 2, 1, 4, LONG_PART>(a); }
KERNEL_DENSE(decode_bf16, AttendArgs, 128, 5) { decode_parts<bf16, 1, 1, 8, LONG_PART>(a); }
KERNEL_DENSE(decode_pair_bf16, AttendArgs, 128, 4) { decode_parts<bf16, 1, 2, 8, LONG_PART>(a); }
KERNEL_DENSE(decode_fp8, AttendArgs, 128, 4) { decode_parts<fp8, 1, 1, 8, LONG_PART>(a); }
KERNEL_DENSE(decode_pair_fp8, AttendArgs, 128, 4) { decode_parts<fp8, 1, 2, 4, LONG_PART>(a); }
KERNEL_DENSE(decode_group_fp8, AttendArgs, 128, 3) { decode_parts<fp8, 1, 4, 4, LONG_PART>(a); }
KERNEL_DENSE(decode_group_f32, AttendArgs, 128, 4) { decode_parts<float, 2, 4, 2, LONG_PART>(a); }
KERNEL_DENSE(decode_group_bf16, AttendArgs, 128, 4) { decode_parts<bf16, 1, 4, 4, LONG_PART>(a); }
// Few rows, a block for each part.
KERNEL_AHEAD(decode_few_f32, AttendArgs, 256, 2) { decode_parts<float, 2, 1, 4, SHORT_PART>(a); }
KERNEL_AHEAD(decode_few_bf16, AttendArgs, 256, 2) { decode_parts<bf16, 1, 1, 4, SHORT_PART>(a); }
KERNEL_AHEAD(decode_few_pair_bf16, AttendArgs, 256, 2) { decode_parts<bf16, 1, 2, 4, SHORT_PART>(a); }
KERNEL_AHEAD(decode_few_group_f32, AttendArgs, 256, 2) { decode_parts<float, 2, 4, 2, SHORT_PART>(a); }
KERNEL_AHEAD(decode_few_group_bf16, AttendArgs, 256, 2) { decode_parts<bf16, 1, 4, 4, SHORT_PART>(a); }
KERNEL_AHEAD(decode_few_fp8, AttendArgs, 256, 2) { decode_parts<fp8, 1, 1, 2, SHORT_PART>(a); }
KERNEL_AHEAD(decode_few_pair_fp8, AttendArgs, 256, 2) { decode_parts<fp8, 1, 2, 2, SHORT_PART>(a); }
KERNEL_AHEAD(decode_few_group_fp8, AttendArgs, 256, 1) { decode_parts<fp8, 1, 4, 2, SHORT_PART>(a); }
