// Products of one or two rows, the weights in registers before the row is there.
//
// A chunk is 8 outputs of 1024 inputs, and a warp has 128 inputs of each. Sixteen bytes of an output are four pairs of inputs; they are
// what a lane has of two rows of a tile of the tensor cores, the first and third pair of one and the second and fourth of the
// other. Lanes of odd outputs read neighbouring 64 bytes in the other order, since all would meet in the same banks.
// The eight columns of a tile are (order, row of the tile, half of the input's bits); what counts is where a lane's weights meet their
// own inputs.

#ifdef FRAME_RUNS
// What a product does besides multiplying: as in `product.rs`.
#define DOES_GATE 1u
#define DOES_RMS 2u
#define DOES_LAYER 4u
#define DOES_BIAS 8u
#define DOES_ACT 16u
#define DOES_ADD 32u
// Of the first row; the second row's is the next bit.
#define OLD_EXCHANGED 64u
#define IN_EXCHANGED 256u
#define DOES_NORM (DOES_RMS | DOES_LAYER)
#define HELD(S, H) (16 * (S) + (H))

// The block's 8 outputs at a time of a matrix: from which group on, and to which.
DEV uint2 frame_share(const FrameBlock& c, u32 n) {
    const u32 groups = (n + 7) / 8;
    return {groups * c.b >> c.shift, groups * (c.b + 1) >> c.shift};
}
DEV uint2 frame_lds2(u32 p) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(p));
    return v;
}
DEV void frame_sts(u32 to, u32 v) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(v) : "memory"); }

// The part of a product that all lengths of rows share.
template <int R> struct FrameProduct {
    FrameBlock& c;
    const FramePhase& p;
    u32 mode, k, left;  // of the block's chunks those that are left
    u32 ring, columns[2], half, sums;  // where the lane's weights, inputs and sums are
    bool keeps;

    MEMBER FrameProduct(FrameBlock& c_, const FramePhase& p_, u32 mode_, u32 groups) : c(c_), p(p_), mode(mode_) {
        const u32 g = c.lane / 4, t = c.lane % 4, segments = p.segments;
        k = p.k, left = (groups << (mode & DOES_GATE)) * segments;
        ring = c.ring + g * 2048 + c.warp * 256 + t * 16 + (g & 1) * 64;
        half = 2048 * segments + 64;
        const u32 column = c.xs + (g & 1 ? half : 0) + c.warp * 256 + t * 16 + (g & 2) * 4;
        columns[0] = column + (g >> 2) * 64, columns[1] = column + 64 - (g >> 2) * 64;
        // A row's sums lie so that lanes of different outputs do not meet.
        sums = c.xs + c.a.x_bytes + 4 * (g * R * 16 + ((2 * c.warp + (t & 1)) ^ (g >> 1) << 2));
        keeps = t >> 1 == (g & 1);
    }
    // The thread's values of the norm's weights, or ones.
    template <int N> MEMBER void weights(u32 first, float4 (&w)[N]) const {
        const u64 norm = p.norm + 16 * c.t;
#pragma unroll
        for (int i = 0; i < N; i++) {
            w[i] = {1.0f, 1.0f, 1.0f, 1.0f};
            if (mode & DOES_NORM && first + 1024 * i + 4 * c.t < k) w[i] = frame_ldg(norm + 4 * (first + 1024 * i));
        }
    }
    // Asks for the thread's values of N segments of a row that others make. What is nobody's is zero and has the flag.
    template <int N> MEMBER void ask(int r, u32 first, u32 wanted, uint4 (&x)[N]) const {
        const u32 value = first + 4 * c.t;
        const u64 place = (u64)(c.ex + p.in[r].area) + 4 * value;
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[i] = {wanted, wanted, wanted, wanted};
            if (value + 1024 * i < k)
                asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                             : "=r"(x[i].x), "=r"(x[i].y), "=r"(x[i].z), "=r"(x[i].w) : "l"(place + 4096 * i) : "memory");
        }
    }
    MEMBER u32 wanted(int r) const {
        u32 flag = c.flag(p.in[r].how);
        // As a number: the compiler would compare every word by predicates.
        asm volatile("" : "+r"(flag));
        return flag;
    }
    // Waits until all that was asked for is there.
    template <int N> MEMBER void given(int r, u32 first, u32 wanted, uint4 (&x)[N]) const {
        u32 looks = 0;
        while (true) {
            u32 wrong = 0;
#pragma unroll
            for (int i = 0; i < N; i++) wrong |= (x[i].x ^ wanted) | (x[i].y ^ wanted) | (x[i].z ^ wanted) | (x[i].w ^ wanted);
            if (!__any_sync(FULL, wrong & 1)) break;
            c.waited = true;
            c.give_up(looks);
            ask<N>(r, first, wanted, x);
        }
    }
    // The same of a row of a table, or of one that was there before the program.
    template <int N> MEMBER void read(int r, u32 first, uint4 (&x)[N]) const {
        const u32 value = first + 4 * c.t;
#pragma unroll
        for (int i = 0; i < N; i++) {
            float4 v = {};
            if (value + 1024 * i < k) v = c.four_of(p.in[r], p.in[r].how, value + 1024 * i);
            x[i] = {__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w)};
        }
    }
    template <int N> MEMBER static void values(const uint4 (&x)[N], float (&v)[4 * N]) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            v[4 * i] = __uint_as_float(x[i].x & ~1u), v[4 * i + 1] = __uint_as_float(x[i].y & ~1u);
            v[4 * i + 2] = __uint_as_float(x[i].z & ~1u), v[4 * i + 3] = __uint_as_float(x[i].w & ~1u);
        }
    }
    // Four values as inputs: upper and lower bf16 halves, pairs where lanes of the tiles look for them.
    MEMBER void stage(int r, u32 segment, const float (&v)[4]) const {
        const u32 to = c.xs + 2 * r * half + 2048 * segment + c.t / 2 * 16 + (c.t & 1) * 4;
        const u32 h0 = frame_pack(v[0], v[1]), h1 = frame_pack(v[2], v[3]);
        frame_sts(to, h0), frame_sts(to + 8, h1);
        frame_sts(to + half, frame_pack(v[0] - low(h0), v[1] - high(h0)));
        frame_sts(to + half + 8, frame_pack(v[2] - low(h1), v[3] - high(h1)));
    }
    // N segments of a row, normed as far as that can be done before the whole row is known; adds up their squares.
    template <int N> MEMBER void lay_out(int r, u32 first, u32 count, const uint4 (&x)[N], const float4 (&w)[N], float& squares) const {
        float v[4 * N];
        values<N>(x, v);
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (i >= count) break;
#pragma unroll
            for (int e = 0; e < 4; e++) squares = fmaf(v[4 * i + e], v[4 * i + e], squares);
            const float own[4] = {v[4 * i] * w[i].x, v[4 * i + 1] * w[i].y, v[4 * i + 2] * w[i].z, v[4 * i + 3] * w[i].w};
            stage(r, first + i, own);
        }
    }
    // The same of a row that is shifted and scaled before it is multiplied.
    template <int N> MEMBER void lay_out_normed(int r, u32 first, u32 count, const uint4 (&x)[N], float mean, float scale) const {
        float v[4 * N];
        values<N>(x, v);
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (i >= count) break;
            const u32 value = 1024 * (first + i) + 4 * c.t;
            float own[4] = {};
            if (value < k) {
                const float4 w = frame_ldg(p.norm + 4 * value), b = frame_ldg(p.address[0] + 4 * value);
                own[0] = fmaf((v[4 * i] - mean) * scale, w.x, b.x), own[1] = fmaf((v[4 * i + 1] - mean) * scale, w.y, b.y);
                own[2] = fmaf((v[4 * i + 2] - mean) * scale, w.z, b.z), own[3] = fmaf((v[4 * i + 3] - mean) * scale, w.w, b.w);
            }
            stage(r, first + i, own);
        }
    }
    // The sum of a value over the block.
    MEMBER float all(float v) const {
        const float sum = warp_sum(v);
        if (c.lane == 0) c.s.tops[c.warp][0] = sum;
        c.meet();
        float total = 0.0f;
#pragma unroll
        for (int i = 0; i < FRAME_WARPS; i++) total += c.s.tops[i][0];
        c.meet();
        return total;
    }
    // The mean of a row and what it is scaled by, of the thread's values of its first N segments; the others are there.
    template <int N> MEMBER float2 moments(const uint4 (&x)[N]) const {
        float v[4 * N], sum = 0.0f, squares = 0.0f;
        values<N>(x, v);
#pragma unroll
        for (int i = 0; i < 4 * N; i++) sum += v[i];
        const float per = __uint_as_float(p.number[5]), mean = all(sum) * per;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (1024 * i + 4 * c.t < k)
#pragma unroll
                for (int e = 0; e < 4; e++) squares = fmaf(v[4 * i + e] - mean, v[4 * i + e] - mean, squares);
        return {mean, rsqrtf(all(squares) * per + p.eps)};
    }
    // The warp's parts of the next H chunks, or of those that are left: the ring has something in the places of the others.
    template <int H> MEMBER void chunks(uint4 (&w)[H][4]) {
        const u32 count = min(left, (u32)H), slots = c.a.slots;
        // A lane waits for each: these waits take as long as one.
        u32 own = c.slot + c.lane, parity = c.phase;
        if (own >= slots) own -= slots, parity ^= 1;
        if (c.lane < count) c.await(frame_shared(c.s.full + own), parity);
        __syncwarp();
        u32 at = c.slot;
#pragma unroll
        for (int i = 0; i < H; i++) {
            const u32 place = ring + at * FRAME_CHUNK, other = place ^ 64;
            w[i][0] = frame_lds(place), w[i][1] = frame_lds(other), w[i][2] = frame_lds(place + 128), w[i][3] = frame_lds(other + 128);
            at = at + 1 == slots ? 0 : at + 1;
        }
        __syncwarp();
        if (c.lane < count) asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(frame_shared(c.s.empty + own)) : "memory");
        c.slot += count;
        if (c.slot >= slots) c.slot -= slots, c.phase ^= 1;
    }
    MEMBER uint2 input(int r, u32 segment, int j) const { return frame_lds2(columns[j & 1] + 2 * r * half + 2048 * segment + (j >> 1) * 128); }
    // The lane's part of an output's sum.
    MEMBER float part(const float (&d)[4]) const { return c.lane & 1 ? d[2] + d[3] : d[0] + d[1]; }

    // Rows of S segments that others make, H chunks at a time: a sum a warp for every output.
    template <int S, int H> MEMBER void kept(float (&squares)[R]) {
        float4 norm[S];
        uint4 x[R][S], w[H][4];
        u32 flag[R];
        weights<S>(0, norm);
#pragma unroll
        for (int r = 0; r < R; r++) flag[r] = wanted(r);
        c.rest_for(p.nap);
#pragma unroll
        for (int r = 0; r < R; r++) ask<S>(r, 0, flag[r], x[r]);
        // The row is on its way while weights are read from the ring.
        chunks<H>(w);
#pragma unroll
        for (int r = 0; r < R; r++) {
            given<S>(r, 0, flag[r], x[r]);
            lay_out<S>(r, 0, S, x[r], norm, squares[r]);
        }
        c.meet();
        uint2 in[R][S][4];
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int i = 0; i < S; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) in[r][i][j] = input(r, i, j);
        while (true) {
            float d[R][H / S][4] = {};
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int i = 0; i < H; i++)
#pragma unroll
                    for (int r = 0; r < R; r++)
                        frame_mma(d[r][i / S], w[i][j].x, w[i][j].y, w[i][j].z, w[i][j].w, in[r][i % S][j].x, in[r][i % S][j].y);
            if (left <= H && mode & DOES_RMS) {
#pragma unroll
                for (int r = 0; r < R; r++) squares[r] = warp_sum(squares[r]);
            }
#pragma unroll
            for (int i = 0; i < H / S; i++)
#pragma unroll
                for (int r = 0; r < R; r++) {
                    const float v = part(d[r][i]);
                    if (keeps && i * S < left) frame_sts(sums + 512 * R * i + 64 * r, __float_as_uint(v));
                }
            if (left <= H) break;
            left -= H, sums += 512 * R * (H / S);
            chunks<H>(w);
        }
    }
    // Whether other blocks make a row.
    MEMBER bool others(int r) const { return mode & (IN_EXCHANGED << r); }
    // All other rows: longer ones, those that were there before, and such as are shifted. Inputs are read for every chunk.
    MEMBER void any_row(float (&squares)[R]) {
        constexpr int N = FRAME_BATCH, H = 4;
        const u32 segments = p.segments;
        float4 norm[N];
        uint4 w[H][4];
        {
            uint4 x[R][N];
            u32 flag[R];
            weights<N>(0, norm);
#pragma unroll
            for (int r = 0; r < R; r++) flag[r] = wanted(r);
            c.rest_for(p.nap);
#pragma unroll
            for (int r = 0; r < R; r++)
                if (others(r)) ask<N>(r, 0, flag[r], x[r]);
                else read<N>(r, 0, x[r]);
            chunks<H>(w);
#pragma unroll
            for (int r = 0; r < R; r++) {
                if (others(r)) given<N>(r, 0, flag[r], x[r]);
                if (mode & DOES_LAYER) {
                    const float2 m = moments<N>(x[r]);
                    lay_out_normed<N>(r, 0, segments, x[r], m.x, m.y);
                } else {
                    lay_out<N>(r, 0, segments, x[r], norm, squares[r]);
                }
            }
            for (u32 first = N; first < segments; first += N) {
                weights<N>(1024 * first, norm);
#pragma unroll
                for (int r = 0; r < R; r++) {
                    if (others(r)) ask<N>(r, 1024 * first, flag[r], x[r]), given<N>(r, 1024 * first, flag[r], x[r]);
                    else read<N>(r, 1024 * first, x[r]);
                    lay_out<N>(r, first, segments - first, x[r], norm, squares[r]);
                }
            }
        }
        c.meet();
        float acc[R] = {};
        u32 segment = 0;
        while (true) {
            float v[R][H];
            u32 at = segment;
#pragma unroll
            for (int i = 0; i < H; i++) {
                float d[R][4] = {};
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int r = 0; r < R; r++) {
                        const uint2 in = input(r, at, j);
                        frame_mma(d[r], w[i][j].x, w[i][j].y, w[i][j].z, w[i][j].w, in.x, in.y);
                    }
#pragma unroll
                for (int r = 0; r < R; r++) v[r][i] = part(d[r]);
                at = at + 1 == segments ? 0 : at + 1;
            }
            const u32 count = min(left, (u32)H);
            left -= count;
            if (left) chunks<H>(w);
#pragma unroll
            for (int i = 0; i < H; i++) {
                if (i >= count) break;
#pragma unroll
                for (int r = 0; r < R; r++) acc[r] += v[r][i];
                if (++segment < segments) continue;
                segment = 0;
#pragma unroll
                for (int r = 0; r < R; r++) {
                    if (keeps) frame_sts(sums + 64 * r, __float_as_uint(acc[r]));
                    acc[r] = 0.0f;
                }
                sums += 512 * R;
            }
            if (!left) break;
        }
#pragma unroll
        for (int r = 0; r < R; r++) squares[r] = warp_sum(squares[r]);
    }
};

template <int R> DEV void frame_product(FrameBlock& c, const FramePhase& p, u32 index, const uint4& next) {
    const u32 mode = same(p.number[6]), n = p.n, g = c.lane / 4, t = c.lane % 4;
    const uint2 share = frame_share(c, n);
    const u32 groups = share.y - share.x, mine = min(8 * (share.x + c.warp) + g, n - 1);
    // What the first results meet: asked for before anything is waited for.
    float bias = 0.0f, old[R] = {};
    u32 glance[R] = {}, tag[R];
    u64 tagged[R], stored[R];
    if (mode & DOES_BIAS) bias = at<const float>(p.bias)[mine];
    if (mode & DOES_ADD)
#pragma unroll
        for (int r = 0; r < R; r++) glance[r] = mode & OLD_EXCHANGED << r ? c.glance(p.old[r], mine) : __float_as_uint(c.there(p.old[r], mine));
#pragma unroll
    for (int r = 0; r < R; r++) {
        const FrameRow& out = p.out[r];
        tag[r] = c.flag(out.how), tagged[r] = (u64)(c.ex + out.area + mine), stored[r] = out.at ? out.at + 4 * (u64)mine : 0;
    }
    frame_announce(c, index, next);
    float squares[R] = {};
    FrameProduct<R> m(c, p, mode, groups);
    switch (mode >> 16) {
        case HELD(1, 6): m.template kept<1, 6>(squares); break;
        case HELD(1, 4): m.template kept<1, 4>(squares); break;
        case HELD(1, 2): m.template kept<1, 2>(squares); break;
        case HELD(2, 4): m.template kept<2, 4>(squares); break;
        case HELD(2, 2): m.template kept<2, 2>(squares); break;
        case HELD(3, 3): m.template kept<3, 3>(squares); break;
        default: m.any_row(squares);
    }
    if (c.lane == 0)
#pragma unroll
        for (int r = 0; r < R; r++) c.s.squares[c.flip][r][c.warp] = squares[r];
    if (mode & DOES_ADD && c.warp < groups)
#pragma unroll
        for (int r = 0; r < R; r++) old[r] = mode & OLD_EXCHANGED << r ? c.seen(glance[r], p.old[r], mine) : __uint_as_float(glance[r]);
    c.meet();
    const u32 sums = c.xs + c.a.x_bytes;
    for (u32 group = c.warp; group < groups; group += FRAME_WARPS) {
        const u32 output = 8 * (share.x + group) + g;
        const bool first = group == c.warp;
#pragma unroll
        for (int r = 0; r < R; r++) {
            const u32 row = sums + 64 * (((group << (mode & DOES_GATE)) * 8 + g) * R + r) + 16 * t;
            const uint4 parts = frame_lds(row);
            uint4 others = {};
            if (mode & DOES_GATE) others = frame_lds(row + 512 * R);
            const auto sum_of = [&](const uint4& e) {
                float v = (__uint_as_float(e.x) + __uint_as_float(e.y)) + (__uint_as_float(e.z) + __uint_as_float(e.w));
                v += __shfl_xor_sync(FULL, v, 1);
                return v + __shfl_xor_sync(FULL, v, 2);
            };
            float scale = 1.0f;
            if (mode & DOES_RMS) {
                const float4* squares = reinterpret_cast<const float4*>(c.s.squares[c.flip][r]);
                const float4 e = squares[0], f = squares[1];
                scale = rsqrtf((((e.x + e.y) + (e.z + e.w)) + ((f.x + f.y) + (f.z + f.w))) * __uint_as_float(p.number[5]) + p.eps);
            }
            float v = sum_of(parts) * scale;
            if (mode & DOES_GATE) v = v * sigmoid_roughly(v) * sum_of(others) * scale;
            else if (mode & DOES_BIAS) v += first ? bias : at<const float>(p.bias)[min(output, n - 1)];
            if (mode & DOES_ACT) v *= sigmoid_roughly(v);
            if (mode & DOES_ADD) v += first ? old[r] : c.look(p.old[r], min(output, n - 1));
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
