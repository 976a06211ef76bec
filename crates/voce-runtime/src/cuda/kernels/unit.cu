// Residual units of a codec in one pass: x + second(snake(first(snake(x)))), where `first` has several taps, `second` has one, and
// all rows are as wide as x.

struct UnitArgs {
    ResidualArgs block;
    u64 rate, gain;
};

// A tile of rows per block: each value is read, activated and narrowed once, hidden rows take the place of the others, and weights
// come to shared memory a chunk of CHUNK inputs at a time, the next one on its way meanwhile. A warp has TALL tiles of 16 rows and
// WIDE of 8 outputs: the more, the fewer reads of shared memory for a product.
// Bound by the tensor cores and by shared memory, and for narrow rows by reading and writing them.
template <int WIDTH, int ROWS, int CHUNK, int TALL, int WIDE> DEV void unit(const UnitArgs& of) {
    const ResidualArgs& a = of.block;
    constexpr u32 SIDE = WIDTH / (8 * WIDE), THREADS = 32 * SIDE * (ROWS / (16 * TALL)), PIECES = WIDTH * CHUNK / 8 / THREADS;
    // Eight values more than a row has: the rows of a fragment lie in different banks.
    constexpr u32 STRIDE = WIDTH + 8, WEIGHTS = CHUNK + 8;
    static_assert(WIDTH % CHUNK == 0 && WIDTH * CHUNK / 8 % THREADS == 0, "every thread has as many pieces of a chunk");
    SHARED(bf16, rows);
    const Stream& s = a.stream;
    if (blockIdx.x >= a.blocks) {
        stream_keep(s, (blockIdx.x - a.blocks) * blockDim.x + threadIdx.x);
        return;
    }
    bf16* weights = rows + (ROWS + s.history) * STRIDE;
    const u32 before = a.taps * (WIDTH / CHUNK), chunks = before + WIDTH / CHUNK;
    // A chunk on its way to one of its two places.
    const auto ask = [&](u32 chunk) {
        if (chunk >= chunks) return;
        const bf16* from = chunk < before ? at<const bf16>(a.first) + chunk * CHUNK : at<const bf16>(a.second) + (chunk - before) * CHUNK;
        const u32 stride = chunk < before ? a.first_stride : a.second_stride;
        bf16* to = weights + chunk % 2 * (WIDTH * WEIGHTS);
#pragma unroll
        for (u32 e = 0; e < PIECES; e++) {
            const u32 p = threadIdx.x + THREADS * e, row = p / (CHUNK / 8), i = p % (CHUNK / 8) * 8;
            copy16(to + row * WEIGHTS + i, from + row * stride + i, true);
        }
        copies_end();
    };
    ask(0);
    const u32 skip = blockIdx.x % a.tiles * ROWS, begin = blockIdx.x / a.tiles * s.unit + skip;
    const u32 valid = min((u32)ROWS, s.unit - skip), tiles = (valid + 15) / 16;
    const StreamSpan p = span_of(s, begin);
    const u32 local = begin - p.first_out;
    narrow_rows8<WIDTH, ACT_SNAKE>(s, p, local, valid + s.history, 16 * tiles + s.history, [&](u32 row) { return rows + row * STRIDE; });
    copies_wait<0>();
    __syncthreads();
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const u32 m = warp / SIDE * TALL, n = warp % SIDE * (8 * WIDE), here = m < tiles ? min(tiles - m, (u32)TALL) : 0;
    float d[TALL][WIDE][4];
    const auto clear = [&] {
#pragma unroll
        for (int r = 0; r < TALL; r++)
#pragma unroll
            for (int j = 0; j < WIDE; j++) d[r][j][0] = d[r][j][1] = d[r][j][2] = d[r][j][3] = 0.0f;
    };
    // Meets a chunk of weights with columns of rows that begin at `from`, then brings the next one.
    const auto multiply = [&](u32 chunk, const bf16* from) {
        ask(chunk + 1);
        const bf16* w = weights + chunk % 2 * (WIDTH * WEIGHTS) + n * WEIGHTS;
#pragma unroll
        for (u32 k = 0; k < CHUNK; k += 16) {
            uint4 x[TALL];
#pragma unroll
            for (u32 r = 0; r < TALL; r++) x[r] = left_of(from + 16 * r * STRIDE, STRIDE, k);
#pragma unroll
            for (u32 j = 0; j < WIDE; j += 2) {
                uint2 b, c;
                right_pair_of(w + 8 * j * WEIGHTS, WEIGHTS, k, b, c);
#pragma unroll
                for (u32 r = 0; r < TALL; r++) mma(d[r][j], x[r], b), mma(d[r][j + 1], x[r], c);
            }
        }
        copies_wait<0>();
        __syncthreads();
    };
    clear();
    for (u32 chunk = 0; chunk < before; chunk++) {
        const u32 tap = chunk / (WIDTH / CHUNK), column = chunk % (WIDTH / CHUNK) * CHUNK;
        multiply(chunk, rows + (16 * m + tap * a.dilation) * STRIDE + column);
    }
#pragma unroll
    for (u32 j = 0; j < WIDE; j++) {
        const u32 i = n + 8 * j + 2 * t;
        const float2 rate = *at<const float2>(of.rate + 4 * (u64)i), gain = *at<const float2>(of.gain + 4 * (u64)i);
        float2 bias = {0.0f, 0.0f};
        if (a.first_bias) bias = *at<const float2>(a.first_bias + 4 * (u64)i);
#pragma unroll
        for (u32 r = 0; r < TALL; r++) {
            if (r >= here) continue;
            const float* v = d[r][j];
            bf16* to = rows + (16 * (m + r) + g) * STRIDE + i;
            *reinterpret_cast<u32*>(to) = narrow2(snaked(v[0] + bias.x, rate.x, gain.x), snaked(v[1] + bias.y, rate.y, gain.y));
            *reinterpret_cast<u32*>(to + 8 * STRIDE) = narrow2(snaked(v[2] + bias.x, rate.x, gain.x), snaked(v[3] + bias.y, rate.y, gain.y));
        }
    }
    __syncthreads();
    clear();
    for (u32 chunk = before; chunk < chunks; chunk++) multiply(chunk, rows + 16 * m * STRIDE + (chunk - before) * CHUNK);
    const float* x = at<const float>(s.x) + (u64)(p.first + local) * WIDTH;
    float* out = at<float>(a.out) + (u64)begin * WIDTH;
#pragma unroll
    for (u32 j = 0; j < WIDE; j++) {
        const u32 i = n + 8 * j + 2 * t;
        float2 bias = {0.0f, 0.0f};
        if (a.second_bias) bias = *at<const float2>(a.second_bias + 4 * (u64)i);
#pragma unroll
        for (u32 e = 0; e < 2 * TALL; e++) {
            const u32 row = 16 * (m + e / 2) + g + e % 2 * 8;
            if (e / 2 >= here || row >= valid) continue;
            const float2 old = *reinterpret_cast<const float2*>(x + row * WIDTH + i);
            const float* v = d[e / 2][j] + e % 2 * 2;
            *reinterpret_cast<float2*>(out + row * WIDTH + i) = {old.x + v[0] + bias.x, old.y + v[1] + bias.y};
        }
    }
}

KERNEL_DENSE(unit_96, UnitArgs, 192, 2) { unit<96, 128, 96, 4, 4>(a); }
KERNEL_DENSE(unit_192, UnitArgs, 192, 2) { unit<192, 128, 32, 4, 8>(a); }
// Few rows: short tiles, so that all multiprocessors have one, and larger chunks, of which fewer are waited for.
KERNEL_DENSE(unit_96_few, UnitArgs, 192, 2) { unit<96, 16, 96, 1, 2>(a); }
KERNEL_DENSE(unit_96_some, UnitArgs, 192, 2) { unit<96, 32, 96, 2, 2>(a); }
KERNEL_DENSE(unit_192_few, UnitArgs, 384, 1) { unit<192, 16, 192, 1, 2>(a); }
KERNEL_DENSE(unit_192_some, UnitArgs, 384, 1) { unit<192, 32, 192, 2, 2>(a); }
KERNEL_DENSE(unit_384, UnitArgs, 384, 1) { unit<384, 64, 32, 4, 4>(a); }
