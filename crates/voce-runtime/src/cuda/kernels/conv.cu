// Convolutions over streams: each output row sees rows of its stream's past and of what is new.
//
// The past of a slot is there twice. A kernel reads one half and, in blocks of its own, writes what the stream will
// need next into the other, so one launch does both; which half is which is in the table of spans.

struct Stream {
    u64 x, past, spans;
    u32 width, history, count, pre, replicate, pad;
};

// A span's place in the output and the input, its state's place, past rows that are not known yet (a stream that has
// just begun), and the row that the first tap of its first output sees.
struct StreamSpan { u32 first_out, first, rows, slot, half, blank, origin, pad; };

// The span that an output row belongs to: the last one that begins at it or before.
DEV StreamSpan span_of(const Stream& s, u32 row) {
    const StreamSpan* spans = at<const StreamSpan>(s.spans);
    u32 low = 0, high = s.count;
    while (high - low > 1) {
        const u32 middle = (low + high) / 2;
        if (spans[middle].first_out <= row) low = middle;
        else high = middle;
    }
    return spans[low];
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
DEV float stream_value(const StreamRow& row, u32 i) { return row.at ? activate(row.act, row.at[i]) : 0.0f; }

// One value of the past rows that come next.
DEV void stream_keep(const Stream& s, u32 index) {
    const u32 kept = s.history * s.width;
    const u32 span = index / kept, h = index % kept / s.width, i = index % s.width;
    if (span >= s.count) return;
    const StreamSpan p = at<const StreamSpan>(s.spans)[span];
    if (p.rows == 0) return;
    const u64 row = (u64)(2 * p.slot + (p.half ^ 1)) * s.history + h;
    at<float>(s.past)[row * s.width + i] = stream_value(stream_row(s, p, h + p.rows), i);
}

// The shape of a convolution over a stream.
struct Taps { u32 taps, stride, dilation, pad; };

// Four of the values under the taps of an output row, whose first tap is at row `begin`; zeros past the last tap.
DEV float4 under_taps(const Stream& s, const StreamSpan& p, const Taps& t, u32 begin, u32 i) {
    if (i >= t.taps * s.width) return {0.0f, 0.0f, 0.0f, 0.0f};
    if (s.width % 4 == 0) {
        const StreamRow r = stream_row(s, p, begin + i / s.width * t.dilation);
        if (!r.at) return {0.0f, 0.0f, 0.0f, 0.0f};
        const float4 v = *reinterpret_cast<const float4*>(r.at + i % s.width);
        return {activate(r.act, v.x), activate(r.act, v.y), activate(r.act, v.z), activate(r.act, v.w)};
    }
    float part[4];
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
        const u32 tap = (i + j) / s.width;
        part[j] = 0.0f;
        if (tap < t.taps) part[j] = stream_value(stream_row(s, p, begin + tap * t.dilation), (i + j) % s.width);
    }
    return {part[0], part[1], part[2], part[3]};
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

struct ThinConvArgs {
    Stream stream;
    Store store;
    Taps shape;
    u64 w;
    u32 rows, n, w_stride, narrow, row_blocks, pad;
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
            sum += stream_value(stream_row(s, p, now - tap), i) * w[(u64)tap * a.stride * s.width + i];
        out[i] = sum;
    }
}

struct DepthwiseArgs {
    Stream stream;
    Norm norm;
    u64 kernel, bias, out;
    u32 rows, taps, act, out_stride;
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
