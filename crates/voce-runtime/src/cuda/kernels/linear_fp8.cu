// What stands before and after the library's products of e4m3: rows quantised, and products scaled back.

// `x` is f32, or bf16 with what the product before left undone: its scales by row and by column, bias, activation.
struct QuantiseArgs {
    Norm norm;
    u64 x, out, scales, row_scales, col_scales;
    u32 x_stride, k, out_stride, narrow;
};

// Four-value pieces that a thread holds of a row.
#define QUANTISE_HELD 4

DEV float4 quantise_load(const QuantiseArgs& a, u32 row, u32 i, float scale) {
    const u64 place = (u64)row * a.x_stride + i;
    if (!a.narrow) return *at<const float4>(a.x + 4 * place);
    const float4 v = widen4(*at<const uint2>(a.x + 2 * place));
    if (!a.row_scales) return v;
    const float4 c = *at<const float4>(a.col_scales + 4 * (u64)i);
    return {v.x * (scale * c.x), v.y * (scale * c.y), v.z * (scale * c.z), v.w * (scale * c.w)};
}

// Four values as the product takes them.
DEV float4 quantise_four(const QuantiseArgs& a, const Moments& m, float4 v, u32 row, u32 i, float scale) {
    if (a.norm.kind == NORM_SWIGLU) {
        const float4 g = quantise_load(a, row, a.k + i, scale);
        return {v.x * sigmoid_roughly(v.x) * g.x, v.y * sigmoid_roughly(v.y) * g.y, v.z * sigmoid_roughly(v.z) * g.z,
                v.w * sigmoid_roughly(v.w) * g.w};
    }
    if (a.norm.kind == NORM_ACT) {
        if (a.norm.bias) {
            const float4 b = four(a.norm.bias, i);
            v = {v.x + b.x, v.y + b.y, v.z + b.z, v.w + b.w};
        }
        return {activate_roughly(a.norm.act, v.x), activate_roughly(a.norm.act, v.y), activate_roughly(a.norm.act, v.z),
                activate_roughly(a.norm.act, v.w)};
    }
    const float4 one = {1.0f, 1.0f, 1.0f, 1.0f};
    return apply_norm4(a.norm, m, v, a.norm.weight ? four(a.norm.weight, i) : one, row, i);
}

DEV float largest_of(float top, const float4& v) {
    return fmaxf(fmaxf(fmaxf(top, fabsf(v.x)), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}

// A block per row: norm or activation, the row's largest value, codes, zeros up to the stride. Threads hold a row of up to
// 16 values each; longer ones are read twice. Bound by memory.
KERNEL_DENSE(quantise, QuantiseArgs, 512, 2) {
    __shared__ float2 sums[32];
    __shared__ float scratch[33];
    const u32 row = blockIdx.x, pieces = a.k / 4, step = QUANTISE_HELD * blockDim.x;
    const bool moments = a.norm.kind == NORM_LAYER || a.norm.kind == NORM_RMS, held = pieces <= step;
    const float4 none = {0.0f, 0.0f, 0.0f, 0.0f};
    const float scale_before = a.row_scales ? at<const float>(a.row_scales)[row] : 1.0f;
    const float* x = at<const float>(a.x) + (u64)row * a.x_stride;
    Moments m = {0.0f, 1.0f};
    if (moments && !held) m = row_moments(a.norm, x, a.k, scratch);
    float4 v[QUANTISE_HELD];
    float top = 0.0f;
    for (u32 base = 0; base < pieces; base += step) {
#pragma unroll
        for (int h = 0; h < QUANTISE_HELD; h++) {
            const u32 piece = base + threadIdx.x + h * blockDim.x;
            v[h] = piece < pieces ? quantise_load(a, row, 4 * piece, scale_before) : none;
        }
        if (moments && held) m = held_moments(a.norm, v, a.norm.kind == NORM_LAYER ? x[0] : 0.0f, a.k, sums);
#pragma unroll
        for (int h = 0; h < QUANTISE_HELD; h++) {
            const u32 piece = base + threadIdx.x + h * blockDim.x;
            if (piece < pieces) v[h] = quantise_four(a, m, v[h], row, 4 * piece, scale_before);
            top = largest_of(top, v[h]);
        }
    }
    top = block_max(top, scratch);
    const bool some = top > E4M3_TINY;
    const float inverse = some ? E4M3_MAX / top : 0.0f;
    if (threadIdx.x == 0) at<float>(a.scales)[row] = some ? top / E4M3_MAX : 0.0f;
    u32* out = at<u32>(a.out + (u64)row * a.out_stride);
    for (u32 base = 0; base < a.out_stride / 4; base += step) {
#pragma unroll
        for (int h = 0; h < QUANTISE_HELD; h++) {
            const u32 piece = base + threadIdx.x + h * blockDim.x;
            if (piece >= a.out_stride / 4) continue;
            float4 y = v[h];
            if (!held) {
                y = none;
                if (piece < pieces) {
                    y = quantise_load(a, row, 4 * piece, scale_before);
                    y = quantise_four(a, m, y, row, 4 * piece, scale_before);
                }
            }
            out[piece] = to_e4m3(float4{y.x * inverse, y.y * inverse, y.z * inverse, y.w * inverse});
        }
    }
}

struct ScaledArgs {
    Store store;
    u64 products, row_scales, col_scales;
    u32 stride, n, rows, narrow, fours, pad;
};

// Products in f32 or bf16 to their place, four columns a thread; `fours` is whether the place takes four at once. Bound by
// memory.
KERNEL(epilogue_fp8, ScaledArgs, 256) {
    const u32 pieces = (a.n + 3) / 4;
    const u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u32 row = (u32)(index / pieces), i = (u32)(index % pieces) * 4;
    if (row >= a.rows) return;
    const u64 from = (u64)row * a.stride + i;
    float4 v = a.narrow ? widen4(*at<const uint2>(a.products + 2 * from)) : *at<const float4>(a.products + 4 * from);
    const float r = at<const float>(a.row_scales)[row];
    const float4 c = *at<const float4>(a.col_scales + 4 * (u64)i);
    v = {v.x * (r * c.x), v.y * (r * c.y), v.z * (r * c.z), v.w * (r * c.w)};
    if (a.fours) {
        put4(a.store, row, i, v);
        return;
    }
    put(a.store, row, i, v.x);
    if (i + 1 < a.n) put(a.store, row, i + 1, v.y);
    if (i + 2 < a.n) put(a.store, row, i + 2, v.z);
    if (i + 3 < a.n) put(a.store, row, i + 3, v.w);
}
