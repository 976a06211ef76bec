// Products with few rows in one kernel each, and what stands before and after the library's products with many.

// How a prepared operand is stored.
#define OPERAND_F32 0
#define OPERAND_BF16 1
#define OPERAND_INT8 2
#define OPERAND_FP8 3

// Value `i` of a prepared row, from a row of `k` values (of `2 k` before a gated unit).
DEV float operand_value(const Norm& n, const Moments& m, const float* x, u32 k, u32 row, u32 i) {
    if (n.kind == NORM_SWIGLU) return x[i] * sigmoid(x[i]) * x[k + i];
    return apply_norm(n, m, x[i], row, i);
}

struct PrepareArgs {
    Norm norm;
    u64 x, out, scales;
    u32 x_stride, k, out_stride, format;
};

// One block per row: norm or activation, then the operand's format, zeros up to the stride. Int8 and e4m3 rows
// get a scale each.
KERNEL(prepare, PrepareArgs, 256) {
    __shared__ float scratch[33];
    const u32 row = blockIdx.x;
    const float* x = at<const float>(a.x) + (u64)row * a.x_stride;
    const Moments m = row_moments(a.norm, x, a.k, scratch);
    if (a.format == OPERAND_F32) {
        float* out = at<float>(a.out) + (u64)row * a.out_stride;
        for (u32 i = threadIdx.x; i < a.out_stride; i += blockDim.x)
            out[i] = i < a.k ? operand_value(a.norm, m, x, a.k, row, i) : 0.0f;
    } else if (a.format == OPERAND_BF16) {
        u32* out = at<u32>(a.out) + (u64)row * (a.out_stride / 2);
        for (u32 i = 2 * threadIdx.x; i < a.out_stride; i += 2 * blockDim.x) {
            const float lo = i < a.k ? operand_value(a.norm, m, x, a.k, row, i) : 0.0f;
            const float hi = i + 1 < a.k ? operand_value(a.norm, m, x, a.k, row, i + 1) : 0.0f;
            out[i / 2] = narrow2(lo, hi);
        }
    } else {
        float top = 0.0f;
        for (u32 i = threadIdx.x; i < a.k; i += blockDim.x)
            top = fmaxf(top, fabsf(operand_value(a.norm, m, x, a.k, row, i)));
        top = block_max(top, scratch);
        if (a.format == OPERAND_FP8) {
            const bool some = top > E4M3_TINY;
            const float inverse = some ? E4M3_MAX / top : 0.0f;
            if (threadIdx.x == 0) at<float>(a.scales)[row] = some ? top / E4M3_MAX : 0.0f;
            fp8* out = at<fp8>(a.out) + (u64)row * a.out_stride;
            for (u32 i = threadIdx.x; i < a.out_stride; i += blockDim.x)
                out[i].code = (unsigned char)to_e4m3(i < a.k ? operand_value(a.norm, m, x, a.k, row, i) * inverse : 0.0f);
            return;
        }
        const float scale = top / 127.0f;
        const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
        if (threadIdx.x == 0) at<float>(a.scales)[row] = scale;
        i8* out = at<i8>(a.out) + (u64)row * a.out_stride;
        for (u32 i = threadIdx.x; i < a.out_stride; i += blockDim.x) {
            const float v = i < a.k ? operand_value(a.norm, m, x, a.k, row, i) * inverse : 0.0f;
            out[i] = (i8)max(-127, min(127, __float2int_rn(v)));
        }
    }
}

// Eight values per thread of rows that need no sums: rounded to bf16, from f32 or, with a pending activation, from bf16.
// Bound by memory.
struct NarrowArgs {
    Norm norm;
    u64 x, out;
    u32 x_stride, k, out_stride, rows, narrow, pad;
};
KERNEL(narrow_rows, NarrowArgs, 256) {
    const u32 pieces = a.out_stride / 8;
    const u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u32 row = (u32)(index / pieces), i = (u32)(index % pieces) * 8;
    if (row >= a.rows) return;
    float v[8];
    const u64 from = (u64)row * a.x_stride + i;
    if (a.narrow) {
        const uint4 w = *at<const uint4>(a.x + 2 * from);
        const float4 x = widen4({w.x, w.y}), y = widen4({w.z, w.w});
        v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w, v[4] = y.x, v[5] = y.y, v[6] = y.z, v[7] = y.w;
    } else {
        const float4 x = *at<const float4>(a.x + 4 * from), y = *at<const float4>(a.x + 4 * from + 16);
        v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w, v[4] = y.x, v[5] = y.y, v[6] = y.z, v[7] = y.w;
    }
    if (a.norm.kind == NORM_SWIGLU) {
        float4 x, y;
        if (a.narrow) {
            const uint4 w = *at<const uint4>(a.x + 2 * (from + a.k));
            x = widen4({w.x, w.y}), y = widen4({w.z, w.w});
        } else {
            x = *at<const float4>(a.x + 4 * (from + a.k)), y = *at<const float4>(a.x + 4 * (from + a.k) + 16);
        }
        const float g[8] = {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w};
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = v[j] * sigmoid_roughly(v[j]) * g[j];
    } else if (a.norm.kind == NORM_ACT) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            if (a.norm.bias) v[j] += at<const float>(a.norm.bias)[i + j];
            v[j] = activate_roughly(a.norm.act, v[j]);
        }
    }
    *at<uint4>(a.out + 2 * ((u64)row * a.out_stride + i)) = {narrow2(v[0], v[1]), narrow2(v[2], v[3]), narrow2(v[4], v[5]),
                                                             narrow2(v[6], v[7])};
}

// A warp per row, which it holds in registers: norm, then bf16. Bound by memory.
template <int PIECES> DEV void norm_narrow_rows(const NarrowArgs& a) {
    const u32 row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= a.rows) return;
    float4 v[PIECES], w[PIECES];
    warp_row<PIECES>(at<const float>(a.x) + (u64)row * a.x_stride, a.k, v);
    warp_weights<PIECES>(a.norm, a.k, w);
    const Moments m = warp_moments<PIECES>(a.norm, v, a.k);
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const u32 i = 4 * (32 * p + lane);
        if (i >= a.k) continue;
        const float4 x = apply_norm4(a.norm, m, v[p], w[p], row, i);
        *at<uint2>(a.out + 2 * ((u64)row * a.out_stride + i)) = {narrow2(x.x, x.y), narrow2(x.z, x.w)};
    }
}
KERNEL(norm_narrow_4, NarrowArgs, 256) { norm_narrow_rows<4>(a); }
KERNEL(norm_narrow_8, NarrowArgs, 256) { norm_narrow_rows<8>(a); }
KERNEL(norm_narrow_16, NarrowArgs, 256) { norm_narrow_rows<16>(a); }

struct EpilogueArgs {
    Store store;
    u64 products, row_scales, col_scales;
    u32 stride, n, rows, integer;
};

// Products of many rows to their place.
KERNEL(epilogue, EpilogueArgs, 256) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.n) return;
    for (u32 row = blockIdx.y; row < a.rows; row += gridDim.y) {
        float v;
        if (a.integer)
            v = (float)at<const int>(a.products)[(u64)row * a.stride + i] * at<const float>(a.row_scales)[row] *
                at<const float>(a.col_scales)[i];
        else
            v = at<const float>(a.products)[(u64)row * a.stride + i];
        put(a.store, row, i, v);
    }
}

// The same, four columns per thread.
KERNEL(epilogue4, EpilogueArgs, 256) {
    const u32 pieces = a.n / 4;
    const u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u32 row = (u32)(index / pieces), i = (u32)(index % pieces) * 4;
    if (row >= a.rows) return;
    const u64 from = a.products + 4 * ((u64)row * a.stride + i);
    float4 v;
    if (a.integer) {
        const int4 q = *at<const int4>(from);
        const float r = at<const float>(a.row_scales)[row];
        const float4 c = *at<const float4>(a.col_scales + 4 * (u64)i);
        v = {(float)q.x * r * c.x, (float)q.y * r * c.y, (float)q.z * r * c.z, (float)q.w * r * c.w};
    } else {
        v = *at<const float4>(from);
    }
    put4(a.store, row, i, v);
}

struct LinearArgs {
    Norm norm;
    Store store;
    u64 x, w, scales;
    u32 x_stride, rows, k, n, w_stride, pad;
};

// Rows in shared memory are in groups: the first four values of all pieces, then the next four, so that lanes which
// have neighbouring pieces read neighbouring values.
DEV float4 row_four(const float* x, u32 stride, u32 groups, u32 group, u32 piece) {
    return *reinterpret_cast<const float4*>(x + group * (stride / groups) + 4 * piece);
}

DEV float dot4(const float4& w, const float4& x, float sum) {
    return fmaf(w.w, x.w, fmaf(w.z, x.z, fmaf(w.y, x.y, fmaf(w.x, x.x, sum))));
}
DEV float4 bytes4(u32 q) {
    return {(float)(i8)q, (float)(i8)(q >> 8), (float)(i8)(q >> 16), (float)(i8)(q >> 24)};
}

template <int FORMAT> DEV float4 codes4(u32 q) { return FORMAT == OPERAND_FP8 ? from_e4m3_four(q) : bytes4(q); }

// Sixteen bytes of weights, piece `p` of an output, against the rows.
template <int FORMAT, int ROWS> DEV void dot_piece(const uint4 w, const float* x, u32 stride, u32 p, float* sum) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float* row = x + r * stride;
        if (FORMAT == OPERAND_F32) {
            const float4 v = {__uint_as_float(w.x), __uint_as_float(w.y), __uint_as_float(w.z), __uint_as_float(w.w)};
            sum[r] = dot4(v, row_four(row, stride, 1, 0, p), sum[r]);
        } else if (FORMAT == OPERAND_BF16) {
            sum[r] = dot4(widen4({w.x, w.y}), row_four(row, stride, 2, 0, p), sum[r]);
            sum[r] = dot4(widen4({w.z, w.w}), row_four(row, stride, 2, 1, p), sum[r]);
        } else {
            sum[r] = dot4(codes4<FORMAT>(w.x), row_four(row, stride, 4, 0, p), sum[r]);
            sum[r] = dot4(codes4<FORMAT>(w.y), row_four(row, stride, 4, 1, p), sum[r]);
            sum[r] = dot4(codes4<FORMAT>(w.z), row_four(row, stride, 4, 2, p), sum[r]);
            sum[r] = dot4(codes4<FORMAT>(w.w), row_four(row, stride, 4, 3, p), sum[r]);
        }
    }
}

// Four-value pieces of a row that a thread holds while sums are taken: rows of up to 2048 values.
#define FEW_HELD 2
// Pieces of the first output that a lane asks for before it waits for anything.
#define FEW_AHEAD 4

// The moments of a row whose values the block's threads hold, with one meeting of the block: sums of what is left of
// the row's first value.
template <int HELD> DEV Moments held_moments(const Norm& n, const float4 (&v)[HELD], float shift, u32 k, float2* scratch) {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int h = 0; h < HELD; h++) {
        if (4 * (threadIdx.x + h * blockDim.x) >= k) continue;
        const float a = v[h].x - shift, b = v[h].y - shift, c = v[h].z - shift, d = v[h].w - shift;
        sum += a + b + c + d;
        squares += a * a + b * b + c * c + d * d;
    }
    sum = warp_sum(sum);
    squares = warp_sum(squares);
    if (lane == 0) scratch[warp] = {sum, squares};
    __syncthreads();
    const float2 part = scratch[min(lane, warps - 1)];
    sum = warp_sum(lane < warps ? part.x : 0.0f);
    squares = warp_sum(lane < warps ? part.y : 0.0f);
    Moments m = {0.0f, 1.0f};
    if (n.kind == NORM_LAYER) {
        const float off = sum / k;
        m.mean = shift + off;
        m.scale = rsqrtf(fmaxf(squares / k - off * off, 0.0f) + n.eps);
    } else {
        m.scale = rsqrtf(squares / k + n.eps);
    }
    return m;
}

// A row to its place in shared memory, normed; all of a thread's values are asked for at once.
template <int GROUPS, int HELD> DEV void few_row(const LinearArgs& a, u32 row, float* x, float2* scratch) {
    const u32 k = a.k, stride = a.w_stride, pieces = stride / 4;
    const float* from = at<const float>(a.x) + (u64)row * a.x_stride;
    const bool sums = a.norm.kind == NORM_LAYER || a.norm.kind == NORM_RMS;
    const bool fours = k % 4 == 0 && ((u64)from) % 16 == 0;
    const float4 none = {0.0f, 0.0f, 0.0f, 0.0f};
    if (fours && (!sums || k <= 4 * HELD * blockDim.x)) {
        for (u32 base = 0; base < pieces; base += HELD * blockDim.x) {
            float4 v[HELD], w[HELD];
            const float shift = a.norm.kind == NORM_LAYER ? from[0] : 0.0f;
#pragma unroll
            for (int h = 0; h < HELD; h++) {
                const u32 i = 4 * (base + threadIdx.x + h * blockDim.x);
                v[h] = i < k ? *reinterpret_cast<const float4*>(from + i) : none;
                w[h] = none;
                if (i >= k) continue;
                if (sums && a.norm.weight) w[h] = four(a.norm.weight, i);
                if (a.norm.kind == NORM_SWIGLU) w[h] = *reinterpret_cast<const float4*>(from + k + i);
            }
            Moments m = {0.0f, 1.0f};
            if (sums) m = held_moments(a.norm, v, shift, k, scratch);
#pragma unroll
            for (int h = 0; h < HELD; h++) {
                const u32 piece = base + threadIdx.x + h * blockDim.x, i = 4 * piece;
                if (piece >= pieces) continue;
                float4 y = v[h];
                if (i >= k) {
                    y = none;
                } else if (sums) {
                    y = apply_norm4(a.norm, m, y, w[h], row, i);
                } else if (a.norm.kind == NORM_SWIGLU) {
                    y = {y.x * sigmoid(y.x) * w[h].x, y.y * sigmoid(y.y) * w[h].y, y.z * sigmoid(y.z) * w[h].z,
                         y.w * sigmoid(y.w) * w[h].w};
                } else if (a.norm.kind == NORM_ACT) {
                    y = {apply_norm(a.norm, m, y.x, row, i), apply_norm(a.norm, m, y.y, row, i + 1),
                         apply_norm(a.norm, m, y.z, row, i + 2), apply_norm(a.norm, m, y.w, row, i + 3)};
                }
                *reinterpret_cast<float4*>(x + piece % GROUPS * (stride / GROUPS) + 4 * (piece / GROUPS)) = y;
            }
        }
        return;
    }
    const Moments m = row_moments(a.norm, from, k, reinterpret_cast<float*>(scratch));
    for (u32 i = threadIdx.x; i < stride; i += blockDim.x) {
        const u32 piece = i / 4;
        x[piece % GROUPS * (stride / GROUPS) + 4 * (piece / GROUPS) + i % 4] =
            i < k ? operand_value(a.norm, m, from, k, row, i) : 0.0f;
    }
}

// The first weights of a warp's first output, which need nothing that other kernels write.
template <int FORMAT> DEV void few_ahead(const LinearArgs& a, uint4 (&ahead)[FEW_AHEAD]) {
    const u32 groups = FORMAT == OPERAND_F32 ? 1 : FORMAT == OPERAND_BF16 ? 2 : 4;
    const u64 bytes = FORMAT == OPERAND_F32 ? 4 : FORMAT == OPERAND_BF16 ? 2 : 1;
    const u32 lane = threadIdx.x % 32, pieces = a.w_stride / (4 * groups);
    const u32 begin = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (begin >= a.n) return;
    const uint4* w = at<const uint4>(a.w + (u64)begin * a.w_stride * bytes);
#pragma unroll
    for (u32 j = 0; j < FEW_AHEAD; j++) ahead[j] = __ldg(w + min(lane + 32 * j, pieces - 1));
    // The rest of it, the next output and the norm's weights come to the cache meanwhile, in lines of 128 bytes.
    const u64 row = a.w_stride * bytes, first = a.w + begin * row;
    const u64 second = begin + gridDim.x * (blockDim.x / 32) < a.n ? first + gridDim.x * (blockDim.x / 32) * row : 0;
    for (u64 line = 128 * lane; line < row; line += 128 * 32) {
        if (line >= 16 * 32 * FEW_AHEAD) prefetch(first + line);
        if (second) prefetch(second + line);
    }
    if (begin == 0 && a.norm.weight)
        for (u32 line = 128 * lane; line < 4 * a.k; line += 128 * 32) prefetch(a.norm.weight + line);
}

// Up to ROWS rows: normed once per block into shared memory, then a warp per output over 16-byte pieces. `ahead` is what
// `few_ahead` asked for.
template <int FORMAT, int ROWS> DEV void linear_rows(const LinearArgs& a, uint4 (&ahead)[FEW_AHEAD]) {
    const int groups = FORMAT == OPERAND_F32 ? 1 : FORMAT == OPERAND_BF16 ? 2 : 4;
    const u64 bytes = FORMAT == OPERAND_F32 ? 4 : FORMAT == OPERAND_BF16 ? 2 : 1;
    SHARED(float, x);
    __shared__ float2 scratch[ROWS][32];
    const u32 stride = a.w_stride, pieces = stride / (4 * groups);
    const u32 rows = min((u32)ROWS, a.rows);
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const u32 begin = blockIdx.x * warps + warp;
    if (blockIdx.x * warps >= a.n) return;
#pragma unroll 1
    for (u32 r = 0; r < ROWS; r++) few_row<groups, FEW_HELD>(a, min(r, rows - 1), x + r * stride, scratch[r]);
    __syncthreads();
    for (u32 i = begin; i < a.n; i += gridDim.x * warps) {
        const uint4* w = at<const uint4>(a.w + (u64)i * stride * bytes);
        float sum[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) sum[r] = 0.0f;
#pragma unroll
        for (u32 j = 0; j < FEW_AHEAD; j++)
            if (lane + 32 * j < pieces) dot_piece<FORMAT, ROWS>(ahead[j], x, stride, lane + 32 * j, sum);
        u32 p = lane + 32 * FEW_AHEAD;
        // Four pieces at a time, and the next output's first ones while the last of these are on their way.
        for (; p < pieces; p += 32 * FEW_AHEAD) {
#pragma unroll
            for (u32 j = 0; j < FEW_AHEAD; j++) ahead[j] = __ldg(w + min(p + 32 * j, pieces - 1));
#pragma unroll
            for (u32 j = 0; j < FEW_AHEAD; j++)
                if (p + 32 * j < pieces) dot_piece<FORMAT, ROWS>(ahead[j], x, stride, p + 32 * j, sum);
        }
        const u32 next = i + gridDim.x * warps;
        if (next < a.n) {
            const uint4* w = at<const uint4>(a.w + (u64)next * stride * bytes);
#pragma unroll
            for (u32 j = 0; j < FEW_AHEAD; j++) ahead[j] = __ldg(w + min(lane + 32 * j, pieces - 1));
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float v = warp_sum(sum[r]);
            if (FORMAT >= OPERAND_INT8) v *= at<const float>(a.scales)[i];
            if (lane == 0 && (u32)r < rows) put(a.store, r, i, v);
        }
    }
}

template <int FORMAT> DEV void linear_few(const LinearArgs& a) {
    uint4 ahead[FEW_AHEAD];
    few_ahead<FORMAT>(a, ahead);
    dependents_may_start();
    wait_for_others();
    if (a.rows == 1) linear_rows<FORMAT, 1>(a, ahead);
    else linear_rows<FORMAT, 2>(a, ahead);
}

KERNEL_AHEAD(linear_f32, LinearArgs, 256, 4) { linear_few<OPERAND_F32>(a); }
KERNEL_AHEAD(linear_bf16, LinearArgs, 256, 4) { linear_few<OPERAND_BF16>(a); }
KERNEL_AHEAD(linear_int8, LinearArgs, 256, 4) { linear_few<OPERAND_INT8>(a); }
KERNEL_AHEAD(linear_fp8, LinearArgs, 256, 4) { linear_few<OPERAND_FP8>(a); }
