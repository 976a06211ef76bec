// Spectrograms: windows of samples become rows of log-mel bands, and bands are brought to mean 0 and deviation 1.

struct MelArgs {
    u64 samples, spans, window, roots, bands, weights, out;
    u32 rows, count, hop, length, fft, bins;
    float guard;
    u32 pad;
};

// The span that a row is of: `spans` has each one's first row, and the place of that in the output, in order.
DEV u32 span_of(const u32* spans, u32 count, u32 row) {
    u32 low = 0, high = count;
    while (high - low > 1) {
        const u32 middle = (low + high) / 2;
        if (spans[2 * middle] <= row) low = middle;
        else high = middle;
    }
    return low;
}

DEV float2 times(float2 x, float2 y) { return {x.x * y.x - x.y * y.y, x.x * y.y + x.y * y.x}; }

// A warp per row. Real values are taken in pairs as complex ones, transformed in shared memory from one half to the other
// (Stockham's order: no reversal of bits), and taken apart again; then a lane per band. Bound by shared memory.
KERNEL(mel, MelArgs, 256) {
    SHARED(float2, room);
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x * (blockDim.x / 32) + warp;
    const u32 points = a.fft / 2, edge = (a.fft - a.length) / 2;
    float2 *from = room + (u64)warp * a.fft, *to = from + points;
    const bool some = row < a.rows;
    const u32* spans = at<const u32>(a.spans);
    const u32 span = some ? span_of(spans, a.count, row) : 0;
    // Each span has its windows' overlap once more than its rows' hops.
    const float* samples = at<const float>(a.samples) + ((u64)row * a.hop + (u64)span * (a.length - a.hop));
    const float* window = at<const float>(a.window);
    for (u32 i = lane; i < points; i += 32) {
        const u32 x = 2 * i - edge, y = x + 1;
        from[i].x = some && x < a.length ? samples[x] * window[x] : 0.0f;
        from[i].y = some && y < a.length ? samples[y] * window[y] : 0.0f;
    }
    __syncwarp();
    const float2* roots = at<const float2>(a.roots);
    for (u32 s = 1; s < points; s *= 2) {
        for (u32 j = lane; j < points / 2; j += 32) {
            const u32 q = j & (s - 1);
            const float2 x = from[j], y = from[j + points / 2];
            to[2 * j - q] = {x.x + y.x, x.y + y.y};
            to[2 * j - q + s] = times({x.x - y.x, x.y - y.y}, roots[2 * (j - q)]);
        }
        __syncwarp();
        float2* other = from;
        from = to;
        to = other;
    }
    float* power = reinterpret_cast<float*>(to);
    for (u32 k = lane; k <= points; k += 32) {
        const float2 z = from[k & (points - 1)], m = from[(points - k) & (points - 1)];
        const float2 even = {0.5f * (z.x + m.x), 0.5f * (z.y - m.y)};
        const float2 odd = times({0.5f * (z.y + m.y), 0.5f * (m.x - z.x)}, roots[k]);
        const float x = even.x + odd.x, y = even.y + odd.y;
        power[k] = x * x + y * y;
    }
    __syncwarp();
    if (!some) return;
    // Of each band the first bin, and where its weights begin; they end where the next one's do.
    const float* bands = at<const float>(a.bands);
    const float* weights = at<const float>(a.weights);
    float* out = at<float>(a.out) + (u64)(spans[2 * span + 1] + row - spans[2 * span]) * a.bins;
    for (u32 b = lane; b < a.bins; b += 32) {
        const u32 first = (u32)bands[2 * b], begin = (u32)bands[2 * b + 1], end = (u32)bands[2 * b + 3];
        float sum = 0.0f;
        for (u32 i = begin; i < end; i++) sum += power[first + i - begin] * weights[i];
        out[b] = logf(sum + a.guard);
    }
}

struct StandardiseArgs {
    u64 x, spans;
    u32 bins, groups;
    float guard;
    u32 pad;
};

#define STANDARDISE_WARPS 16

// The sum over a block's warps of what each lane has; every warp gets it.
DEV float sum_of_warps(float x, float (*parts)[32]) {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __syncthreads();
    parts[warp][lane] = x;
    __syncthreads();
    float sum = 0.0f;
    for (u32 w = 0; w < STANDARDISE_WARPS; w++) sum += parts[w][lane];
    return sum;
}

// A block per span and 32 bins: a bin per lane, rows by warp. Sums are of what values differ from the first row by, so that
// bands without sound keep their digits. Bound by reading three times what a block's cache mostly holds.
KERNEL(standardise, StandardiseArgs, 512) {
    __shared__ float parts[STANDARDISE_WARPS][32];
    const u32 warp = threadIdx.x / 32, bin = blockIdx.x % a.groups * 32 + threadIdx.x % 32;
    const u32* span = at<const u32>(a.spans) + blockIdx.x / a.groups;
    const u32 begin = span[0], rows = span[1] - begin;
    float* x = at<float>(a.x) + (u64)begin * a.bins + bin;
    const bool some = bin < a.bins;
    const float base = some ? x[0] : 0.0f;
    float sum = 0.0f;
    if (some)
        for (u32 r = warp; r < rows; r += STANDARDISE_WARPS) sum += x[(u64)r * a.bins] - base;
    const float offset = sum_of_warps(sum, parts) / rows;
    sum = 0.0f;
    if (some)
        for (u32 r = warp; r < rows; r += STANDARDISE_WARPS) {
            const float d = x[(u64)r * a.bins] - base - offset;
            sum += d * d;
        }
    const float variance = sum_of_warps(sum, parts) / (max(rows, 2u) - 1);
    const float mean = base + offset, scale = 1.0f / (sqrtf(variance) + a.guard);
    if (some)
        for (u32 r = warp; r < rows; r += STANDARDISE_WARPS) x[(u64)r * a.bins] = (x[(u64)r * a.bins] - mean) * scale;
}
