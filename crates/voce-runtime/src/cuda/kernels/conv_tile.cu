// Convolutions in tiles of rows, by products of warps.

// A warp's part of a product: 16 M rows in shared memory by 16 outputs, whose weights are there too where they are NEAR. Else
// they come from the nearest cache, by whole pieces, and rows are dealt out. Row tiles from `tiles` on are not there.
template <int WIDTH, int M, bool NEAR>
DEV void tile_product(float (&d)[M][2][4], const bf16* rows, u32 stride, u32 tiles, const bf16* w, u32 w_stride) {
    if constexpr (NEAR) {
#pragma unroll 4
        for (u32 k = 0; k < WIDTH; k += 16) {
            uint2 b, c;
            right_pair_of(w, w_stride, k, b, c);
#pragma unroll
            for (u32 m = 0; m < M; m++) {
                if (m >= tiles) continue;
                const uint4 x = left_of(rows + 16 * m * stride, stride, k);
                mma(d[m][0], x, b);
                mma(d[m][1], x, c);
            }
        }
    } else {
        const u32 lane = threadIdx.x % 32;
        const uint4* b = reinterpret_cast<const uint4*>(w + lane / 4 * w_stride) + lane % 4;
        const uint4* c = b + w_stride;
#pragma unroll 2
        for (u32 k = 0; k < WIDTH; k += 64, b += 8, c += 8) {
            const uint4 near[2] = {b[0], c[0]}, far[2] = {b[4], c[4]};
#pragma unroll
            for (u32 j = 0; j < 4; j++)
#pragma unroll
                for (u32 m = 0; m < M; m++) {
                    if (m >= tiles) continue;
                    const uint4 x = left_of(rows + 16 * m * stride, stride, k + 16 * j);
                    mma(d[m][0], x, {word_of(near[0], j), word_of(far[0], j)});
                    mma(d[m][1], x, {word_of(near[1], j), word_of(far[1], j)});
                }
        }
    }
}

// Output rows of a tile of a strided convolution, and its outputs.
#define STRIDED_ROWS 128
#define STRIDED_OUTPUTS 128

// A convolution with ELU before it and a stride: a tile of rows per block. Each value is read, activated and narrowed once. Rows
// that lie a stride apart are neighbours in shared memory, so that the taps of an output row are some of each kind. Bound by
// reading rows and weights from the farther cache.
template <int WIDTH> DEV void conv_strided_of(const ThinConvArgs& a) {
    constexpr u32 M = STRIDED_ROWS / 16, STRIDE = WIDTH + 8;
    SHARED(bf16, rows);  // [stride][kind][STRIDE]
    const Stream& s = a.stream;
    if (blockIdx.x >= a.row_blocks) {
        stream_keep(s, (blockIdx.x - a.row_blocks) * blockDim.x + threadIdx.x);
        return;
    }
    const u32 skip = blockIdx.x % a.tiles * STRIDED_ROWS, begin = blockIdx.x / a.tiles * s.unit + skip;
    const u32 valid = min((u32)STRIDED_ROWS, s.unit - skip), tiles = (valid + 15) / 16;
    const StreamSpan p = span_of(s, begin);
    const u32 stride = a.shape.stride, more = a.shape.taps - stride;
    const u32 kind = STRIDED_ROWS + (more + stride - 1) / stride;
    narrow_rows8<WIDTH, ACT_ELU, true>(s, p, (begin - p.first_out) * stride, valid * stride + more, 16 * tiles * stride + more,
                                       [&](u32 row) { return rows + (row % stride * kind + row / stride) * STRIDE; });
    __syncthreads();
    const u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, n = threadIdx.x / 32 * 16;
    float d[M][2][4] = {};
    for (u32 tap = 0; tap < a.shape.taps; tap++) {
        const bf16* w = at<const bf16>(a.w) + (u64)n * a.w_stride + tap * WIDTH;
        tile_product<WIDTH, M, false>(d, rows + (tap % stride * kind + tap / stride) * STRIDE, STRIDE, tiles, w, a.w_stride);
    }
#pragma unroll
    for (u32 j = 0; j < 2; j++) {
        const u32 i = n + 8 * j + 2 * t;
        float2 bias = {0.0f, 0.0f};
        if (a.store.bias) bias = *at<const float2>(a.store.bias + 4 * (u64)i);
        float* out = at<float>(a.store.out) + (u64)begin * a.store.out_stride + i;
#pragma unroll
        for (u32 e = 0; e < 2 * M; e++) {
            const u32 row = 16 * (e / 2) + g + e % 2 * 8;
            const float* v = d[e / 2][j] + e % 2 * 2;
            if (row < valid) *reinterpret_cast<float2*>(out + row * a.store.out_stride) = {v[0] + bias.x, v[1] + bias.y};
        }
    }
}
KERNEL_DENSE(conv_strided_64, ThinConvArgs, 256, 2) { conv_strided_of<64>(a); }
