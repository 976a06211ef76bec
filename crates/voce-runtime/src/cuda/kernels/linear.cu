// Products with few rows in one kernel each, and what stands before and after the library's products with many.

// How a prepared operand is stored.
#define OPERAND_F32 0
#define OPERAND_BF16 1
#define OPERAND_INT8 2

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

// One block per row: norm or activation, then the operand's format, zeros up to the stride. Int8 rows get a
// scale each.
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
        const float scale = block_max(top, scratch) / 127.0f;
        const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
        if (threadIdx.x == 0) at<float>(a.scales)[row] = scale;
        i8* out = at<i8>(a.out) + (u64)row * a.out_stride;
        for (u32 i = threadIdx.x; i < a.out_stride; i += blockDim.x) {
            const float v = i < a.k ? operand_value(a.norm, m, x, a.k, row, i) * inverse : 0.0f;
            out[i] = (i8)max(-127, min(127, __float2int_rn(v)));
        }
    }
}

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

struct LinearArgs {
    Norm norm;
    Store store;
    u64 x, w, scales;
    u32 x_stride, rows, k, n, w_stride, pad;
};

// Rows that share a pass over the weights.
#define FEW_ROWS 8

// Sixteen bytes of weights against the rows in shared memory.
template <int ROWS> DEV void dot_f32(const uint4 w, const float* x, u32 stride, float* sum) {
    const float4 v = {__uint_as_float(w.x), __uint_as_float(w.y), __uint_as_float(w.z), __uint_as_float(w.w)};
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float4 y = *reinterpret_cast<const float4*>(x + r * stride);
        sum[r] += v.x * y.x + v.y * y.y + v.z * y.z + v.w * y.w;
    }
}
template <int ROWS> DEV void dot_bf16(const uint4 w, const float* x, u32 stride, float* sum) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float4 y = *reinterpret_cast<const float4*>(x + r * stride);
        const float4 z = *reinterpret_cast<const float4*>(x + r * stride + 4);
        sum[r] += low(w.x) * y.x + high(w.x) * y.y + low(w.y) * y.z + high(w.y) * y.w;
        sum[r] += low(w.z) * z.x + high(w.z) * z.y + low(w.w) * z.z + high(w.w) * z.w;
    }
}
DEV float byte_of(u32 w, int i) { return (float)(i8)(w >> (8 * i)); }
template <int ROWS> DEV void dot_int8(const uint4 w, const float* x, u32 stride, float* sum) {
    const u32 words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float4 y = *reinterpret_cast<const float4*>(x + r * stride + 4 * j);
            const u32 q = words[j];
            sum[r] += byte_of(q, 0) * y.x + byte_of(q, 1) * y.y + byte_of(q, 2) * y.z + byte_of(q, 3) * y.w;
        }
    }
}

// Up to ROWS rows: normed once per block into shared memory, then a warp per output over 16-byte pieces.
template <int FORMAT, int ROWS> DEV void linear_rows(const LinearArgs& a, u32 first) {
    const int values = FORMAT == OPERAND_F32 ? 4 : FORMAT == OPERAND_BF16 ? 8 : 16;
    SHARED(float, x);
    __shared__ float scratch[33];
    const u32 stride = a.w_stride;
    const u32 rows = min((u32)ROWS, a.rows - first);
    for (u32 r = 0; r < ROWS; r++) {
        const float* from = at<const float>(a.x) + (u64)(first + min(r, rows - 1)) * a.x_stride;
        const Moments m = row_moments(a.norm, from, a.k, scratch);
        for (u32 i = threadIdx.x; i < stride; i += blockDim.x)
            x[r * stride + i] = i < a.k && r < rows ? operand_value(a.norm, m, from, a.k, first + r, i) : 0.0f;
    }
    __syncthreads();
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const u32 pieces = stride / values;
    for (u32 i = blockIdx.x * warps + warp; i < a.n; i += gridDim.x * warps) {
        const u64 bytes = FORMAT == OPERAND_F32 ? 4 : FORMAT == OPERAND_BF16 ? 2 : 1;
        const uint4* w = at<const uint4>(a.w + (u64)i * stride * bytes);
        float sum[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) sum[r] = 0.0f;
#pragma unroll 4
        for (u32 p = lane; p < pieces; p += 32) {
            const uint4 piece = __ldg(w + p);
            if (FORMAT == OPERAND_F32) dot_f32<ROWS>(piece, x + p * values, stride, sum);
            else if (FORMAT == OPERAND_BF16) dot_bf16<ROWS>(piece, x + p * values, stride, sum);
            else dot_int8<ROWS>(piece, x + p * values, stride, sum);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float v = warp_sum(sum[r]);
            if (FORMAT == OPERAND_INT8) v *= at<const float>(a.scales)[i];
            if (lane == 0 && (u32)r < rows) put(a.store, first + r, i, v);
        }
    }
}

template <int FORMAT> DEV void linear_any(const LinearArgs& a) {
    const u32 first = blockIdx.y * FEW_ROWS;
    const u32 rows = min((u32)FEW_ROWS, a.rows - first);
    if (rows == 1) linear_rows<FORMAT, 1>(a, first);
    else if (rows == 2) linear_rows<FORMAT, 2>(a, first);
    else if (rows <= 4) linear_rows<FORMAT, 4>(a, first);
    else linear_rows<FORMAT, 8>(a, first);
}

KERNEL(linear_f32, LinearArgs, 256) { linear_any<OPERAND_F32>(a); }
KERNEL(linear_bf16, LinearArgs, 256) { linear_any<OPERAND_BF16>(a); }
KERNEL(linear_int8, LinearArgs, 256) { linear_any<OPERAND_INT8>(a); }
