// Residual blocks of a codec in one pass: x + second(elu(first(elu(x)))), where `first` has several taps and half as
// many outputs as rows have values, and `second` has one tap.

// Rows of a tile times values of a hidden row; rows of a tile where there are few.
#define RESIDUAL_VALUES 8192
#define RESIDUAL_FEW 16
#define RESIDUAL_THREADS 256

struct ResidualArgs {
    Stream stream;
    u64 out, first, first_bias, second, second_bias;
    u32 first_stride, second_stride, taps, dilation, tiles, blocks;
};

// Width up to which a block keeps the weights in shared memory.
#define RESIDUAL_NEAR 64

// A tile of rows per block. Each value is read, activated and narrowed once; hidden rows never leave the block. Bound by
// reading and writing the rows, or by the latency of the weights where there are few.
template <int WIDTH, int ROWS> DEV void residual(const ResidualArgs& a) {
    constexpr u32 HIDDEN = WIDTH / 2, PAIRS = HIDDEN / 16, M = ROWS < 64 ? ROWS / 16 : 4;
    // Eight values more than a row has: the rows of a fragment lie in different banks.
    constexpr u32 STRIDE = WIDTH + 8, HIDDEN_STRIDE = HIDDEN + 8;
    SHARED(bf16, rows);
    const Stream& s = a.stream;
    if (blockIdx.x >= a.blocks) {
        stream_keep(s, (blockIdx.x - a.blocks) * blockDim.x + threadIdx.x);
        return;
    }
    const u32 skip = blockIdx.x % a.tiles * ROWS, begin = blockIdx.x / a.tiles * s.unit + skip;
    const u32 valid = min((u32)ROWS, s.unit - skip), tiles = (valid + 15) / 16;
    const StreamSpan p = span_of(s, begin);
    const u32 local = begin - p.first_out;
    bf16* hidden = rows + (ROWS + s.history) * STRIDE;
    // Weights of both products, by outputs.
    constexpr bool NEAR = WIDTH <= RESIDUAL_NEAR;
    const u32 first_stride = NEAR ? a.taps * WIDTH + 8 : a.first_stride, second_stride = NEAR ? HIDDEN_STRIDE : a.second_stride;
    const bf16* first = at<const bf16>(a.first);
    const bf16* second = at<const bf16>(a.second);
    if constexpr (NEAR) {
        bf16* near_first = hidden + ROWS * HIDDEN_STRIDE;
        bf16* near_second = near_first + HIDDEN * first_stride;
        const u32 pieces = a.taps * (WIDTH / 8);
        for (u32 e = threadIdx.x; e < HIDDEN * pieces; e += RESIDUAL_THREADS)
            copy16(near_first + e / pieces * first_stride + e % pieces * 8, first + e / pieces * a.first_stride + e % pieces * 8, true);
        for (u32 e = threadIdx.x; e < WIDTH * (HIDDEN / 8); e += RESIDUAL_THREADS) {
            const u32 n = e / (HIDDEN / 8), i = e % (HIDDEN / 8) * 8;
            copy16(near_second + n * second_stride + i, second + n * a.second_stride + i, true);
        }
        copies_end();
        first = near_first, second = near_second;
    }
    narrow_rows8<WIDTH, ACT_ELU, !NEAR>(s, p, local, valid + s.history, 16 * tiles + s.history, [&](u32 row) { return rows + row * STRIDE; });
    copies_wait<0>();
    __syncthreads();
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    {
        const u32 m = warp / PAIRS * M, n = warp % PAIRS * 16;
        const u32 here = m < tiles ? tiles - m : 0;
        float d[M][2][4] = {};
        if (here > 0) {
            const bf16* w = first + n * first_stride;
            for (u32 tap = 0; tap < a.taps; tap++)
                tile_product<WIDTH, M, NEAR>(d, rows + (16 * m + tap * a.dilation) * STRIDE, STRIDE, here, w + tap * WIDTH,
                                                 first_stride);
        }
#pragma unroll
        for (u32 j = 0; j < 2; j++) {
            const u32 i = n + 8 * j + 2 * t;
            float2 bias = {0.0f, 0.0f};
            if (a.first_bias) bias = *at<const float2>(a.first_bias + 4 * (u64)i);
#pragma unroll
            for (u32 r = 0; r < M; r++) {
                if (r >= here) continue;
                const float* v = d[r][j];
                bf16* to = hidden + (16 * (m + r) + g) * HIDDEN_STRIDE + (NEAR ? i : dealt(i));
                *reinterpret_cast<u32*>(to) = elu_narrow2(v[0] + bias.x, v[1] + bias.y);
                *reinterpret_cast<u32*>(to + 8 * HIDDEN_STRIDE) = elu_narrow2(v[2] + bias.x, v[3] + bias.y);
            }
        }
    }
    __syncthreads();
    const float* x = at<const float>(s.x) + (u64)(p.first + local) * WIDTH;
    float* out = at<float>(a.out) + (u64)begin * WIDTH;
    for (u32 part = warp; part < ROWS / 16 / M * 2 * PAIRS; part += 8) {
        const u32 m = part / (2 * PAIRS) * M, n = part % (2 * PAIRS) * 16;
        if (m >= tiles) continue;
        float d[M][2][4] = {};
        const bf16* w = second + n * second_stride;
        tile_product<HIDDEN, M, NEAR>(d, hidden + 16 * m * HIDDEN_STRIDE, HIDDEN_STRIDE, tiles - m, w, second_stride);
#pragma unroll
        for (u32 j = 0; j < 2; j++) {
            const u32 i = n + 8 * j + 2 * t;
            float2 bias = {0.0f, 0.0f};
            if (a.second_bias) bias = *at<const float2>(a.second_bias + 4 * (u64)i);
            // All are asked for before the first is written.
            float2 before[2 * M];
#pragma unroll
            for (u32 e = 0; e < 2 * M; e++) {
                const u32 row = 16 * (m + e / 2) + g + e % 2 * 8;
                before[e] = {0.0f, 0.0f};
                if (row < valid) before[e] = *reinterpret_cast<const float2*>(x + row * WIDTH + i);
            }
#pragma unroll
            for (u32 e = 0; e < 2 * M; e++) {
                const u32 row = 16 * (m + e / 2) + g + e % 2 * 8;
                const float* v = d[e / 2][j] + e % 2 * 2;
                const float2 sum = {before[e].x + v[0] + bias.x, before[e].y + v[1] + bias.y};
                if (row < valid) *reinterpret_cast<float2*>(out + row * WIDTH + i) = sum;
            }
        }
    }
}

KERNEL_DENSE(residual_32, ResidualArgs, RESIDUAL_THREADS, 3) { residual<32, RESIDUAL_VALUES / 16>(a); }
KERNEL_DENSE(residual_64, ResidualArgs, RESIDUAL_THREADS, 3) { residual<64, RESIDUAL_VALUES / 32>(a); }
KERNEL_DENSE(residual_128, ResidualArgs, RESIDUAL_THREADS, 3) { residual<128, RESIDUAL_VALUES / 64>(a); }
KERNEL_DENSE(residual_256, ResidualArgs, RESIDUAL_THREADS, 3) { residual<256, RESIDUAL_VALUES / 128>(a); }
KERNEL(residual_few_32, ResidualArgs, RESIDUAL_THREADS) { residual<32, RESIDUAL_FEW>(a); }
KERNEL(residual_few_64, ResidualArgs, RESIDUAL_THREADS) { residual<64, RESIDUAL_FEW>(a); }
KERNEL(residual_few_128, ResidualArgs, RESIDUAL_THREADS) { residual<128, RESIDUAL_FEW>(a); }
KERNEL(residual_few_256, ResidualArgs, RESIDUAL_THREADS) { residual<256, RESIDUAL_FEW>(a); }
