// Attention of one slot over a ring: a long one is shared by the blocks of a key head, a short one is kept by every block.

#ifdef FRAME_RUNS
// N neighbouring values that no kernel writes.
template <int N> DEV void frame_line(u64 from, float (&v)[N]) {
    if (N == 4) {
        const float4 f = frame_ldg(from);
        v[0] = f.x, v[1 % N] = f.y, v[2 % N] = f.z, v[3 % N] = f.w;
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = __ldg(at<const float>(from) + i);
    }
}
// What attention has in a phase: the ring, its shape, norms and rotation.
struct FrameAttend {
    const FramePhase& p;
    u32 heads, kv_heads, dim, capacity, rope, rope_rows, window, group, blocks, head, j, values;
    u32 block_bits, value_bits;  // of the blocks of a key head, and of the values that each of them makes
    float scale;
    MEMBER FrameAttend(const FrameBlock& c, const FramePhase& p_) : p(p_) {
        heads = p.n, kv_heads = p.number[0], dim = p.k, capacity = p.number[1], rope = same(p.number[2]);
        rope_rows = p.number[3], window = p.number[4];
        scale = __uint_as_float(p.number[5]);
        group = p.gated, block_bits = p.segments, value_bits = p.pitch;
        blocks = 1u << block_bits, head = c.b >> block_bits, j = c.b & (blocks - 1), values = 1u << value_bits;
    }
    MEMBER bf16* keys(u32 slot) const { return at<bf16>(p.address[0]) + ((u64)slot * kv_heads + head) * 2 * ((u64)capacity * dim); }
    // Cosines and sines of a lane's D values: of neighbouring angles, or of pairs that share one.
    template <int D> MEMBER void turns(u32 position, u32 lane, float (&c)[D], float (&s)[D]) const {
        const u32 half = 16 * D;
#pragma unroll
        for (int i = 0; i < D; i++) c[i] = 1.0f, s[i] = 0.0f;
        if (rope == ROPE_NONE) return;
        if (same(position < rope_rows)) {
            const u64 row = p.address[2] + 8 * (u64)(position * half);
            if (rope == ROPE_HALVES) {
                frame_line<D>(row + 4 * D * (lane % 16), c);
                frame_line<D>(row + 4 * (half + D * (lane % 16)), s);
            } else {
                float c2[D / 2], s2[D / 2];
                frame_line<D / 2>(row + 2 * D * lane, c2);
                frame_line<D / 2>(row + 4 * half + 2 * D * lane, s2);
#pragma unroll
                for (int i = 0; i < D; i++) c[i] = c2[i / 2], s[i] = s2[i / 2];
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < D; i++) {
            const u32 e = rope == ROPE_HALVES ? D * (lane % 16) + i : (D * lane + i) / 2;
            const float2 turn = frame_turn(at<const float>(p.address[3])[e] * (float)position);
            c[i] = turn.x, s[i] = turn.y;
        }
    }
    template <int D> MEMBER void weights(u64 from, u32 lane, float (&w)[D]) const {
#pragma unroll
        for (int i = 0; i < D; i++) w[i] = 1.0f;
        if (from) frame_line<D>(from + 4 * D * lane, w);
    }
    // A head's values, normed where it has weights, and turned.
    template <int D> MEMBER void turn(u32 lane, bool normed, const float (&w)[D], const float (&c)[D], const float (&s)[D], float (&x)[D]) const {
        if (normed) {
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < D; i++) sum += x[i] * x[i];
            const float scale = rsqrtf(warp_sum(sum) * (1.0f / (32 * D)) + p.eps);
#pragma unroll
            for (int i = 0; i < D; i++) x[i] *= scale * w[i];
        }
        if (rope == ROPE_HALVES) {
#pragma unroll
            for (int i = 0; i < D; i++) {
                const float other = __shfl_xor_sync(FULL, x[i], 16);
                x[i] = lane < 16 ? x[i] * c[i] - other * s[i] : other * s[i] + x[i] * c[i];
            }
        } else if (rope == ROPE_INTERLEAVED) {
#pragma unroll
            for (int i = 0; i < D; i += 2) {
                const float re = x[i], im = x[i + 1];
                x[i] = re * c[i] - im * s[i], x[i + 1] = re * s[i] + im * c[i];
            }
        }
    }
};

// D values a lane of each of H heads of an exchanged row, from `first` on and `step` values apart.
template <int D, int H> DEV void frame_heads(FrameBlock& c, const FrameRow& from, u32 first, u32 step, float (&x)[H][D]) {
    if (D == 4) {
        float v[4 * H];
        c.take<H>(from, first + 4 * c.lane, step, FULL, v);
#pragma unroll
        for (int i = 0; i < H * D; i++) x[i / D][i % D] = v[i];
        return;
    }
    u32 places[H * D];
    float v[H * D];
#pragma unroll
    for (int i = 0; i < H * D; i++) places[i] = first + i / D * step + D * c.lane + i % D;
    c.look_at(from, places, v);
#pragma unroll
    for (int i = 0; i < H * D; i++) x[i / D][i % D] = v[i];
}
template <int D> DEV void frame_raw(const bf16* row, u32 lane, u32 (&x)[D / 2]) {
    if (D == 4) {
        const uint2 v = *reinterpret_cast<const uint2*>(row + 4 * lane);
        x[0] = v.x, x[D / 2 - 1] = v.y;
    } else {
        x[0] = *reinterpret_cast<const u32*>(row + 2 * lane);
    }
}
template <int D> DEV float frame_dot(const float (&q)[D], const u32 (&k)[D / 2]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < D / 2; i++) sum = fmaf(q[2 * i], low(k[i]), fmaf(q[2 * i + 1], high(k[i]), sum));
    return sum;
}

// One row over a long ring: the blocks of a key head share its positions, the last one has the new one too, unless all was there
// before; then each block puts some of the head's values together.
template <int D, int Q> DEV void frame_attend(FrameBlock& c, const FramePhase& p, u32 index, const uint4& next) {
    const FrameAttend a(c, p);
    const bool normed = same(p.address[4] != 0), given = same(p.number[7]);
    const int AHEAD = Q == 1 ? 8 : 4;
    const u32 lane = c.lane;
    c.learn_task(p.address[1]);
    const u32 slot = c.task.x, position = c.task.y, first = c.task.z, past = (given ? c.task.w : position) - first;
    bf16* keys = a.keys(slot);
    bf16* values = keys + (u64)a.capacity * a.dim;
    const u32 each = (past + a.blocks - 1) >> a.block_bits, begin = min(a.j * each, past), end = min(begin + each, past), start = first % a.capacity;
    u32 k[AHEAD][D / 2], v[AHEAD][D / 2];
    const auto load = [&](u32 i0) {
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            const u32 i = i0 + u * FRAME_WARPS;
#pragma unroll
            for (int e = 0; e < D / 2; e++) k[u][e] = v[u][e] = 0;
            if (i >= end) continue;
            const u32 at = start + i, place = at < a.capacity ? at : at - a.capacity;
            frame_raw<D>(keys + (u64)place * a.dim, lane, k[u]);
            frame_raw<D>(values + (u64)place * a.dim, lane, v[u]);
        }
    };
    u32 i0 = begin + c.warp;
    load(i0);
    float cosine[D], sine[D], query_weight[D], key_weight[D], q[Q][D], acc[Q][D], top[Q], total[Q];
    a.turns<D>(position, lane, cosine, sine);
    a.weights<D>(p.address[4], lane, query_weight);
    a.weights<D>(p.address[5], lane, key_weight);
    c.rest_for(p.nap);
    frame_heads<D, Q>(c, p.in[0], a.head * a.group * a.dim, a.dim, q);
#pragma unroll
    for (int g = 0; g < Q; g++) {
        a.turn<D>(lane, normed, query_weight, cosine, sine, q[g]);
        top[g] = -1e30f, total[g] = 0.0f;
#pragma unroll
        for (int i = 0; i < D; i++) q[g][i] *= a.scale, acc[g][i] = 0.0f;
    }
    while (i0 < end) {
#pragma unroll
        for (int g = 0; g < Q; g++) {
            float score[AHEAD], most = top[g];
#pragma unroll
            for (int u = 0; u < AHEAD; u++) score[u] = frame_dot<D>(q[g], k[u]);
#pragma unroll
            for (int m = 16; m > 0; m >>= 1)
#pragma unroll
                for (int u = 0; u < AHEAD; u++) score[u] += __shfl_xor_sync(FULL, score[u], m);
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                if (i0 + u * FRAME_WARPS >= end) score[u] = -1e30f;
                most = fmaxf(most, score[u]);
            }
            const float old = __expf(top[g] - most);
            total[g] *= old, top[g] = most;
#pragma unroll
            for (int i = 0; i < D; i++) acc[g][i] *= old;
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                const float w = i0 + u * FRAME_WARPS < end ? __expf(score[u] - most) : 0.0f;
                total[g] += w;
#pragma unroll
                for (int i = 0; i < D / 2; i++) acc[g][2 * i] = fmaf(w, low(v[u][i]), acc[g][2 * i]), acc[g][2 * i + 1] = fmaf(w, high(v[u][i]), acc[g][2 * i + 1]);
            }
        }
        i0 += AHEAD * FRAME_WARPS;
        if (i0 < end) load(i0);
    }
    if (!given && a.j == a.blocks - 1 && c.warp == FRAME_WARPS - 1) {
        float both[2][D];
        frame_heads<D, 2>(c, p.in[0], (a.heads + a.head) * a.dim, a.kv_heads * a.dim, both);
        float(&nk)[D] = both[0], (&nv)[D] = both[1];
        a.turn<D>(lane, normed, key_weight, cosine, sine, nk);
        const u64 place = (u64)(position % a.capacity) * a.dim + D * lane;
        u32 kept[D / 2];
#pragma unroll
        for (int i = 0; i < D / 2; i++) {
            kept[i] = narrow2(nk[2 * i], nk[2 * i + 1]);
            const u32 value = narrow2(nv[2 * i], nv[2 * i + 1]);
            *reinterpret_cast<u32*>(keys + place + 2 * i) = kept[i];
            *reinterpret_cast<u32*>(values + place + 2 * i) = value;
            nv[2 * i] = low(value), nv[2 * i + 1] = high(value);
        }
#pragma unroll
        for (int g = 0; g < Q; g++) {
            const float score = warp_sum(frame_dot<D>(q[g], kept)), most = fmaxf(top[g], score);
            const float old = __expf(top[g] - most), w = __expf(score - most);
            total[g] = total[g] * old + w, top[g] = most;
#pragma unroll
            for (int i = 0; i < D; i++) acc[g][i] = acc[g][i] * old + w * nv[i];
        }
    }
#pragma unroll
    for (int g = 0; g < Q; g++) {
        if (lane == 0) c.s.tops[c.warp][g] = top[g], c.s.totals[c.warp][g] = total[g];
#pragma unroll
        for (int i = 0; i < D; i++) c.red[(c.warp * Q + g) * a.dim + D * lane + i] = acc[g][i];
    }
    frame_announce(c, index, next);
    c.meet();
    // Parts: by the block that they are for, the block they are from, then the values, the largest score and the sum.
    FrameRow part = p.out[1];
    part.at = 0;
    const u32 record = a.values + 2;
    if (c.t < Q * a.dim) {
        const u32 g = c.t / (32 * D), to = c.t >> a.value_bits, own = c.t & (a.values - 1);
        float most = -1e30f, sum = 0.0f, value = 0.0f;
#pragma unroll
        for (int w = 0; w < FRAME_WARPS; w++) most = fmaxf(most, c.s.tops[w][g]);
#pragma unroll
        for (int w = 0; w < FRAME_WARPS; w++) {
            const float e = __expf(c.s.tops[w][g] - most);
            sum += e * c.s.totals[w][g];
            value += e * c.red[w * Q * a.dim + c.t];
        }
        const u32 at = ((a.head * a.blocks + to) * a.blocks + a.j) * record;
        c.put(part, at + own, value);
        if (own == 0) c.put(part, at + a.values, most), c.put(part, at + a.values + 1, sum);
    }
    c.sent();
    c.learn(p.nap);
    if (c.t < a.values * a.blocks) {
        const u32 v = c.t >> a.block_bits, from = ((a.head * a.blocks + a.j) * a.blocks + (c.t & (a.blocks - 1))) * record;
        FrameRow read = part;
        read.how = (read.how & ~3u) | FROM_EXCHANGE;
        c.rest_for(p.nap + 1);
        const u32 places[3] = {from + v, from + a.values, from + a.values + 1};
        float three[3];
        c.look_at(read, places, three);
        float x = three[0], sum = three[2], largest = three[1];
        const float most = three[1];
        for (u32 m = a.blocks / 2; m > 0; m >>= 1) largest = fmaxf(largest, __shfl_xor_sync(FULL, largest, m));
        const float e = __expf(most - largest);
        x *= e, sum *= e;
        for (u32 m = a.blocks / 2; m > 0; m >>= 1) x += __shfl_xor_sync(FULL, x, m), sum += __shfl_xor_sync(FULL, sum, m);
        if ((c.t & (a.blocks - 1)) == 0) c.put(p.out[0], a.head * a.group * a.dim + a.j * a.values + v, __fdividef(x, fmaxf(sum, 1e-30f)));
        c.sent();
        c.learn(p.nap + 1);
    } else {
        c.sent();
    }
}

// Up to two rows over a short ring, of which every block keeps the keys and its own values; it makes these of its query head.
template <int D> DEV void frame_attend_short(FrameBlock& c, const FramePhase& p, u32 index, const uint4& next) {
    const FrameAttend a(c, p);
    const bool normed = same(p.address[4] != 0);
    const u32 lane = c.lane, stride = 2 * a.dim + FRAME_KEY_PAD;
    char* keys = c.rest + p.ring;
    float* values = reinterpret_cast<float*>(keys + a.capacity * stride);
    c.learn_task(p.address[1]);
    const u32 slot = c.task.x, begin = c.task.y, rows = same(p.rows), query = a.j * a.values / (32 * D), own = a.j * a.values % (32 * D);
    bf16* ring = a.keys(slot);
    float query_weight[D], key_weight[D];
    a.weights<D>(p.address[4], lane, query_weight);
    a.weights<D>(p.address[5], lane, key_weight);
    if (same(p.number[6])) {
        // What the ring had before this launch.
        const u32 first = a.window && begin + 1 > a.window ? begin + 1 - a.window : 0;
        for (u32 at = first + c.warp; at < begin; at += FRAME_WARPS) {
            const u32 place = at % a.capacity;
            u32 k[D / 2];
            frame_raw<D>(ring + (u64)place * a.dim, lane, k);
#pragma unroll
            for (int i = 0; i < D / 2; i++) *reinterpret_cast<u32*>(keys + place * stride + 2 * (D * lane + 2 * i)) = k[i];
            if (lane < a.values) values[place * a.values + lane] = widen(ring[((u64)a.capacity + place) * a.dim + own + lane]);
        }
    }
    frame_announce(c, index, next);
    for (u32 r = 0; r < rows; r++) {
        const u32 position = begin + r;
        const u32 place = same(position < a.capacity) ? position : position % a.capacity;
        const u32 first = a.window && position + 1 > a.window ? position + 1 - a.window : 0, seen = position + 1 - first;
        float q[D], cosine[D], sine[D];
        a.turns<D>(position, lane, cosine, sine);
        // Where the lane's positions are, of those that are seen.
        const u32 start = same(first < a.capacity) ? first : first % a.capacity;
        u32 p0 = start + lane, p1 = start + lane + 32;
        if (p0 >= a.capacity) p0 -= a.capacity;
        if (p1 >= a.capacity) p1 -= a.capacity;
        if (r == 0) c.rest_for(p.nap);
        // One warp turns the new key, another has the values, all turn the query.
        float both[2][D];
        const u32 head_at = (a.head * a.group + query) * a.dim;
        if (c.warp == 2) frame_heads<D, 2>(c, p.in[r], head_at, (a.heads + a.head) * a.dim - head_at, both);
        else frame_heads<D, 1>(c, p.in[r], head_at, 0, *reinterpret_cast<float(*)[1][D]>(&both));
#pragma unroll
        for (int i = 0; i < D; i++) q[i] = both[0][i];
        a.turn<D>(lane, normed, query_weight, cosine, sine, q);
        if (c.warp == 2) {
            float(&k)[D] = both[1];
            a.turn<D>(lane, normed, key_weight, cosine, sine, k);
#pragma unroll
            for (int i = 0; i < D / 2; i++) {
                const u32 pair = narrow2(k[2 * i], k[2 * i + 1]);
                *reinterpret_cast<u32*>(keys + place * stride + 2 * (D * lane + 2 * i)) = pair;
                if (a.j == 0) *reinterpret_cast<u32*>(ring + (u64)place * a.dim + D * lane + 2 * i) = pair;
            }
        }
        if (c.warp == 3) {
            const float v = widen(narrow(c.look(p.in[r], (a.heads + a.kv_heads + a.head) * a.dim + own + min(lane, a.values - 1))));
            if (lane < a.values) values[place * a.values + lane] = v;
            if (lane < a.values && query == 0) ring[((u64)a.capacity + place) * a.dim + own + lane] = narrow(v);
        }
        c.meet();
        for (u32 i = c.warp; i < seen; i += 4 * FRAME_WARPS) {
            float score[4];
#pragma unroll
            for (int u = 0; u < 4; u++) {
                const u32 at = first + min(i + u * FRAME_WARPS, seen - 1);
                u32 k[D / 2];
                frame_raw<D>(reinterpret_cast<const bf16*>(keys + (at < a.capacity ? at : at % a.capacity) * stride), lane, k);
                score[u] = frame_dot<D>(q, k);
            }
#pragma unroll
            for (int m = 16; m > 0; m >>= 1)
#pragma unroll
                for (int u = 0; u < 4; u++) score[u] += __shfl_xor_sync(FULL, score[u], m);
#pragma unroll
            for (int u = 0; u < 4; u++)
                if (lane == u && i + u * FRAME_WARPS < seen) c.s.scores[i + u * FRAME_WARPS] = score[u] * a.scale;
        }
        c.meet();
        const float s0 = lane < seen ? c.s.scores[lane] : -1e30f, s1 = lane + 32 < seen ? c.s.scores[lane + 32] : -1e30f;
        const float most = warp_max(fmaxf(s0, s1));
        const float e0 = lane < seen ? __expf(s0 - most) : 0.0f, e1 = lane + 32 < seen ? __expf(s1 - most) : 0.0f;
        for (u32 v = c.warp; v < a.values; v += 2 * FRAME_WARPS) {
            // The sum of weights, and two values of the result.
            float x[3] = {e0 + e1, 0.0f, 0.0f};
#pragma unroll
            for (int u = 0; u < 2; u++) {
                const u32 own_value = min(v + u * FRAME_WARPS, a.values - 1);
                if (lane < seen) x[1 + u] = e0 * values[p0 * a.values + own_value];
                if (lane + 32 < seen) x[1 + u] += e1 * values[p1 * a.values + own_value];
            }
#pragma unroll
            for (int m = 16; m > 0; m >>= 1)
#pragma unroll
                for (int u = 0; u < 3; u++) x[u] += __shfl_xor_sync(FULL, x[u], m);
            if (lane < 2 && v + lane * FRAME_WARPS < a.values)
                c.put(p.out[r], (a.head * a.group + query) * a.dim + own + v + lane * FRAME_WARPS, __fdividef(lane ? x[2] : x[1], x[0]));
        }
    }
    c.sent();
    c.learn(p.nap);
}
#endif
