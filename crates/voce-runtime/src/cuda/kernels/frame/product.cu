// Products of one or two rows, the weights in registers before the row is there.

#ifdef FRAME_RUNS
// The thread's values of N segments of a row, with the norm's weights, as a product's input: upper and lower bf16 halves, `half`
// bytes apart. Adds up their squares.
template <int N> DEV void frame_stage(const float (&w)[4 * N], float (&v)[4 * N], u32 to, u32 half, u32 count, float& squares) {
#pragma unroll
    for (int i = 0; i < 4 * N; i++) squares = fmaf(v[i], v[i], squares), v[i] *= w[i];
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (i >= count) break;
        const u32 h0 = frame_pack(v[4 * i], v[4 * i + 1]), h1 = frame_pack(v[4 * i + 2], v[4 * i + 3]);
        const u32 l0 = frame_pack(v[4 * i] - low(h0), v[4 * i + 1] - high(h0)), l1 = frame_pack(v[4 * i + 2] - low(h1), v[4 * i + 3] - high(h1));
        asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to + 2048 * i), "r"(h0), "r"(h1) : "memory");
        asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to + 2048 * i + half), "r"(l0), "r"(l1) : "memory");
    }
}
// The norm's weights of the thread's values, or ones.
template <int N> DEV void frame_weights(const FrameBlock& c, bool normed, u64 norm, u32 first, u32 k, float (&w)[4 * N]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        const u32 value = first + 4 * (c.t + FRAME_THREADS * i);
        float4 f = {1.0f, 1.0f, 1.0f, 1.0f};
        if (normed && value < k) f = *at<const float4>(norm + 4 * (u64)value);
        w[4 * i] = f.x, w[4 * i + 1] = f.y, w[4 * i + 2] = f.z, w[4 * i + 3] = f.w;
    }
}

// The block's 8 outputs at a time of a matrix: from which group on, and to which.
DEV uint2 frame_share(const FrameBlock& c, u32 n) {
    const u32 groups = (n + 7) / 8;
    return {groups * c.b >> c.shift, groups * (c.b + 1) >> c.shift};
}

// Sums of outputs in shared memory.
DEV void frame_sts(u32 to, float v) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory"); }

// H chunks of rows of S segments against their inputs: a sum a warp for every output.
template <int R, int S, int H> DEV void frame_multiply(const uint4 (&w)[FRAME_HELD][4], const uint4 (&x)[FRAME_KEPT][2], bool keeps, u32 left, u32 to) {
    float d[H / S][4];
#pragma unroll
    for (int i = 0; i < H / S; i++) d[i][0] = d[i][1] = d[i][2] = d[i][3] = 0.0f;
#pragma unroll
    for (int i = 0; i < H; i++) frame_mma(d[i / S], w[i][0].x, w[i][1].x, w[i][0].y, w[i][1].y, x[i % S][0].x, x[i % S][0].y);
#pragma unroll
    for (int i = 0; i < H; i++) frame_mma(d[i / S], w[i][0].z, w[i][1].z, w[i][0].w, w[i][1].w, x[i % S][0].z, x[i % S][0].w);
#pragma unroll
    for (int i = 0; i < H; i++) frame_mma(d[i / S], w[i][2].x, w[i][3].x, w[i][2].y, w[i][3].y, x[i % S][1].x, x[i % S][1].y);
#pragma unroll
    for (int i = 0; i < H; i++) frame_mma(d[i / S], w[i][2].z, w[i][3].z, w[i][2].w, w[i][3].w, x[i % S][1].z, x[i % S][1].w);
#pragma unroll
    for (int i = 0; i < H / S; i++)
        if (keeps && i * S < left) frame_sts(to + 512 * R * i, d[i][0] + d[i][1]), frame_sts(to + 512 * R * i + 256 * R, d[i][2] + d[i][3]);
}

// A chunk's 16 pieces of 512 inputs are the rows of a tile of the tensor cores; its columns are (row, piece, half), and what counts is
// where a piece meets itself. Warps share the inputs of every piece. Inputs of few segments are KEPT in registers, those of more are
// read for every chunk.
template <int R, bool KEPT> DEV void frame_product(FrameBlock& c, const FramePhase& p, u32 index, const uint4& next) {
    constexpr int N = KEPT ? FRAME_KEPT : FRAME_BATCH;
    const u32 g = c.lane / 4, t = c.lane % 4, k = same(p.k), n = same(p.n), gated = same(p.gated), segments = same(p.segments), held = same(p.number[7]), half = 2048 * segments + 64;
    const uint2 share = frame_share(c, n);
    const u32 groups = share.y - share.x, chunks = (gated + 1) * groups * segments;
    const u32 from = g / 2 * 2048 + g % 2 * 1024 + c.warp * 128 + t * 16, flip = (g & 1) * 64;
    const u32 piece = g >> 1 & 1, column = c.xs + (R == 1 ? 0 : (g >> 2) * 2 * half) + (g & 1 ? half : 0) + 2 * (piece * 512 + c.warp * 64 + t * 8), turned = piece * 64;
    const bool keeps = (t & 1) == (g & 1) && t / 2 < R;
    // What inputs and the first results meet: asked for before the weights are taken.
    const u32 act = same(p.act), add = same(p.add), mine = min(8 * (share.x + c.warp) + g, n - 1);
    const u64 norm = p.norm, biases = p.bias;
    const bool normed = same(norm != 0), biased = same(biases != 0);
    const float eps = p.eps, per = __fdividef(1.0f, (float)k);
    float squares[R] = {}, old[R] = {}, bias = 0.0f;
    float weights[4 * N];
    u32 glance[R];
    frame_weights<N>(c, normed, norm, 0, k, weights);
    if (biased) bias = at<const float>(biases)[mine];
#pragma unroll
    for (int r = 0; r < R; r++) glance[r] = add ? c.glance(p.old[r], mine) : 0;
    u32 tag[R];
    u64 tagged[R], stored[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        const FrameRow& out = p.out[r];
        tag[r] = c.flag(out.how), tagged[r] = (u64)(c.ex + out.area + mine), stored[r] = out.at ? out.at + 4 * (u64)mine : 0;
    }
    frame_announce(c, index, next);
    // The row is on its way while weights are read from the ring.
    c.rest_for(p.nap);
    uint4 asked[R][N];
#pragma unroll
    for (int r = 0; r < R; r++) c.ask<N>(p.in[r], 4 * c.t, 4 * FRAME_THREADS, k, asked[r]);
    uint4 w[FRAME_HELD][4];
    c.chunks<FRAME_HELD>(from, flip, min(chunks, held), w);
    if (add && c.warp < groups)
#pragma unroll
        for (int r = 0; r < R; r++) old[r] = c.seen(glance[r], p.old[r], mine);
    const u32 place = c.xs + 8 * c.t;
#pragma unroll
    for (int r = 0; r < R; r++) {
        float v[4 * N];
        c.given<N>(p.in[r], 4 * c.t, 4 * FRAME_THREADS, k, asked[r], v);
        frame_stage<N>(weights, v, place + 2 * r * half, half, segments, squares[r]);
    }
    if (!KEPT)
        for (u32 first = FRAME_BATCH; first < segments; first += FRAME_BATCH) {
            frame_weights<N>(c, normed, norm, 1024 * first, k, weights);
#pragma unroll
            for (int r = 0; r < R; r++) {
                float v[4 * N];
                c.take<N>(p.in[r], 1024 * first + 4 * c.t, 4 * FRAME_THREADS, k, v);
                frame_stage<N>(weights, v, place + 2 * r * half + 2048 * first, half, segments - first, squares[r]);
            }
        }
    c.meet();
    const u32 sums = c.xs + c.a.x_bytes;
    u32 to = sums + 4 * ((g / 2 * R + t / 2) * 16 + 2 * c.warp + (g & 1));
    if (KEPT) {
        uint4 x[FRAME_KEPT][2];
#pragma unroll
        for (int i = 0; i < FRAME_KEPT; i++) {
            x[i][0] = x[i][1] = {};
            if (i < segments) x[i][0] = frame_lds(column + 2048 * i + turned), x[i][1] = frame_lds(column + 2048 * i + (turned ^ 64));
        }
        for (u32 left = chunks;;) {
            if (segments == 1) {
                if (held == 4) frame_multiply<R, 1, 4>(w, x, keeps, left, to);
                else if (held == 2) frame_multiply<R, 1, 2>(w, x, keeps, left, to);
                else frame_multiply<R, 1, 6>(w, x, keeps, left, to);
                to += 512 * R * held;
            } else if (segments == 2) {
                if (held == 4) frame_multiply<R, 2, 4>(w, x, keeps, left, to);
                else frame_multiply<R, 2, 2>(w, x, keeps, left, to);
                to += 256 * R * held;
            } else {
                frame_multiply<R, 3, 3>(w, x, keeps, left, to);
                to += 512 * R;
            }
            if (left <= held) break;
            left -= held;
            c.chunks<FRAME_HELD>(from, flip, min(left, held), w);
        }
    } else {
        float acc[2] = {};
        u32 segment = 0;
        for (u32 left = chunks;;) {
            float d[4][4];
            u32 at = segment;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint4 x0 = frame_lds(column + 2048 * at + turned), x1 = frame_lds(column + 2048 * at + (turned ^ 64));
                at = at + 1 == segments ? 0 : at + 1;
                d[i][0] = d[i][1] = d[i][2] = d[i][3] = 0.0f;
                frame_mma(d[i], w[i][0].x, w[i][1].x, w[i][0].y, w[i][1].y, x0.x, x0.y);
                frame_mma(d[i], w[i][0].z, w[i][1].z, w[i][0].w, w[i][1].w, x0.z, x0.w);
                frame_mma(d[i], w[i][2].x, w[i][3].x, w[i][2].y, w[i][3].y, x1.x, x1.y);
                frame_mma(d[i], w[i][2].z, w[i][3].z, w[i][2].w, w[i][3].w, x1.z, x1.w);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (i >= left) break;
                acc[0] += d[i][0] + d[i][1], acc[1] += d[i][2] + d[i][3];
                if (++segment == segments) {
                    if (keeps) frame_sts(to, acc[0]), frame_sts(to + 256 * R, acc[1]);
                    to += 512 * R;
                    segment = 0, acc[0] = acc[1] = 0.0f;
                }
            }
            if (left <= 4) break;
            left -= 4;
            c.chunks<FRAME_HELD>(from, flip, min(left, 4u), w);
        }
    }
    if (normed)
#pragma unroll
        for (int r = 0; r < R; r++) {
            const float sum = warp_sum(squares[r]);
            if (c.lane == 0) c.s.squares[c.flip][r][c.warp] = sum;
        }
    c.meet();
    for (u32 group = c.warp; group < groups; group += FRAME_WARPS) {
        const u32 output = 8 * (share.x + group) + g;
        const bool first = group == c.warp;
#pragma unroll
        for (int r = 0; r < R; r++) {
            const u32 row = (gated + 1) * group * 8 + g;
            const auto sum_of = [&](u32 row) {
                const uint4 e = frame_lds(sums + 64 * (row * R + r) + 16 * t);
                float v = (__uint_as_float(e.x) + __uint_as_float(e.y)) + (__uint_as_float(e.z) + __uint_as_float(e.w));
                v += __shfl_xor_sync(FULL, v, 1);
                return v + __shfl_xor_sync(FULL, v, 2);
            };
            float scale = 1.0f;
            if (normed) {
                const float4* sums = reinterpret_cast<const float4*>(c.s.squares[c.flip][r]);
                const float4 e = sums[0], f = sums[1];
                scale = rsqrtf((((e.x + e.y) + (e.z + e.w)) + ((f.x + f.y) + (f.z + f.w))) * per + eps);
            }
            float v = sum_of(row) * scale;
            if (gated) v = v * sigmoid_roughly(v) * sum_of(row + 8) * scale;
            else if (biased) v += first ? bias : at<const float>(biases)[min(output, n - 1)];
            if (act) v *= sigmoid_roughly(v);
            if (add) v += first ? old[r] : c.look(p.old[r], min(output, n - 1));
            if (t == 0 && output < n) {
                // The first group's outputs are `mine`, the next ones lie as far on as groups do.
                const u64 on = 4 * (u64)(8 * (group - c.warp));
                asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(tagged[r] + on), "r"((__float_as_uint(v) & ~1u) | tag[r]) : "memory");
                if (stored[r]) *at<float>(stored[r] + on) = v;
            }
        }
    }
    c.sent();
    c.learn(p.nap);
    c.flip ^= 1;
}
#endif
