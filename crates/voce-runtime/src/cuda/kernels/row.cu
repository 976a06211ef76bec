// Products of one row, or of up to four. Every warp holds a slice of the rows in registers and goes over outputs of its block; the
// slices' sums meet in shared memory. The first outputs' weights are on their way before the rows are there, and where they are
// few that is all of them. Bound by reading the weights, or by the latency from kernel to kernel.

#define ROW_WARPS 16

// `share` outputs a block; a slice is P * 256 values. `gated` outputs are `silu(y[i]) * y[n + i]` of a matrix with 2 n of them.
struct RowArgs {
    Norm norm;
    Store store;
    u64 x, w;
    u32 k, n, pitch, share, slices, gated, rows, x_stride;
};

// Values `8 piece` and on of a row of f32.
DEV void row_eight(u64 row, u32 piece, float (&v)[8]) {
    const float4 lo = *at<const float4>(row + 32 * (u64)piece), hi = *at<const float4>(row + 32 * (u64)piece + 16);
    v[0] = lo.x, v[1] = lo.y, v[2] = lo.z, v[3] = lo.w, v[4] = hi.x, v[5] = hi.y, v[6] = hi.z, v[7] = hi.w;
}

// This thread's part of the row, normed; for a root mean square all but the division, which is left to the end. `scratch` then
// has the sums of squares of every slice.
template <int P> DEV void row_slice(const RowArgs& a, u64 row, u32 slice, u32 piece0, bool first, float (&x)[P][8], float2* scratch) {
    const u32 pieces = a.k / 8, lane = threadIdx.x % 32;
    const bool layer = a.norm.kind == NORM_LAYER;
#pragma unroll
    for (int p = 0; p < P; p++) {
        const u32 piece = piece0 + 32 * p;
#pragma unroll
        for (int j = 0; j < 8; j++) x[p][j] = 0.0f;
        if (piece < pieces) row_eight(row, piece, x[p]);
    }
    if (a.norm.kind == NORM_NONE) return;
    const float shift = layer ? *at<const float>(row) : 0.0f;
    if (first) {
        float sum = 0.0f, squares = 0.0f;
#pragma unroll
        for (int p = 0; p < P; p++)
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const float d = piece0 + 32 * p < pieces ? x[p][j] - shift : 0.0f;
                sum += d;
                squares += d * d;
            }
        sum = layer ? warp_sum(sum) : 0.0f;
        squares = warp_sum(squares);
        if (lane == 0) scratch[slice] = {sum, squares};
    }
    float mean = 0.0f, scale = 1.0f;
    if (layer) {
        __syncthreads();
        float sum = 0.0f, squares = 0.0f;
        for (u32 i = 0; i < a.slices; i++) sum += scratch[i].x, squares += scratch[i].y;
        const float off = sum / a.k;
        mean = shift + off;
        scale = rsqrtf(fmaxf(squares / a.k - off * off, 0.0f) + a.norm.eps);
    }
#pragma unroll
    for (int p = 0; p < P; p++) {
        const u32 piece = piece0 + 32 * p;
        if (piece >= pieces) continue;
        float g[8] = {1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f}, b[8] = {};
        if (a.norm.weight) row_eight(a.norm.weight, piece, g);
        if (a.norm.bias) row_eight(a.norm.bias, piece, b);
#pragma unroll
        for (int j = 0; j < 8; j++) x[p][j] = (x[p][j] - mean) * scale * g[j] + b[j];
    }
}

// Weights of H outputs of the warp, from its output number `j` on; past the last one its own again.
template <int P, int H> DEV void row_weights(const RowArgs& a, u32 rows, u32 count, u32 begin, u32 step, u32 piece0, u32 j, uint4 (&w)[H][P]) {
    const u32 pieces = a.k / 8;
    const uint4* from = at<const uint4>(a.w);
#pragma unroll
    for (int h = 0; h < H; h++) {
        const u32 r = min(begin + step * (j + h), rows - 1);
        const u32 row = blockIdx.x * a.share + (r < count ? r : a.n + r - count);
#pragma unroll
        for (int p = 0; p < P; p++) w[h][p] = stream_load(from + row * a.pitch + min(piece0 + 32 * p, pieces - 1));
    }
}

template <int P, int H, int R> DEV void row_product(const RowArgs& a) {
    SHARED(float, partial);  // [R][outputs][slices]
    __shared__ float2 moments[R][ROW_WARPS];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, S = a.slices, groups = ROW_WARPS / S;
    const u32 slice = warp % S, group = warp / S, piece0 = 32 * P * slice + lane;
    const u32 first = blockIdx.x * a.share, count = min(a.share, a.n - first), rows = a.gated ? 2 * count : count;
    // Slices may leave some warps over.
    const bool works = group < groups && group < rows;
    uint4 w[2][H][P];
    if (works) {
        row_weights<P, H>(a, rows, count, group, groups, piece0, 0, w[0]);
        row_weights<P, H>(a, rows, count, group, groups, piece0, H, w[1]);
        // The next ones come to the cache meanwhile.
        for (u32 i = lane; i < 2 * H * 4 * P; i += 32) {
            const u32 r = group + groups * (2 * H + i / (4 * P));
            if (r >= rows) break;
            const u32 row = first + (r < count ? r : a.n + r - count);
            prefetch(a.w + 16 * ((u64)row * a.pitch + min(32 * P * slice + 8 * (i % (4 * P)), a.k / 8 - 1)));
        }
        if (a.norm.weight && group == 0) prefetch(a.norm.weight + 32 * (u64)min(piece0, a.k / 8 - 1));
    }
    // A thread for every result.
    const u32 row = R == 1 ? 0 : threadIdx.x / a.share, mine = R == 1 ? threadIdx.x : threadIdx.x % a.share;
    const bool holds = row < min((u32)R, a.rows) && mine < count;
    const float bias = a.store.bias && holds ? at<const float>(a.store.bias)[first + mine] : 0.0f;
    dependents_may_start();
    wait_for_others();
    float old = 0.0f, gate = 1.0f, x[R][P][8];
    if (a.store.store != STORE_SET && holds) {
        old = at<const float>(a.store.out)[(u64)row * a.store.out_stride + first + mine];
        if (a.store.store == STORE_GATED) gate = at<const float>(a.store.gate)[(u64)row * a.store.gate_stride + first + mine];
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        const u64 from = a.x + 4 * (u64)min((u32)r, a.rows - 1) * a.x_stride;
        row_slice<P>(a, from, slice, piece0, group == 0, x[r], moments[r]);
    }
    if (works)
#pragma unroll 1
        for (u32 j = 0; group + groups * j < rows; j += 2 * H) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float sums[R][H];
#pragma unroll
                for (int h = 0; h < H; h++)
#pragma unroll
                    for (int r = 0; r < R; r++) {
                        float lo = 0.0f, hi = 0.0f;
#pragma unroll
                        for (int p = 0; p < P; p++) {
                            const uint4 v = w[half][h][p];
                            lo = fmaf(low(v.x), x[r][p][0], lo), hi = fmaf(high(v.x), x[r][p][1], hi);
                            lo = fmaf(low(v.y), x[r][p][2], lo), hi = fmaf(high(v.y), x[r][p][3], hi);
                            lo = fmaf(low(v.z), x[r][p][4], lo), hi = fmaf(high(v.z), x[r][p][5], hi);
                            lo = fmaf(low(v.w), x[r][p][6], lo), hi = fmaf(high(v.w), x[r][p][7], hi);
                        }
                        sums[r][h] = lo + hi;
                    }
                const u32 next = j + (2 + half) * H;
                if (group + groups * next < rows) row_weights<P, H>(a, rows, count, group, groups, piece0, next, w[half]);
                const u32 output = group + groups * (j + half * H + lane / (32 / H));
#pragma unroll
                for (int r = 0; r < R; r++) {
                    const float sum = warp_sums<H>(sums[r]);
                    if (lane % (32 / H) == 0 && output < rows) partial[(r * rows + output) * S + slice] = sum;
                }
            }
        }
    __syncthreads();
    if (!holds) return;
    float scale = 1.0f, v = 0.0f;
    if (a.norm.kind == NORM_RMS) {
        float squares = 0.0f;
        for (u32 i = 0; i < S; i++) squares += moments[row][i].y;
        scale = rsqrtf(squares / a.k + a.norm.eps);
    }
    const float* parts = partial + row * rows * S;
    for (u32 i = 0; i < S; i++) v += parts[mine * S + i];
    v = v * scale + bias;
    if (a.gated) {
        float u = 0.0f;
        for (u32 i = 0; i < S; i++) u += parts[(count + mine) * S + i];
        v = v * sigmoid(v) * u * scale;
    }
    at<float>(a.store.out)[(u64)row * a.store.out_stride + first + mine] = old + gate * activate(a.store.act, v);
}

// Rows of up to 4096 values, for blocks with few outputs, whose next kernel finds room beside them, and with many; longer rows.
KERNEL_AHEAD(row_bf16, RowArgs, 32 * ROW_WARPS, 2) { row_product<1, 4, 1>(a); }
KERNEL_AHEAD(row_many_bf16, RowArgs, 32 * ROW_WARPS, 1) { row_product<1, 8, 1>(a); }
KERNEL_AHEAD(row_long_bf16, RowArgs, 32 * ROW_WARPS, 1) { row_product<2, 4, 1>(a); }
KERNEL_AHEAD(row_longest_bf16, RowArgs, 32 * ROW_WARPS, 1) { row_product<3, 2, 1>(a); }
// Two rows, and up to four.
KERNEL_AHEAD(row_two_bf16, RowArgs, 32 * ROW_WARPS, 1) { row_product<1, 4, 2>(a); }
KERNEL_AHEAD(row_two_long_bf16, RowArgs, 32 * ROW_WARPS, 1) { row_product<2, 2, 2>(a); }
KERNEL_AHEAD(row_four_bf16, RowArgs, 32 * ROW_WARPS, 1) { row_product<1, 4, 4>(a); }
