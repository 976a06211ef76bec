// Attention of rows alone, where there are few or where they see little: every warp has a whole head in its registers, so that warps
// meet once, or never.

#define ALONE_WARPS 16
// Key heads of a block whose warps have one each.
#define SHORT_HEADS 4
// Positions that a warp reads at once.
#define ALONE_AHEAD 8

// Cosines and sines of a lane's values, D * lane and on, at a position.
template <int D> DEV void lane_turns(const AttendArgs& a, u32 position, float (&c)[D], float (&s)[D]) {
    const u32 lane = threadIdx.x % 32, half = 16 * D;
#pragma unroll
    for (int j = 0; j < D; j++) {
        const u32 i = a.rope == ROPE_HALVES ? D * (lane % 16) + j : (D * lane + j) / 2;
        c[j] = 1.0f, s[j] = 0.0f;
        if (a.rope == ROPE_NONE) continue;
        if (position < a.rope_rows) {
            const float* row = at<const float>(a.rope_table) + (u64)position * 2 * half;
            c[j] = row[i], s[j] = row[half + i];
        } else {
            const double angle = (double)(at<const float>(a.rope_freqs)[i] * (float)position);
            c[j] = (float)cos(angle), s[j] = (float)sin(angle);
        }
    }
}

// A head's row, a lane has D values of it: normed where it has weights, then turned.
template <int D> DEV void lane_head(const AttendArgs& a, const float* from, bool normed, const float (&weight)[D], const float (&c)[D],
                                    const float (&s)[D], float (&x)[D]) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < D; j++) x[j] = from[D * lane + j];
    if (normed) {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < D; j++) sum += x[j] * x[j];
        const float scale = rsqrtf(warp_sum(sum) / a.dim + a.eps);
#pragma unroll
        for (int j = 0; j < D; j++) x[j] *= scale * weight[j];
    }
    if (a.rope == ROPE_HALVES) {
#pragma unroll
        for (int j = 0; j < D; j++) {
            const float other = __shfl_xor_sync(FULL, x[j], 16);
            x[j] = lane < 16 ? x[j] * c[j] - other * s[j] : other * s[j] + x[j] * c[j];
        }
    } else if (a.rope == ROPE_INTERLEAVED) {
#pragma unroll
        for (int j = 0; j < D; j += 2) {
            const float re = x[j], im = x[j + 1];
            x[j] = re * c[j] - im * s[j], x[j + 1] = re * s[j] + im * c[j];
        }
    }
}

// A lane's values of a row of a ring.
DEV void lane_values(const bf16* from, float (&x)[2]) {
    const u32 v = *reinterpret_cast<const u32*>(from + 2 * (threadIdx.x % 32));
    x[0] = low(v), x[1] = high(v);
}
DEV void lane_values(const bf16* from, float (&x)[4]) {
    const uint2 v = *reinterpret_cast<const uint2*>(from + 4 * (threadIdx.x % 32));
    x[0] = low(v.x), x[1] = high(v.x), x[2] = low(v.y), x[3] = high(v.y);
}

// One row per task, and WARPS warps that take the positions of a key head in turn. Bound by latency, and for long pasts by what one
// multiprocessor can read.
template <int D, int QUERIES, int WARPS> DEV void decode_alone(const AttendArgs& a) {
    const u32 dim = 32 * D, warp = WARPS == 1 ? 0 : threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 job = WARPS == 1 ? blockIdx.x * SHORT_HEADS + threadIdx.x / 32 : blockIdx.x;
    const u32 head = job % a.kv_heads, group = a.heads / a.kv_heads;
    const u64 task = a.tasks + sizeof(AttendTask) * (job / a.kv_heads);
    const uint4 task0 = table_load(task), task1 = table_load(task + 16);
    const u32 row = task0.x, slot = task0.z, position = task0.w, first = task1.x, past = task1.y - 1 - first;
    bf16* keys = ring_of<bf16>(a, slot, head, 0);
    bf16* values = keys + (u64)a.capacity * dim;
    const u32 start = first % a.capacity;
    // Loads that do not depend on the row begin before it is there.
    for (u32 i = 32 * warp + lane; i < 2 * past * (dim / 64); i += 32 * WARPS) {
        const u32 p = start + i / 2 / (dim / 64), place = p < a.capacity ? p : p - a.capacity;
        prefetch((u64)((i & 1 ? values : keys) + (u64)place * dim + 64 * (i / 2 % (dim / 64))));
    }
    float c[D], s[D], query_weight[D], key_weight[D];
    lane_turns<D>(a, position, c, s);
    const bool normed = a.query_norm;
#pragma unroll
    for (int j = 0; j < D; j++) {
        query_weight[j] = normed ? at<const float>(a.query_norm)[D * lane + j] : 1.0f;
        key_weight[j] = normed ? at<const float>(a.key_norm)[D * lane + j] : 1.0f;
    }
    dependents_may_start();
    wait_for_others();
    const float* qkv = at<const float>(a.qkv) + (u64)row * a.qkv_stride;
    float q[QUERIES][D], acc[QUERIES][D], most[QUERIES], total[QUERIES];
#pragma unroll
    for (int g = 0; g < QUERIES; g++) {
        lane_head<D>(a, qkv + (head * group + min((u32)g, group - 1)) * dim, normed, query_weight, c, s, q[g]);
        most[g] = -INF, total[g] = 0.0f;
#pragma unroll
        for (int j = 0; j < D; j++) q[g][j] *= a.scale, acc[g][j] = 0.0f;
    }
    for (u32 i0 = warp; i0 < past; i0 += ALONE_AHEAD * WARPS) {
        float k[ALONE_AHEAD][D], v[ALONE_AHEAD][D];
#pragma unroll
        for (int u = 0; u < ALONE_AHEAD; u++) {
            const u32 p = start + min(i0 + u * WARPS, past - 1), place = p < a.capacity ? p : p - a.capacity;
            if (i0 + u * WARPS < past) {
                lane_values(keys + (u64)place * dim, k[u]);
                lane_values(values + (u64)place * dim, v[u]);
            } else {
#pragma unroll
                for (int j = 0; j < D; j++) k[u][j] = v[u][j] = 0.0f;
            }
        }
#pragma unroll
        for (int g = 0; g < QUERIES; g++) {
            float score[ALONE_AHEAD];
#pragma unroll
            for (int u = 0; u < ALONE_AHEAD; u++) {
                score[u] = 0.0f;
#pragma unroll
                for (int j = 0; j < D; j++) score[u] = fmaf(q[g][j], k[u][j], score[u]);
            }
            // Lane 4 u and the three after it have position u.
            const float looked = warp_sums<ALONE_AHEAD>(score);
            const float mine = i0 + lane / 4 * WARPS < past ? looked : -INF;
            const float top = fmaxf(most[g], warp_max(mine)), weight = expf(mine - top), old = expf(most[g] - top);
            float sum = weight;
            for (int m = 4; m < 32; m *= 2) sum += __shfl_xor_sync(FULL, sum, m);
            total[g] = total[g] * old + sum;
            most[g] = top;
#pragma unroll
            for (int j = 0; j < D; j++) acc[g][j] *= old;
#pragma unroll
            for (int u = 0; u < ALONE_AHEAD; u++) {
                const float w = __shfl_sync(FULL, weight, 4 * u);
#pragma unroll
                for (int j = 0; j < D; j++) acc[g][j] = fmaf(w, v[u][j], acc[g][j]);
            }
        }
    }
    // The row's own key and value, rounded as the ring has them.
    if (warp == past % WARPS) {
        float k[D], v[D];
        const float* own = qkv + (a.heads + head) * dim;
        lane_head<D>(a, own, normed, key_weight, c, s, k);
        const u64 place = (u64)(position % a.capacity) * dim + D * lane;
#pragma unroll
        for (int j = 0; j < D; j++) {
            const bf16 key = narrow(k[j]), value = narrow(own[a.kv_heads * dim + D * lane + j]);
            keys[place + j] = key, values[place + j] = value;
            k[j] = widen(key), v[j] = widen(value);
        }
#pragma unroll
        for (int g = 0; g < QUERIES; g++) {
            float score = 0.0f;
#pragma unroll
            for (int j = 0; j < D; j++) score = fmaf(q[g][j], k[j], score);
            score = warp_sum(score);
            const float top = fmaxf(most[g], score), weight = expf(score - top), old = expf(most[g] - top);
            total[g] = total[g] * old + weight;
            most[g] = top;
#pragma unroll
            for (int j = 0; j < D; j++) acc[g][j] = acc[g][j] * old + weight * v[j];
        }
    }
    if (WARPS == 1) {
#pragma unroll
        for (int g = 0; g < QUERIES; g++) {
            if (g >= group) continue;
#pragma unroll
            for (int j = 0; j < D; j++) put_attended(a, row, (head * group + g) * dim + D * lane + j, acc[g][j] / total[g]);
        }
        return;
    }
    SHARED(float, sums);  // [warps][QUERIES][dim]
    __shared__ float tops[WARPS][QUERIES], totals[WARPS][QUERIES];
#pragma unroll
    for (int g = 0; g < QUERIES; g++) {
        if (lane == 0) tops[warp][g] = most[g], totals[warp][g] = total[g];
#pragma unroll
        for (int j = 0; j < D; j++) sums[(warp * QUERIES + g) * dim + D * lane + j] = acc[g][j];
    }
    __syncthreads();
    for (u32 e = threadIdx.x; e < QUERIES * dim; e += blockDim.x) {
        const u32 g = e / dim;
        if (g >= group) continue;
        float top = -INF, sum = 0.0f, value = 0.0f;
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) top = fmaxf(top, tops[w][g]);
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) {
            const float scale = expf(tops[w][g] - top);
            sum += totals[w][g] * scale;
            value += sums[w * QUERIES * dim + e] * scale;
        }
        put_attended(a, row, head * group * dim + e, value / sum);
    }
}

KERNEL_AHEAD(decode_alone_64, AttendArgs, 32 * ALONE_WARPS, 1) { decode_alone<2, 1, ALONE_WARPS>(a); }
KERNEL_AHEAD(decode_alone_128, AttendArgs, 32 * ALONE_WARPS, 1) { decode_alone<4, 1, ALONE_WARPS>(a); }
KERNEL_AHEAD(decode_alone_pair_64, AttendArgs, 32 * ALONE_WARPS, 1) { decode_alone<2, 2, ALONE_WARPS>(a); }
KERNEL_AHEAD(decode_alone_pair_128, AttendArgs, 32 * ALONE_WARPS, 1) { decode_alone<4, 2, ALONE_WARPS>(a); }
// Many rows that see little: a warp per key head.
KERNEL_AHEAD(decode_short_64, AttendArgs, 32 * SHORT_HEADS, 4) { decode_alone<2, 1, 1>(a); }
KERNEL_AHEAD(decode_short_128, AttendArgs, 32 * SHORT_HEADS, 4) { decode_alone<4, 1, 1>(a); }
KERNEL_AHEAD(decode_short_pair_64, AttendArgs, 32 * SHORT_HEADS, 4) { decode_alone<2, 2, 1>(a); }
KERNEL_AHEAD(decode_short_pair_128, AttendArgs, 32 * SHORT_HEADS, 4) { decode_alone<4, 2, 1>(a); }
