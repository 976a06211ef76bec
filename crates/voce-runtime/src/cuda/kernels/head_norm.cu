// Root-mean-square norms in place: of query and key heads, with their rotation, and of whole rows.

struct HeadNormArgs {
    u64 x, query, key, positions, rope_table, rope_freqs;
    u32 stride, rows, heads, kv_heads, dim, rope, rope_rows;
    float eps;
};

// A warp per head of a row; a lane takes the pairs that rotate together. Bound by latency.
KERNEL(head_norm, HeadNormArgs, 256) {
    const u32 all = a.heads + a.kv_heads, half = a.dim / 2;
    const u32 item = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    const u32 row = item / all, head = item % all;
    if (row >= a.rows) return;
    float* x = at<float>(a.x) + (u64)row * a.stride + head * a.dim;
    const float* weight = at<const float>(head < a.heads ? a.query : a.key);
    const bool pairs = a.rope == ROPE_INTERLEAVED;
    float sum = 0.0f;
    for (u32 i = lane; i < half; i += 32) {
        const float re = x[pairs ? 2 * i : i], im = x[pairs ? 2 * i + 1 : i + half];
        sum += re * re + im * im;
    }
    const float scale = rsqrtf(warp_sum(sum) / a.dim + a.eps);
    const u32 position = a.rope == ROPE_NONE ? 0 : at<const u32>(a.positions)[row];
    for (u32 i = lane; i < half; i += 32) {
        const u32 first = pairs ? 2 * i : i, second = pairs ? 2 * i + 1 : i + half;
        const float re = x[first] * scale * weight[first], im = x[second] * scale * weight[second];
        float c = 1.0f, s = 0.0f;
        if (a.rope != ROPE_NONE) {
            if (position < a.rope_rows) {
                const float* angles = at<const float>(a.rope_table) + (u64)position * a.dim;
                c = angles[i];
                s = angles[half + i];
            } else {
                const double angle = (double)(at<const float>(a.rope_freqs)[i] * (float)position);
                c = (float)cos(angle);
                s = (float)sin(angle);
            }
        }
        x[first] = re * c - im * s;
        x[second] = re * s + im * c;
    }
}
