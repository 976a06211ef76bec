// Convolutions over streams: each output row sees rows of its stream's past and of what is new.
//
// The past of a slot is there twice. A kernel reads one half and, in blocks of its own, writes what the stream will
// need next into the other, so one launch does both; which half is which is in the table of spans.

struct Stream {
    u64 x, past, spans, rows, rate, gain;
    u32 width, history, count, pre, replicate, unit;
};

// A span's place in the output and the input, its state's place, past rows that are not known yet (a stream that has
// just begun), and the row that the first tap of its first output sees.
struct StreamSpan { u32 first_out, first, rows, slot, half, blank, origin, pad; };

// The span that an output row belongs to, as the table of units of rows says.
DEV StreamSpan span_of(const Stream& s, u32 row) {
    return at<const StreamSpan>(s.spans)[at<const u32>(s.rows)[row / s.unit]];
}

// Where a row of a stream is, past rows first; nowhere for a row of zeros. New rows are yet to be activated.
struct StreamRow { const float* at; u32 act; };
DEV StreamRow stream_row(const Stream& s, const StreamSpan& p, u32 r) {
    if (r >= s.history) {
        r -= s.history;
        if (r >= p.rows) return {nullptr, ACT_NONE};
        return {at<const float>(s.x) + (u64)(p.first + r) * s.width, s.pre};
    }
    if (r >= p.blank) {
        const u64 row = (u64)(2 * p.slot + p.half) * s.history + r;
        return {at<const float>(s.past) + row * s.width, ACT_NONE};
    }
    if (s.replicate && p.rows > 0) return {at<const float>(s.x) + (u64)p.first * s.width, s.pre};
    return {nullptr, ACT_NONE};
}
// ELU of values that become bf16, a little less exact than `expm1f`: to a 6000th of the value. No thread takes a way of its own.
DEV float elu_roughly(float x) {
#ifdef VOCE_EMULATED
    const float power = expf(x);
#else
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(1.44269504f * x));
#endif
    const float below = x > -0.03125f ? fmaf(0.5f * x, x, x) : power - 1.0f;
    return x > 0.0f ? x : below;
}
DEV u32 elu_narrow2(float x, float y) { return narrow2(elu_roughly(x), elu_roughly(y)); }
// Four values of a row of a stream, activated; `i` is the first one's column.
DEV float4 stream4(const Stream& s, const StreamRow& r, const float4& v, u32 i) {
    if (r.act != ACT_SNAKE) return activate4(r.act, v);
    const float4 rate = *at<const float4>(s.rate + 4 * (u64)i), gain = *at<const float4>(s.gain + 4 * (u64)i);
    return {snaked(v.x, rate.x, gain.x), snaked(v.y, rate.y, gain.y), snaked(v.z, rate.z, gain.z), snaked(v.w, rate.w, gain.w)};
}
DEV float stream_value(const Stream& s, const StreamRow& row, u32 i) {
    if (!row.at) return 0.0f;
    if (row.act == ACT_SNAKE) return snaked(row.at[i], at<const float>(s.rate)[i], at<const float>(s.gain)[i]);
    return activate(row.act, row.at[i]);
}

// Four values of the past rows that come next; `StreamArgs::keep_blocks` counts them.
DEV void stream_keep4(const Stream& s, u32 index) {
    const u32 row_pieces = s.width / 4, kept = s.history * row_pieces;
    const u32 span = index / kept, h = index % kept / row_pieces, i = index % row_pieces * 4;
    if (span >= s.count) return;
    const StreamSpan p = at<const StreamSpan>(s.spans)[span];
    if (p.rows == 0) return;
    const u64 row = (u64)(2 * p.slot + (p.half ^ 1)) * s.history + h;
    const StreamRow r = stream_row(s, p, h + p.rows);
    float4 v = {0.0f, 0.0f, 0.0f, 0.0f};
    if (r.at) v = *reinterpret_cast<const float4*>(r.at + i);
    *reinterpret_cast<float4*>(at<float>(s.past) + row * s.width + i) = stream4(s, r, v, i);
}

// One value of the past rows that come next, or four where rows are whole fours.
DEV void stream_keep(const Stream& s, u32 index) {
    if (s.width % 4 == 0) return stream_keep4(s, index);
    const u32 kept = s.history * s.width;
    const u32 span = index / kept, h = index % kept / s.width, i = index % s.width;
    if (span >= s.count) return;
    const StreamSpan p = at<const StreamSpan>(s.spans)[span];
    if (p.rows == 0) return;
    const u64 row = (u64)(2 * p.slot + (p.half ^ 1)) * s.history + h;
    at<float>(s.past)[row * s.width + i] = stream_value(s, stream_row(s, p, h + p.rows), i);
}

// The shape of a convolution over a stream.
struct Taps { u32 taps, stride, dilation, pad; };

// Four of the values under the taps of an output row, whose first tap is at row `begin`; zeros past the last tap.
DEV float4 under_taps(const Stream& s, const StreamSpan& p, const Taps& t, u32 begin, u32 i) {
    if (i >= t.taps * s.width) return {0.0f, 0.0f, 0.0f, 0.0f};
    if (s.width % 4 == 0) {
        const StreamRow r = stream_row(s, p, begin + i / s.width * t.dilation);
        if (!r.at) return {0.0f, 0.0f, 0.0f, 0.0f};
        return stream4(s, r, *reinterpret_cast<const float4*>(r.at + i % s.width), i % s.width);
    }
    float part[4];
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
        const u32 tap = (i + j) / s.width;
        part[j] = 0.0f;
        if (tap < t.taps) part[j] = stream_value(s, stream_row(s, p, begin + tap * t.dilation), (i + j) % s.width);
    }
    return {part[0], part[1], part[2], part[3]};
}

// Eight values of a row of a stream, from column `i` on, as they lie there: several are asked for before the first is used.
struct Row8 { StreamRow r; float4 v, w; };
DEV Row8 row8(const StreamRow& r, u32 i) {
    const float4 none = {0.0f, 0.0f, 0.0f, 0.0f};
    if (!r.at) return {r, none, none};
    return {r, *reinterpret_cast<const float4*>(r.at + i), *reinterpret_cast<const float4*>(r.at + i + 4)};
}
// They, activated, as bf16. Where ACT is an activation, it is known to be that of new rows.
#define ACT_ANY 101
template <u32 ACT> DEV uint4 narrow8(const Stream& s, const Row8& x, u32 i) {
    const float4 v = x.v, w = x.w;
    if (x.r.act == ACT_NONE) return {narrow2(v.x, v.y), narrow2(v.z, v.w), narrow2(w.x, w.y), narrow2(w.z, w.w)};
    if (ACT == ACT_ELU || (ACT == ACT_ANY && x.r.act == ACT_ELU))
        return {elu_narrow2(v.x, v.y), elu_narrow2(v.z, v.w), elu_narrow2(w.x, w.y), elu_narrow2(w.z, w.w)};
    const StreamRow r = {x.r.at, ACT == ACT_ANY ? x.r.act : ACT};
    const float4 a = stream4(s, r, v, i), b = stream4(s, r, w, i + 4);
    return {narrow2(a.x, a.y), narrow2(a.z, a.w), narrow2(b.x, b.y), narrow2(b.z, b.w)};
}
// Rows that a thread asks for at once.
#define ROWS_AHEAD 4

// Where a pair of values of a row is from its value `i` on, if the row is dealt out: of every 64 values `left_of` then gives a lane
// those of pieces t and t + 4, two of each at a time, and the other operand's lanes can read these pieces whole.
DEV u32 dealt(u32 i) { return i / 64 * 64 + i % 8 * 8 + i % 64 / 32 * 8 + i % 32 / 8 * 2; }

// `count` rows of WIDTH values from row `first` of a stream on to their places in shared memory, activated, as bf16; zeros from row
// `valid` on. They may be dealt out.
template <int WIDTH, u32 ACT, bool DEALT = false, class Place>
DEV void narrow_rows8(const Stream& s, const StreamSpan& p, u32 first, u32 valid, u32 count, Place place) {
    for (u32 e0 = threadIdx.x; e0 < count * (WIDTH / 8); e0 += ROWS_AHEAD * blockDim.x) {
        Row8 x[ROWS_AHEAD];
#pragma unroll
        for (u32 u = 0; u < ROWS_AHEAD; u++) {
            const u32 e = e0 + u * blockDim.x, row = e / (WIDTH / 8);
            x[u] = row8(row < valid ? stream_row(s, p, first + row) : StreamRow{nullptr, ACT_NONE}, e % (WIDTH / 8) * 8);
        }
#pragma unroll
        for (u32 u = 0; u < ROWS_AHEAD; u++) {
            const u32 e = e0 + u * blockDim.x, row = e / (WIDTH / 8), i = e % (WIDTH / 8) * 8;
            if (row >= count) continue;
            const uint4 v = narrow8<ACT>(s, x[u], i);
            bf16* to = place(row);
            if constexpr (DEALT) {
#pragma unroll
                for (u32 j = 0; j < 4; j++) *reinterpret_cast<u32*>(to + dealt(i + 2 * j)) = word_of(v, j);
            } else {
                *reinterpret_cast<uint4*>(to + i) = v;
            }
        }
    }
}

struct ConvArgs {
    Stream stream;
    Taps shape;
    u64 out;
    u32 first, rows, out_stride, narrow, lanes, row_blocks;
};

// The operand rows of a product: the rows under all taps side by side, zeros up to the stride. Bound by the writes.
KERNEL(conv_operand, ConvArgs, 256) {
    const Stream& s = a.stream;
    if (blockIdx.x >= a.row_blocks) {
        stream_keep(s, (blockIdx.x - a.row_blocks) * blockDim.x + threadIdx.x);
        return;
    }
    const u32 row = blockIdx.x * (blockDim.x / a.lanes) + threadIdx.x / a.lanes;
    if (row >= a.rows) return;
    const StreamSpan p = span_of(s, a.first + row);
    const u32 begin = (a.first + row - p.first_out) * a.shape.stride;
    for (u32 i = 4 * (threadIdx.x % a.lanes); i < a.out_stride; i += 4 * a.lanes) {
        const float4 v = under_taps(s, p, a.shape, begin, i);
        const u64 to = (u64)row * a.out_stride + i;
        if (a.narrow) *at<uint2>(a.out + 2 * to) = {narrow2(v.x, v.y), narrow2(v.z, v.w)};
        else *at<float4>(a.out + 4 * to) = v;
    }
}

// The same in bf16 for rows of whole eights: `lanes` threads take eight values each, tap after tap.
KERNEL_DENSE(conv_operand8, ConvArgs, 256, 4) {
    const Stream& s = a.stream;
    if (blockIdx.x >= a.row_blocks) {
        stream_keep(s, (blockIdx.x - a.row_blocks) * blockDim.x + threadIdx.x);
        return;
    }
    const u32 row = blockIdx.x * (blockDim.x / a.lanes) + threadIdx.x / a.lanes;
    if (row >= a.rows) return;
    const StreamSpan p = span_of(s, a.first + row);
    const u32 begin = (a.first + row - p.first_out) * a.shape.stride;
    bf16* out = at<bf16>(a.out) + (u64)row * a.out_stride;
    for (u32 i = 8 * (threadIdx.x % a.lanes); i < s.width; i += 8 * a.lanes) {
        for (u32 tap0 = 0; tap0 < a.shape.taps; tap0 += ROWS_AHEAD) {
            Row8 x[ROWS_AHEAD];
#pragma unroll
            for (u32 u = 0; u < ROWS_AHEAD; u++) {
                const u32 tap = tap0 + u;
                x[u] = row8(tap < a.shape.taps ? stream_row(s, p, begin + tap * a.shape.dilation) : StreamRow{nullptr, ACT_NONE}, i);
            }
#pragma unroll
            for (u32 u = 0; u < ROWS_AHEAD; u++)
                if (tap0 + u < a.shape.taps) *reinterpret_cast<uint4*>(out + (tap0 + u) * s.width + i) = narrow8<ACT_ANY>(s, x[u], i);
        }
    }
}

struct ThinConvArgs {
    Stream stream;
    Store store;
    Taps shape;
    u64 w;
    u32 rows, n, w_stride, narrow, row_blocks, tiles;
};

// A convolution to few outputs, to samples above all: a warp per output row multiplies the rows where they are.
// Bound by reading the rows once per output from the nearest cache.
KERNEL(conv_thin, ThinConvArgs, 256) {
    const Stream& s = a.stream;
    if (blockIdx.x >= a.row_blocks) {
        stream_keep(s, (blockIdx.x - a.row_blocks) * blockDim.x + threadIdx.x);
        return;
    }
    const u32 row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= a.rows) return;
    const StreamSpan p = span_of(s, row);
    const u32 begin = (row - p.first_out) * a.shape.stride;
    for (u32 o = 0; o < a.n; o++) {
        float sum = 0.0f;
        for (u32 i = 4 * lane; i < a.w_stride; i += 4 * 32) {
            const float4 v = under_taps(s, p, a.shape, begin, i);
            const u64 from = (u64)o * a.w_stride + i;
            if (a.narrow) {
                const uint2 w = *at<const uint2>(a.w + 2 * from);
                sum += v.x * low(w.x) + v.y * high(w.x) + v.z * low(w.y) + v.w * high(w.y);
            } else {
                const float4 w = *at<const float4>(a.w + 4 * from);
                sum += v.x * w.x + v.y * w.y + v.z * w.z + v.w * w.w;
            }
        }
        sum = warp_sum(sum);
        if (lane == 0) put(a.store, row, o, sum);
    }
}

// Rows of a tile.
#define LINE_ROWS 256

// A convolution to one output, stride 1: a tile of rows per block, `width / 4 / PIECES` threads per row. Each value is read and
// activated once and meets the weights of all taps, up to TAPS, which are in shared memory: registers are for rows under way.
// `part` has what each row gives each tap. Bound by the reads.
template <int PIECES, int TAPS> DEV void conv_line_of(const ThinConvArgs& a) {
    SHARED(float, w);  // [TAPS][width]
    const Stream& s = a.stream;
    float* part = w + TAPS * s.width;
    if (blockIdx.x >= a.row_blocks) {
        stream_keep(s, (blockIdx.x - a.row_blocks) * blockDim.x + threadIdx.x);
        return;
    }
    const u32 skip = blockIdx.x % a.tiles * LINE_ROWS, begin = blockIdx.x / a.tiles * s.unit + skip;
    const u32 valid = min((u32)LINE_ROWS, s.unit - skip), seen = valid + s.history;
    const StreamSpan p = span_of(s, begin);
    const u32 local = begin - p.first_out;
    const u32 lanes = s.width / (4 * PIECES), i = threadIdx.x % lanes * 4, rows = blockDim.x / lanes;
    for (u32 e = threadIdx.x; e < TAPS * s.width; e += blockDim.x) {
        const bool there = e < a.shape.taps * s.width;
        w[e] = !there ? 0.0f : a.narrow ? widen(at<const bf16>(a.w)[e]) : at<const float>(a.w)[e];
    }
    __syncthreads();
    for (u32 first = 0; first < seen; first += rows) {
        const u32 row = first + threadIdx.x / lanes;
        const StreamRow r = row < seen ? stream_row(s, p, local + row) : StreamRow{nullptr, ACT_NONE};
        float sums[TAPS] = {};
        float4 values[PIECES];
#pragma unroll
        for (u32 j = 0; j < PIECES; j++) {
            values[j] = {0.0f, 0.0f, 0.0f, 0.0f};
            if (r.at) values[j] = *reinterpret_cast<const float4*>(r.at + i + 4 * j * lanes);
        }
#pragma unroll
        for (u32 j = 0; j < PIECES; j++) {
            const float4 v = stream4(s, r, values[j], i + 4 * j * lanes);
#pragma unroll
            for (u32 tap = 0; tap < TAPS; tap++) {
                const float4 x = *reinterpret_cast<const float4*>(w + tap * s.width + i + 4 * j * lanes);
                sums[tap] += v.x * x.x + v.y * x.y + v.z * x.z + v.w * x.w;
            }
        }
#pragma unroll
        for (u32 tap = 0; tap < TAPS; tap++) {
            if (tap >= a.shape.taps) continue;
            for (u32 m = lanes / 2; m > 0; m >>= 1) sums[tap] += __shfl_xor_sync(FULL, sums[tap], m);
            if (row < seen && i == 0) part[row * TAPS + tap] = sums[tap];
        }
    }
    __syncthreads();
    for (u32 r = threadIdx.x; r < valid; r += blockDim.x) {
        float sum = 0.0f;
        for (u32 tap = 0; tap < a.shape.taps; tap++) sum += part[(r + tap * a.shape.dilation) * TAPS + tap];
        put(a.store, begin + r, 0, sum);
    }
}
KERNEL_DENSE(conv_line, ThinConvArgs, 256, 4) { conv_line_of<1, 4>(a); }
KERNEL_DENSE(conv_line_wide, ThinConvArgs, 256, 4) { conv_line_of<3, 8>(a); }

// Values under the taps that `conv_spread` has room for.
#define SPREAD_VALUES 8

// A convolution from few values, from samples above all, stride and dilation 1: a tile of rows per block, whose values are read
// and activated once. A thread has the weights of four outputs in registers. Bound by the writes.
KERNEL_DENSE(conv_spread, ThinConvArgs, 256, 4) {
    SHARED(float, x);  // [LINE_ROWS + history][width], and zeros that the last row's values may reach into
    const Stream& s = a.stream;
    if (blockIdx.x >= a.row_blocks) {
        stream_keep(s, (blockIdx.x - a.row_blocks) * blockDim.x + threadIdx.x);
        return;
    }
    const u32 skip = blockIdx.x % a.tiles * LINE_ROWS, begin = blockIdx.x / a.tiles * s.unit + skip;
    const u32 valid = min((u32)LINE_ROWS, s.unit - skip), seen = (valid + s.history) * s.width;
    const StreamSpan p = span_of(s, begin);
    for (u32 e = threadIdx.x; e < seen + SPREAD_VALUES; e += blockDim.x)
        x[e] = e < seen ? stream_value(s, stream_row(s, p, begin - p.first_out + e / s.width), e % s.width) : 0.0f;
    const u32 lanes = a.n / 4, i = threadIdx.x % lanes * 4;
    float4 w[SPREAD_VALUES];
#pragma unroll
    for (u32 k = 0; k < SPREAD_VALUES; k++) {
        float v[4];
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            const u64 from = (u64)(i + j) * a.w_stride + k;
            v[j] = k >= a.shape.taps * s.width ? 0.0f : a.narrow ? widen(at<const bf16>(a.w)[from]) : at<const float>(a.w)[from];
        }
        w[k] = {v[0], v[1], v[2], v[3]};
    }
    __syncthreads();
    Store store = a.store;
    float4 bias = {0.0f, 0.0f, 0.0f, 0.0f};
    if (store.bias) bias = *at<const float4>(store.bias + 4 * (u64)i);
    store.bias = 0;
#pragma unroll 4
    for (u32 r = threadIdx.x / lanes; r < valid; r += blockDim.x / lanes) {
        float4 sum = bias;
#pragma unroll
        for (u32 k = 0; k < SPREAD_VALUES; k++) {
            const float v = x[r * s.width + k];
            sum = {fmaf(v, w[k].x, sum.x), fmaf(v, w[k].y, sum.y), fmaf(v, w[k].z, sum.z), fmaf(v, w[k].w, sum.w)};
        }
        put4(store, begin + r, i, sum);
    }
}

struct UpsampleArgs {
    Stream stream;
    u64 kernel, out;
    u32 rows, taps, stride, out_stride, lanes, row_blocks;
};

// One output row per `lanes` threads: tap t of the kernel meets the input row t before. Bound by the writes.
KERNEL(upsample, UpsampleArgs, 256) {
    const Stream& s = a.stream;
    if (blockIdx.x >= a.row_blocks) {
        stream_keep(s, (blockIdx.x - a.row_blocks) * blockDim.x + threadIdx.x);
        return;
    }
    const u32 row = blockIdx.x * (blockDim.x / a.lanes) + threadIdx.x / a.lanes;
    if (row >= a.rows) return;
    const u32 in = row / a.stride, phase = row % a.stride;
    const StreamSpan p = span_of(s, in);
    const u32 now = in - p.first_out + s.history;
    const float* w = at<const float>(a.kernel) + (u64)phase * s.width;
    float* out = at<float>(a.out) + (u64)row * a.out_stride;
    for (u32 i = threadIdx.x % a.lanes; i < s.width; i += a.lanes) {
        float sum = 0.0f;
        for (u32 tap = 0; tap < a.taps; tap++)
            sum += stream_value(s, stream_row(s, p, now - tap), i) * w[(u64)tap * a.stride * s.width + i];
        out[i] = sum;
    }
}

struct DepthwiseArgs {
    Stream stream;
    Norm norm;
    u64 kernel, bias, out;
    u32 rows, taps, act, out_stride, narrow, keeps;
};

// One block per output row, so that a norm can follow. Bound by reads of rows that the cache holds for their
// neighbours.
KERNEL(depthwise, DepthwiseArgs, 256) {
    __shared__ float scratch[33];
    const Stream& s = a.stream;
    const u32 row = blockIdx.x;
    if (row >= a.rows) {
        stream_keep(s, (row - a.rows) * blockDim.x + threadIdx.x);
        return;
    }
    const StreamSpan p = span_of(s, row);
    const float* w = at<const float>(a.kernel);
    float* out = at<float>(a.out) + (u64)row * a.out_stride;
    const bool normed = a.norm.kind != NORM_NONE;
    for (u32 i = threadIdx.x; i < s.width; i += blockDim.x) {
        float sum = a.bias ? at<const float>(a.bias)[i] : 0.0f;
#pragma unroll 4
        for (u32 tap = 0; tap < a.taps; tap++) {
            const StreamRow r = stream_row(s, p, row - p.first_out + tap);
            if (r.at) sum = fmaf(r.at[i], w[tap * s.width + i], sum);
        }
        out[i] = normed ? sum : activate(a.act, sum);
    }
    if (!normed) return;
    __syncthreads();
    const Moments m = row_moments(a.norm, out, s.width, scratch);
    for (u32 i = threadIdx.x; i < s.width; i += blockDim.x)
        out[i] = activate(a.act, apply_norm(a.norm, m, out[i], row, i));
}

// Rows of up to 1024 channels, a thread four of them: sums stay in registers until the norm is done.
#define DEPTHWISE_TAPS 9
KERNEL(depthwise4, DepthwiseArgs, 256) {
    __shared__ float scratch[33];
    const Stream& s = a.stream;
    const u32 row = blockIdx.x;
    if (row >= a.rows) {
        stream_keep(s, (row - a.rows) * blockDim.x + threadIdx.x);
        return;
    }
    const StreamSpan p = span_of(s, row);
    const u32 i = 4 * threadIdx.x;
    const bool mine = i < s.width;
    const float4 none = {0.0f, 0.0f, 0.0f, 0.0f};
    float4 sum = mine && a.bias ? *at<const float4>(a.bias + 4 * (u64)i) : none;
    const float4 weight = mine && a.norm.weight ? four(a.norm.weight, i) : none;
    float4 x[DEPTHWISE_TAPS];
#pragma unroll
    for (u32 tap = 0; tap < DEPTHWISE_TAPS; tap++) {
        x[tap] = none;
        if (tap >= a.taps) continue;
        const StreamRow r = stream_row(s, p, row - p.first_out + tap);
        if (mine && r.at) x[tap] = *reinterpret_cast<const float4*>(r.at + i);
    }
    // The stream's last row has seen all that the next one will see of the past.
    if (a.keeps && mine && row - p.first_out + 1 == p.rows) {
        float* past = at<float>(s.past) + (u64)(2 * p.slot + (p.half ^ 1)) * s.history * s.width + i;
#pragma unroll
        for (u32 tap = 1; tap < DEPTHWISE_TAPS; tap++)
            if (tap < a.taps) *reinterpret_cast<float4*>(past + (u64)(tap - 1) * s.width) = x[tap];
    }
#pragma unroll
    for (u32 tap = 0; tap < DEPTHWISE_TAPS; tap++) {
        if (!mine || tap >= a.taps) continue;
        const float4 w = __ldg(at<const float4>(a.kernel + 4 * ((u64)tap * s.width + i)));
        sum = {fmaf(x[tap].x, w.x, sum.x), fmaf(x[tap].y, w.y, sum.y), fmaf(x[tap].z, w.z, sum.z),
               fmaf(x[tap].w, w.w, sum.w)};
    }
    if (a.norm.kind != NORM_NONE) {
        Moments m = {0.0f, 1.0f};
        m.mean = block_sum(mine ? sum.x + sum.y + sum.z + sum.w : 0.0f, scratch) / s.width;
        const float b = sum.x - m.mean, c = sum.y - m.mean, d = sum.z - m.mean, e = sum.w - m.mean;
        m.scale = rsqrtf(block_sum(mine ? b * b + c * c + d * d + e * e : 0.0f, scratch) / s.width + a.norm.eps);
        if (mine) sum = apply_norm4(a.norm, m, sum, weight, row, i);
    }
    if (!mine) return;
    const u64 place = (u64)row * a.out_stride + i;
    if (a.narrow)
        *at<uint2>(a.out + 2 * place) = {narrow2(activate_roughly(a.act, sum.x), activate_roughly(a.act, sum.y)),
                                         narrow2(activate_roughly(a.act, sum.z), activate_roughly(a.act, sum.w))};
    else
        *at<float4>(a.out + 4 * place) = activate4(a.act, sum);
}

struct SubsampleArgs {
    Stream stream;
    u64 kernel, bias, out;
    u32 rows, bins, out_bins, left, channels, spread, act, lanes, row_blocks, pad;
};

// Three by three taps with stride two. A row of the output is one bin of one time row; a row of the stream is all
// bins of one. `spread` is from one channel to all, else each channel is by itself. Bound by the writes.
KERNEL(subsample, SubsampleArgs, 256) {
    const Stream& s = a.stream;
    if (blockIdx.x >= a.row_blocks) {
        stream_keep(s, (blockIdx.x - a.row_blocks) * blockDim.x + threadIdx.x);
        return;
    }
    const u32 row = blockIdx.x * (blockDim.x / a.lanes) + threadIdx.x / a.lanes;
    if (row >= a.rows) return;
    const u32 time = row / a.out_bins, bin = row % a.out_bins;
    const StreamSpan p = span_of(s, time);
    const u32 begin = p.origin + 2 * (time - p.first_out);
    const float* w = at<const float>(a.kernel);
    float* out = at<float>(a.out) + (u64)row * a.channels;
    for (u32 c = threadIdx.x % a.lanes; c < a.channels; c += a.lanes) {
        float sum = a.bias ? at<const float>(a.bias)[c] : 0.0f;
#pragma unroll
        for (u32 dt = 0; dt < 3; dt++) {
            const StreamRow r = stream_row(s, p, begin + dt);
            if (!r.at) continue;
#pragma unroll
            for (u32 df = 0; df < 3; df++) {
                // Before the first bin this wraps round to a large number.
                const u32 f = 2 * bin + df - a.left;
                if (f < a.bins)
                    sum = fmaf(a.spread ? r.at[f] : r.at[f * a.channels + c], w[(3 * dt + df) * a.channels + c], sum);
            }
        }
        out[c] = activate(a.act, sum);
    }
}

// Bins of a time row that a thread takes one after the other, with its weights in registers.
#define SUBSAMPLE_BINS 8

// The same for channels by fours: `lanes` threads, four channels each, share SUBSAMPLE_BINS bins of a time row.
KERNEL(subsample4, SubsampleArgs, 256) {
    const Stream& s = a.stream;
    if (blockIdx.x >= a.row_blocks) {
        stream_keep(s, (blockIdx.x - a.row_blocks) * blockDim.x + threadIdx.x);
        return;
    }
    const u32 groups = (a.out_bins + SUBSAMPLE_BINS - 1) / SUBSAMPLE_BINS;
    const u32 tile = blockIdx.x * (blockDim.x / a.lanes) + threadIdx.x / a.lanes, c = 4 * (threadIdx.x % a.lanes);
    const u32 time = tile / groups, first = tile % groups * SUBSAMPLE_BINS;
    if (time * a.out_bins >= a.rows || c >= a.channels) return;
    const StreamSpan p = span_of(s, time);
    const u32 begin = p.origin + 2 * (time - p.first_out);
    const float4 none = {0.0f, 0.0f, 0.0f, 0.0f};
    const float4 bias = a.bias ? *at<const float4>(a.bias + 4 * (u64)c) : none;
    float4 w[9];
    const float* rows[3];
#pragma unroll
    for (u32 t = 0; t < 9; t++) w[t] = *at<const float4>(a.kernel + 4 * ((u64)t * a.channels + c));
#pragma unroll
    for (u32 dt = 0; dt < 3; dt++) rows[dt] = stream_row(s, p, begin + dt).at;
    const u32 last = min(first + SUBSAMPLE_BINS, a.out_bins);
    for (u32 bin = first; bin < last; bin++) {
        float4 sum = bias;
#pragma unroll
        for (u32 dt = 0; dt < 3; dt++) {
            if (!rows[dt]) continue;
#pragma unroll
            for (u32 df = 0; df < 3; df++) {
                const u32 f = 2 * bin + df - a.left;
                if (f >= a.bins) continue;
                float4 v;
                if (a.spread) {
                    const float x = rows[dt][f];
                    v = {x, x, x, x};
                } else {
                    v = *reinterpret_cast<const float4*>(rows[dt] + f * a.channels + c);
                }
                const float4 k = w[3 * dt + df];
                sum = {fmaf(v.x, k.x, sum.x), fmaf(v.y, k.y, sum.y), fmaf(v.z, k.z, sum.z), fmaf(v.w, k.w, sum.w)};
            }
        }
        *at<float4>(a.out + 4 * (((u64)time * a.out_bins + bin) * a.channels + c)) = {
            activate(a.act, sum.x), activate(a.act, sum.y), activate(a.act, sum.z), activate(a.act, sum.w)};
    }
}
