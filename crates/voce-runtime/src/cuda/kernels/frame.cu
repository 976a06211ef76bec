// A recording of one stream's ops as one persistent kernel: `cuda/frame/` makes the program that it runs.
//
// Every block stays on its multiprocessor for the whole recording and goes through the same phases: products, attention, draws.
// A block has fixed outputs of every matrix. One warp streams the block's weights through a ring in shared memory, in the order of
// their use and as far ahead as there is room. Rows go from block to block through the cache as values that carry their own
// flag: the lowest bit says which use of its place a value belongs to, so there is neither a fence nor a barrier of the grid.
// Bound by reading the weights, or by the latency of the exchanges.

#define FRAME_WARPS 8
#define FRAME_THREADS (32 * FRAME_WARPS)
// One more warp copies weights; it comes with three that only leave their registers to others.
#define FRAME_BLOCK (FRAME_THREADS + 128)
// A part of a matrix on its way: 8 outputs of 1024 inputs in bf16.
#define FRAME_CHUNK 16384
#define FRAME_SLOTS 12
// Chunks whose weights are in registers before the row is there.
#define FRAME_HELD 6
// Segments of a row that stay in registers, and those of a longer one that a thread asks for at once.
#define FRAME_KEPT 3
#define FRAME_BATCH 6
#define FRAME_NAPS 32
// Looks after which nothing will come: some seconds.
#define FRAME_LOOKS (1u << 24)
// Positions of a ring that a block keeps in its own memory.
#define FRAME_SHORT 64
// Bytes between rows of keys that a block keeps, beyond their own.
#define FRAME_KEY_PAD 16

#define PHASE_PRODUCT 0
#define PHASE_EMBED 1
#define PHASE_NORM 2
#define PHASE_ATTEND 3
#define PHASE_ATTEND_SHORT 4
#define PHASE_SAMPLE 5

#define FROM_PLAIN 0
#define FROM_EXCHANGE 1
#define FROM_TABLE_BF16 2
#define FROM_TABLE_F32 3

// A row: where it lies in memory, and where it is exchanged. `how`: where it is read from; from bit 8 on its flag, and whether that
// changes with every launch. Of tables, `area` is the distance of rows; which one it is, the last draw says.
struct FrameRow {
    u64 at;
    u32 area, how;
};

struct FramePhase {
    u32 kind, nap, fly, pace;
    u64 w;
    u32 pitch, k;
    u32 n, gated, rows, act;
    u64 norm;
    float eps;
    u32 add;
    u64 bias;
    u32 segments, ring;
    FrameRow in[2], old[2], out[2];
    u64 address[6];
    u32 number[8];
};

struct FrameArgs {
    u64 program, exchange, epochs, naps;
    u32 phases, slots, x_bytes, red_bytes, later, sooner, blank, remembers;
};

#if defined(VOCE_EMULATED) || __CUDA_ARCH__ < 900
// Devices that cannot copy in bulk never run it.
DEV void frame_launch(const FrameArgs& a) {}
#else

#define MEMBER __device__ __forceinline__

struct FrameShared {
    u64 full[FRAME_SLOTS], empty[FRAME_SLOTS];
    uint4 phases[3][sizeof(FramePhase) / 16];
    float squares[2][2][FRAME_WARPS];
    float tops[FRAME_WARPS][2], totals[FRAME_WARPS][2];
    float scores[FRAME_SHORT];
    int naps[FRAME_NAPS];
    u32 counts[2][FRAME_WARPS], more[2][FRAME_WARPS];
    Best best[2][FRAME_WARPS];
    u32 keys[2][FRAME_WARPS];
    u32 token;
    u64 seen;  // where a token is to be marked as drawn when the others are done
    u32 bit;
};

// A value that is the same in all lanes, known to be so by the compiler: branches on it keep a warp together.
DEV u32 same(u32 x) { return __shfl_sync(FULL, x, 0); }
DEV u32 frame_shared(const void* p) { return (u32)__cvta_generic_to_shared(p); }
DEV u32 frame_clock() {
    u32 v;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(v));
    return v;
}
DEV uint4 frame_lds(u32 p) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(p));
    return v;
}
DEV u32 frame_pack(float lo, float hi) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}
// Cosine and sine of any angle, within 1e-6: the long code of exact ones would push what runs all the time out of the instruction cache.
DEV float2 frame_turn(float angle) {
    const double turns = (double)angle * 0.15915494309189535;
    const float rest = (float)((turns - rint(turns)) * 6.283185307179586);
    return {__cosf(rest), __sinf(rest)};
}

DEV void frame_mma(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

struct FrameBlock {
    const FrameArgs& a;
    FrameShared& s;
    float* ex;
    char* rows;   // behind the ring: rows of products, or a draw's numbers
    char* rest;   // then sums of outputs, then rings that the block keeps
    u32 ring, xs, epoch, t, warp, lane, b, blocks, shift, slot, phase, since, flip;
    bool waited;  // whether a look came too early
    u64 known;    // which task `task` is
    uint4 task;   // the slot, its position and the first one that it sees
    float* red;

    MEMBER FrameBlock(const FrameArgs& a_, FrameShared& s_) : a(a_), s(s_) {}

    // A wait that has lasted for seconds never ends: the launch fails by a write to where nothing is (a trap would cap the registers).
    MEMBER void give_up(u32& looks) {
        if (++looks == FRAME_LOOKS) asm volatile("st.global.u32 [%0], %1;" ::"l"(8ull), "r"(looks) : "memory");
    }
    // What every phase computes anew: kept over all of them, it would take the registers that weights are held in.
    MEMBER void forget() {
        asm volatile("" : "+r"(t), "+r"(lane), "+r"(warp), "+r"(b), "+r"(xs), "+r"(ring), "+l"(red), "+l"(rest), "+l"(rows), "+l"(ex));
    }
    MEMBER void await(u32 barrier, u32 parity) {
        u32 done = 0, looks = 0;
        while (true) {
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                         : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
            if (done) return;
            give_up(looks);
        }
    }
    // The warp's parts of the next `count` chunks of the ring, which it is done with then, and zeros: registers that are not always
    // written would be held from phase to phase.
    template <int N> MEMBER void chunks(u32 from, u32 flip_, u32 count, uint4 (&w)[N][4]) {
        // A lane waits for each: these waits take as long as one.
        u32 own = slot + lane, parity = phase;
        if (own >= a.slots) own -= a.slots, parity ^= 1;
        if (lane < count) await(frame_shared(s.full + own), parity);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (i < count) {
                const u32 at = ring + slot * FRAME_CHUNK + from;
                w[i][0] = frame_lds(at + flip_), w[i][1] = frame_lds(at + flip_ + 8192);
                w[i][2] = frame_lds(at + (flip_ ^ 64)), w[i][3] = frame_lds(at + (flip_ ^ 64) + 8192);
                if (++slot == a.slots) slot = 0, phase ^= 1;
            } else {
                w[i][0] = w[i][1] = w[i][2] = w[i][3] = {};
            }
        }
        __syncwarp();
        if (lane < count) asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(frame_shared(s.empty + own)) : "memory");
    }
    MEMBER void meet() { asm volatile("bar.sync 1, 256;" ::: "memory"); }
    // The slot, its position and the first one that it sees: layers after each other have the same.
    MEMBER void learn_task(u64 place) {
        if (same((u32)(place ^ known)) == 0) return;
        const uint4 t0 = *at<const uint4>(place), t1 = *at<const uint4>(place + 16);
        known = place, task = {same(t0.z), same(t0.w), same(t1.x), 0};
    }
    // The block's results are on their way.
    MEMBER void sent() { since = frame_clock(); }

    // Looks do harm before they can find anything: the first comes when it found something before.
    MEMBER void rest_for(u32 which) {
        const u32 nap = same(*(volatile int*)&s.naps[which]);
        while (frame_clock() - since < nap) {}
        waited = false;
    }
    MEMBER void learn(u32 which) {
        if (warp != 1) return;
        const bool any = __any_sync(FULL, waited);
        if (lane == 0) s.naps[which] = max(0, min(s.naps[which] + (any ? (int)a.later : -(int)a.sooner), 6000));
    }
    MEMBER u32 flag(u32 how) const { return (how >> 8 ^ (how >> 9 & epoch)) & 1; }
    MEMBER void put(const FrameRow& to, u32 i, float v) {
        const u32 word = (__float_as_uint(v) & ~1u) | flag(to.how);
        asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(ex + to.area + i), "r"(word) : "memory");
        if (to.at) at<float>(to.at)[i] = v;
    }
    // One value that others may still be making; whole warps look.
    MEMBER float look(const FrameRow& from, u32 i) {
        const u32 how = same(from.how);
        if ((how & 3) == FROM_EXCHANGE) {
            const u32 wanted = flag(how);
            u32 word, looks = 0;
            while (true) {
                asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(ex + from.area + i) : "memory");
                if (!__any_sync(FULL, (word & 1) != wanted)) break;
                waited = true;
                give_up(looks);
            }
            return __uint_as_float(word & ~1u);
        }
        const u64 row = (how & 3) == FROM_PLAIN ? 0 : (u64)s.token * from.area;
        if ((how & 3) == FROM_TABLE_BF16) return widen(at<const bf16>(from.at)[row + i]);
        return at<const float>(from.at)[row + i];
    }
    // A value that this block made before, as it is there now, and that value: the look that finds it was most often the first.
    MEMBER u32 glance(const FrameRow& from, u32 i) {
        u32 word = 0;
        if (same(from.how & 3) == FROM_EXCHANGE)
            asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(ex + from.area + i) : "memory");
        return word;
    }
    MEMBER float seen(u32 word, const FrameRow& from, u32 i) {
        const u32 how = same(from.how);
        if ((how & 3) == FROM_EXCHANGE && !__any_sync(FULL, (word & 1) != flag(how))) return __uint_as_float(word & ~1u);
        return look(from, i);
    }
    // Some values that others may still be making, at several places.
    template <int N> MEMBER void look_at(const FrameRow& from, const u32 (&places)[N], float (&v)[N]) {
        const u32 wanted = flag(same(from.how));
        u32 word[N], looks = 0;
        while (true) {
            u32 wrong = 0;
#pragma unroll
            for (int i = 0; i < N; i++)
                asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word[i]) : "l"(ex + from.area + places[i]) : "memory");
#pragma unroll
            for (int i = 0; i < N; i++) wrong |= word[i] ^ wanted;
            if (!__any_sync(FULL, wrong & 1)) break;
            waited = true;
            give_up(looks);
        }
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = __uint_as_float(word[i] & ~1u);
    }
    // The row of a token, or one that was there before the program.
    MEMBER float4 four_of(const FrameRow& from, u32 how, u32 i) const {
        const u64 place = ((how & 3) == FROM_PLAIN ? 0 : (u64)s.token * from.area) + i;
        if ((how & 3) == FROM_TABLE_BF16) return widen4(*at<const uint2>(from.at + 2 * place));
        return *at<const float4>(from.at + 4 * place);
    }
    // N groups of four values, `step` values apart; those from `count` on, a multiple of four, are zeros.
    template <int N> MEMBER void take(const FrameRow& from, u32 first, u32 step, u32 count, float (&v)[4 * N]) {
        const u32 how = same(from.how);
        if ((how & 3) == FROM_EXCHANGE) {
            const u32 wanted = flag(how) ? FULL : 0;
            uint4 x[N];
            u32 looks = 0;
            while (true) {
                u32 wrong = 0;
#pragma unroll
                for (int i = 0; i < N; i++) {
                    x[i] = {wanted, wanted, wanted, wanted};
                    if (first + i * step < count)
                        asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                                     : "=r"(x[i].x), "=r"(x[i].y), "=r"(x[i].z), "=r"(x[i].w)
                                     : "l"(ex + from.area + first + i * step) : "memory");
                }
#pragma unroll
                for (int i = 0; i < N; i++) wrong |= (x[i].x ^ wanted) | (x[i].y ^ wanted) | (x[i].z ^ wanted) | (x[i].w ^ wanted);
                if (!__any_sync(FULL, wrong & 1)) break;
                waited = true;
                give_up(looks);
            }
#pragma unroll
            for (int i = 0; i < N; i++) {
                const bool have = first + i * step < count;
                v[4 * i] = have ? __uint_as_float(x[i].x & ~1u) : 0.0f, v[4 * i + 1] = have ? __uint_as_float(x[i].y & ~1u) : 0.0f;
                v[4 * i + 2] = have ? __uint_as_float(x[i].z & ~1u) : 0.0f, v[4 * i + 3] = have ? __uint_as_float(x[i].w & ~1u) : 0.0f;
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            float4 four = {};
            if (first + i * step < count) four = four_of(from, how, first + i * step);
            v[4 * i] = four.x, v[4 * i + 1] = four.y, v[4 * i + 2] = four.z, v[4 * i + 3] = four.w;
        }
    }
};

// The thread's values of N segments of a row, with the norm's weights, as a product's input: upper and lower bf16 halves, `half`
// bytes apart. Adds up their squares.
template <int N> DEV void frame_stage(FrameBlock& c, const float (&w)[4 * N], float (&v)[4 * N], u32 to, u32 half, u32 count, float& squares) {
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

// The descriptor of the next phase, a piece a thread, and where it goes once nobody reads what was there.
DEV uint4 frame_next(FrameBlock& c, u32 index) {
    uint4 v = {};
    if (c.t < sizeof(FramePhase) / 16 && index + 1 < c.a.phases)
        v = *at<const uint4>(c.a.program + sizeof(FramePhase) * (u64)(index + 1) + 16 * c.t);
    return v;
}
DEV void frame_announce(FrameBlock& c, u32 index, const uint4& v) {
    if (c.t < sizeof(FramePhase) / 16) c.s.phases[(index + 1) % 3][c.t] = v;
}

// The block's 8 outputs at a time of a matrix: from which group on, and to which.
DEV uint2 frame_share(const FrameBlock& c, u32 n) {
    const u32 groups = (n + 7) / 8;
    return {groups * c.b >> c.shift, groups * (c.b + 1) >> c.shift};
}

// H chunks of rows of S segments against their inputs: a sum a warp for every output.
template <int R, int S, int H> DEV void frame_multiply(const uint4 (&w)[FRAME_HELD][4], const uint4 (&x)[FRAME_KEPT][2], bool keeps, u32 left, float* to) {
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
        if (keeps && i * S < left) to[128 * R * i] = d[i][0] + d[i][1], to[128 * R * i + 64 * R] = d[i][2] + d[i][3];
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
    uint4 w[FRAME_HELD][4];
    c.chunks<FRAME_HELD>(from, flip, min(chunks, held), w);
    if (add && c.warp < groups)
#pragma unroll
        for (int r = 0; r < R; r++) old[r] = c.seen(glance[r], p.old[r], mine);
    u32 tag[R];
    u64 tagged[R], stored[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        const FrameRow& out = p.out[r];
        tag[r] = c.flag(out.how), tagged[r] = (u64)(c.ex + out.area + mine), stored[r] = out.at ? out.at + 4 * (u64)mine : 0;
    }
    frame_announce(c, index, next);
    c.rest_for(p.nap);
    const u32 place = c.xs + 8 * c.t;
#pragma unroll
    for (int r = 0; r < R; r++) {
        float v[4 * N];
        c.take<N>(p.in[r], 4 * c.t, 4 * FRAME_THREADS, k, v);
        frame_stage<N>(c, weights, v, place + 2 * r * half, half, segments, squares[r]);
    }
    if (!KEPT)
        for (u32 first = FRAME_BATCH; first < segments; first += FRAME_BATCH) {
            frame_weights<N>(c, normed, norm, 1024 * first, k, weights);
#pragma unroll
            for (int r = 0; r < R; r++) {
                float v[4 * N];
                c.take<N>(p.in[r], 1024 * first + 4 * c.t, 4 * FRAME_THREADS, k, v);
                frame_stage<N>(c, weights, v, place + 2 * r * half + 2048 * first, half, segments - first, squares[r]);
            }
        }
    c.meet();
    float* to = c.red + (g / 2 * R + t / 2) * 16 + 2 * c.warp + (g & 1);
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
                to += 128 * R * held;
            } else if (segments == 2) {
                if (held == 4) frame_multiply<R, 2, 4>(w, x, keeps, left, to);
                else frame_multiply<R, 2, 2>(w, x, keeps, left, to);
                to += 64 * R * held;
            } else {
                frame_multiply<R, 3, 3>(w, x, keeps, left, to);
                to += 128 * R;
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
                    if (keeps) to[0] = acc[0], to[64 * R] = acc[1];
                    to += 128 * R;
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
                const float4 e = *reinterpret_cast<const float4*>(c.red + (row * R + r) * 16 + 4 * t);
                float v = (e.x + e.y) + (e.z + e.w);
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

// The sum of rows of tables, in their order: a block has some columns.
DEV void frame_embed(FrameBlock& c, const FramePhase& p, u32 index, const uint4& next) {
    const u32 parts = p.number[0], columns = p.number[1], share = p.k / c.blocks, first = c.b * share, pairs = share / 2;
    const u32* tokens = at<const u32>(p.address[2]) + (u64)*at<const u32>(p.address[1]) * columns;
    for (u32 i = c.t; i < parts * pairs; i += FRAME_THREADS) {
        const EmbedPart part = at<const EmbedPart>(p.address[0])[i / pairs];
        const u32 token = tokens[part.column], column = first + 2 * (i % pairs);
        float2 v = {0.0f, 0.0f};
        if (token < part.count) {
            const u64 value = (u64)token * part.stride + column;
            if (part.narrow) {
                const u32 pair = at<const u32>(part.rows)[value / 2];
                v = {low(pair), high(pair)};
            } else {
                v = at<const float2>(part.rows)[value / 2];
            }
        }
        *reinterpret_cast<float2*>(c.red + i / pairs * share + 2 * (i % pairs)) = v;
    }
    frame_announce(c, index, next);
    c.meet();
    if (c.t < share) {
        float sum = 0.0f;
        for (u32 i = 0; i < parts; i++) sum += c.red[i * share + c.t];
        c.put(p.out[0], first + c.t, sum);
    }
    c.sent();
}

// A row divided by its root mean square, to one place or two.
DEV void frame_norm(FrameBlock& c, const FramePhase& p, u32 index, const uint4& next) {
    float sum = 0.0f;
    c.rest_for(p.nap);
    for (u32 i = 4 * c.t; i < p.k; i += 4 * FRAME_THREADS) {
        float v[4];
        c.take<1>(p.in[0], i, 0, p.k, v);
        sum += v[0] * v[0] + v[1] * v[1] + v[2] * v[2] + v[3] * v[3];
    }
    sum = warp_sum(sum);
    if (c.lane == 0) c.s.squares[c.flip][0][c.warp] = sum;
    frame_announce(c, index, next);
    c.meet();
    sum = 0.0f;
#pragma unroll
    for (int i = 0; i < FRAME_WARPS; i++) sum += c.s.squares[c.flip][0][i];
    const float scale = rsqrtf(__fdividef(sum, (float)p.k) + p.eps);
    const u32 share = p.k / c.blocks, i = c.b * share + c.t;
    if (c.warp == 0) {
        const float v = c.look(p.in[0], min(i, p.k - 1)) * scale * at<const float>(p.norm)[min(i, p.k - 1)];
        for (u32 r = 0; r < p.rows; r++)
            if (c.t < share) c.put(p.out[r], i, v);
    }
    c.sent();
    c.flip ^= 1;
}

// What attention has in a phase: the ring, its shape, norms and rotation.
struct FrameAttend {
    const FramePhase& p;
    u32 heads, kv_heads, dim, capacity, rope, rope_rows, window, group, blocks, head, j, values;
    float scale;
    MEMBER FrameAttend(const FrameBlock& c, const FramePhase& p_) : p(p_) {
        heads = same(p.n), kv_heads = same(p.number[0]), dim = same(p.k), capacity = same(p.number[1]), rope = same(p.number[2]);
        rope_rows = same(p.number[3]), window = same(p.number[4]);
        scale = __uint_as_float(p.number[5]);
        group = heads / kv_heads, blocks = c.blocks / kv_heads, head = c.b / blocks, j = c.b % blocks, values = group * dim / blocks;
    }
    MEMBER bf16* keys(u32 slot) const { return at<bf16>(p.address[0]) + ((u64)slot * kv_heads + head) * 2 * ((u64)capacity * dim); }
    // Cosines and sines of a lane's D values.
    template <int D> MEMBER void turns(u32 position, u32 lane, float (&c)[D], float (&s)[D]) const {
        const u32 half = 16 * D;
#pragma unroll
        for (int i = 0; i < D; i++) {
            const u32 e = rope == ROPE_HALVES ? D * (lane % 16) + i : (D * lane + i) / 2;
            c[i] = 1.0f, s[i] = 0.0f;
            if (rope == ROPE_NONE) continue;
            if (position < rope_rows) {
                const float* row = at<const float>(p.address[2]) + (u64)position * 2 * half;
                c[i] = row[e], s[i] = row[half + e];
            } else {
                const float2 turn = frame_turn(at<const float>(p.address[3])[e] * (float)position);
                c[i] = turn.x, s[i] = turn.y;
            }
        }
    }
    template <int D> MEMBER void weights(u64 from, u32 lane, float (&w)[D]) const {
#pragma unroll
        for (int i = 0; i < D; i++) w[i] = from ? at<const float>(from)[D * lane + i] : 1.0f;
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

// One row over a long ring: the blocks of a key head share its positions, the last one has the new one too; then each block
// puts some of the head's values together.
template <int D, int Q> DEV void frame_attend(FrameBlock& c, const FramePhase& p, u32 index, const uint4& next) {
    const FrameAttend a(c, p);
    const bool normed = same(p.address[4] != 0);
    const int AHEAD = 4;
    const u32 lane = c.lane;
    c.learn_task(p.address[1]);
    const u32 slot = c.task.x, position = c.task.y, first = c.task.z, past = position - first;
    bf16* keys = a.keys(slot);
    bf16* values = keys + (u64)a.capacity * a.dim;
    const u32 each = (past + a.blocks - 1) / a.blocks, begin = min(a.j * each, past), end = min(begin + each, past), start = first % a.capacity;
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
    if (a.j == a.blocks - 1 && c.warp == FRAME_WARPS - 1) {
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
        const u32 g = c.t / a.dim, to = c.t / a.values;
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
        c.put(part, at + c.t % a.values, value);
        if (c.t % a.values == 0) c.put(part, at + a.values, most), c.put(part, at + a.values + 1, sum);
    }
    c.sent();
    c.learn(p.nap);
    if (c.t < a.values * a.blocks) {
        const u32 v = c.t / a.blocks, from = ((a.head * a.blocks + a.j) * a.blocks + c.t % a.blocks) * record;
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
        if (c.t % a.blocks == 0) c.put(p.out[0], a.head * a.group * a.dim + a.j * a.values + v, __fdividef(x, sum));
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
    const u32 slot = c.task.x, begin = c.task.y, rows = same(p.rows), query = a.j * a.values / a.dim, own = a.j * a.values % a.dim;
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
        const u32 position = begin + r, place = position % a.capacity;
        const u32 first = a.window && position + 1 > a.window ? position + 1 - a.window : 0, seen = position + 1 - first;
        float q[D], cosine[D], sine[D];
        a.turns<D>(position, lane, cosine, sine);
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
        const u32 p0 = (first + lane) % a.capacity, p1 = (first + lane + 32) % a.capacity;
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

// Every block draws the same token for itself. Arithmetic that decides is that of `sampling.cu`. A thread has four neighbours of
// every 1024 logits; their keys and noise are in shared memory, where rows of products were.
DEV void frame_draw(FrameBlock& c, const FramePhase& p, u32 index, const uint4& next) {
    const uint4 row0 = *at<const uint4>(p.address[0]), row1 = *at<const uint4>(p.address[0] + 16), row2 = *at<const uint4>(p.address[0] + 32);
    const SampleRow r = {row0.x, row0.y, row0.z, row0.w, __uint_as_float(row1.x), __uint_as_float(row1.y), __uint_as_float(row1.z),
                         row1.w, row2.x, row2.y, 0, 0};
    const u32 n = same(p.n), columns = p.number[0], column = p.number[1], words = p.number[2];
    u32* history = p.address[2] ? at<u32>(p.address[2]) + (u64)r.slot * words : 0;
    const bool penalised = same(history && r.penalty != 1.0f), drawn = same(r.inverse > 0.0f);
    float4* noise = reinterpret_cast<float4*>(c.rows) + c.t;
    uint4* keys = reinterpret_cast<uint4*>(c.rows + 4 * p.number[3]) + c.t;
    const u32 groups = (n + 4 * FRAME_THREADS - 1) / (4 * FRAME_THREADS);
    if (drawn)
        for (u32 i = 0; i < groups; i++) {
            float own[4];
#pragma unroll
            for (int e = 0; e < 4; e++) own[e] = gumbel(r, 4 * (c.t + FRAME_THREADS * i) + e);
            noise[FRAME_THREADS * i] = {own[0], own[1], own[2], own[3]};
        }
    frame_announce(c, index, next);
    c.rest_for(p.nap);
    for (u32 i = 0; i < groups; i += 2) {
        const u32 first = 4 * (c.t + FRAME_THREADS * i);
        float x[8];
        c.take<2>(p.in[0], first, 4 * FRAME_THREADS, n, x);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (i + half >= groups) break;
            const u32 begin = first + 4 * FRAME_THREADS * half;
            const u32 seen = penalised && begin < n ? history[begin / 32] >> (begin % 32) : 0;
            u32 own[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const u32 id = begin + e;
                float v = x[4 * half + e];
                if (seen >> e & 1) v = v < 0.0f ? plain_mul(v, r.penalty) : quotient(v, r.penalty);
                if (drawn) v = plain_mul(v, r.inverse);
                const bool may = id < n && (id < r.below || id == r.also) && v > -INF;
                own[e] = may ? key_of(fminf(v, 3e38f)) : 0;
            }
            keys[FRAME_THREADS * (i + half)] = {own[0], own[1], own[2], own[3]};
        }
    }
    u32 turn = 0;
    const auto count = [&](u32 mine) {
        mine = warp_total(mine);
        if (c.lane == 0) c.s.counts[turn][c.warp] = mine;
        c.meet();
        u32 sum = 0;
#pragma unroll
        for (int w = 0; w < FRAME_WARPS; w++) sum += c.s.counts[turn][w];
        turn ^= 1;
        return sum;
    };
    const auto best_of = [&](u32 limit, u32& key) {
        Best best = {-INF, NO_INDEX};
        u32 own = 0;
        for (u32 i = 0; i < groups; i++) {
            const uint4 four = keys[FRAME_THREADS * i];
            const float4 heard = drawn ? noise[FRAME_THREADS * i] : float4{};
            const u32 key4[4] = {four.x, four.y, four.z, four.w};
            const float noise4[4] = {heard.x, heard.y, heard.z, heard.w};
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const Best now = {plain_add(value_of(key4[e]), noise4[e]), 4 * (c.t + FRAME_THREADS * i) + e};
                if (key4[e] >= limit && before(now, best)) best = now, own = key4[e];
            }
        }
        const Best all = warp_best(best);
        if (best.index == all.index && best.index != NO_INDEX) c.s.best[turn][c.warp] = best, c.s.keys[turn][c.warp] = own;
        else if (c.lane == 0 && all.index == NO_INDEX) c.s.best[turn][c.warp] = all, c.s.keys[turn][c.warp] = 0;
        c.meet();
        Best winner = c.s.best[turn][0];
        key = c.s.keys[turn][0];
#pragma unroll
        for (int w = 1; w < FRAME_WARPS; w++) {
            const Best other = c.s.best[turn][w];
            if (before(other, winner)) winner = other, key = c.s.keys[turn][w];
        }
        turn ^= 1;
        return winner;
    };
    u32 key;
    Best best = best_of(1, key);
    if (drawn && r.top_k > 0 && r.top_k < n) {
        const auto from = [&](u32 limit) {
            u32 mine = 0;
            for (u32 i = 0; i < groups; i++) {
                const uint4 four = keys[FRAME_THREADS * i];
                mine += (four.x >= limit) + (four.y >= limit) + (four.z >= limit) + (four.w >= limit);
            }
            return count(mine);
        };
        // It is drawn from the best `top_k` and their equals: most often the best of all is one of them.
        if (key < FULL && from(key + 1) >= r.top_k) {
            u32 low_key = key + 1, high_key = FULL;
            u32 top = 0;
            for (u32 i = 0; i < groups; i++) {
                const uint4 four = keys[FRAME_THREADS * i];
                top = max(max(top, max(four.x, four.y)), max(four.z, four.w));
            }
            top = warp_most(top);
            if (c.lane == 0) c.s.counts[turn][c.warp] = top;
            c.meet();
#pragma unroll
            for (int w = 0; w < FRAME_WARPS; w++) top = max(top, c.s.counts[turn][w]);
            turn ^= 1;
            high_key = top + 1;
            // Between the two lie fewer and fewer: three limits at a time, which cut the values, then the keys, into quarters.
            for (u32 round = 0; high_key - low_key > 1; round++) {
                u32 limits[3];
                const float span = value_of(high_key) - value_of(low_key);
#pragma unroll
                for (u32 i = 0; i < 3; i++) {
                    limits[i] = low_key + (u32)((u64)(high_key - low_key) * (i + 1) / 4);
                    const u32 part = key_of(value_of(low_key) + 0.25f * (i + 1) * span);
                    if (round < 12 && part > low_key && part < high_key) limits[i] = part;
                    if (i > 0) limits[i] = max(limits[i], limits[i - 1]);
                    limits[i] = max(limits[i], low_key + 1);
                }
                u32 mine[2] = {};
                for (u32 i = 0; i < groups; i++) {
                    const uint4 four = keys[FRAME_THREADS * i];
#pragma unroll
                    for (u32 l = 0; l < 3; l++)
                        mine[l / 2] += ((four.x >= limits[l]) + (four.y >= limits[l]) + (four.z >= limits[l]) + (four.w >= limits[l])) << 16 * (l % 2);
                }
                // Up to 8192 of them: two counts fit into one number.
                mine[0] = warp_total(mine[0]), mine[1] = warp_total(mine[1]);
                if (c.lane == 0) c.s.counts[turn][c.warp] = mine[0], c.s.more[turn][c.warp] = mine[1];
                c.meet();
                u32 sums[2] = {};
#pragma unroll
                for (int w = 0; w < FRAME_WARPS; w++) sums[0] += c.s.counts[turn][w], sums[1] += c.s.more[turn][w];
                turn ^= 1;
                const u32 found[3] = {sums[0] & 0xffff, sums[0] >> 16, sums[1]};
                bool exact = false;
#pragma unroll
                for (int i = 0; i < 3; i++) {
                    if (found[i] >= r.top_k) low_key = max(low_key, limits[i]);
                    else high_key = min(high_key, limits[i]);
                    exact |= found[i] == r.top_k;
                }
                if (exact) break;
            }
            best = best_of(low_key, key);
        }
    }
    const u32 token = best.index == NO_INDEX ? 0 : best.index;
    if (c.t == 0) {
        c.s.token = token;
        if (c.b == 0) {
            at<u32>(p.address[1])[(u64)r.slot * columns + column] = token;
            // Other blocks may still look at it.
            if (history) c.s.seen = p.address[2] + 4 * ((u64)r.slot * words + token / 32), c.s.bit = 1u << (token % 32);
        }
    }
    c.meet();
    c.learn(p.nap);
}

// Phases that are no product of one row.
DEV void frame_other(FrameBlock& c, u32 index, const uint4& next) {
    const FramePhase& p = *reinterpret_cast<const FramePhase*>(c.s.phases[index % 3]);
    const u32 queries = same(p.n / max(p.number[0], 1u)), width = same(p.k);
    switch (same(p.kind)) {
        case PHASE_PRODUCT:
            if (same(p.segments) <= FRAME_KEPT) frame_product<2, true>(c, p, index, next);
            else frame_product<2, false>(c, p, index, next);
            break;
        case PHASE_EMBED: frame_embed(c, p, index, next); break;
        case PHASE_NORM: frame_norm(c, p, index, next); break;
        case PHASE_ATTEND:
            if (width == 128 && queries == 2) frame_attend<4, 2>(c, p, index, next);
            else if (width == 128) frame_attend<4, 1>(c, p, index, next);
            else if (queries == 2) frame_attend<2, 2>(c, p, index, next);
            else frame_attend<2, 1>(c, p, index, next);
            break;
        case PHASE_ATTEND_SHORT:
            if (width == 128) frame_attend_short<4>(c, p, index, next);
            else frame_attend_short<2>(c, p, index, next);
            break;
        default: frame_draw(c, p, index, next);
    }
}

DEV void frame_run(FrameBlock& c) {
    for (u32 index = 0; index < c.a.phases; index++) {
        const FramePhase& p = *reinterpret_cast<const FramePhase*>(c.s.phases[index % 3]);
        c.forget();
        const uint4 next = frame_next(c, index);
        if (same(p.kind == PHASE_PRODUCT && p.rows == 1)) {
            if (same(p.segments) <= FRAME_KEPT) frame_product<1, true>(c, p, index, next);
            else frame_product<1, false>(c, p, index, next);
        } else {
            frame_other(c, index, next);
        }
    }
}

// The warp that copies weights: at most `fly` chunks are under way, so that they do not hold up what blocks exchange.
DEV void frame_feed(FrameBlock& c) {
    u32 slot = 0, phase = 0, count = 0, done = 0, done_phase = 0, last = frame_clock();
    u64 once;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
    // The part of a descriptor that is needed here, the next one's on its way.
    const auto piece = [&](u32 index) {
        uint4 v = {};
        if (c.lane < 5 && index < c.a.phases) v = *at<const uint4>(c.a.program + sizeof(FramePhase) * (u64)index + 16 * c.lane);
        return v;
    };
    uint4 v = piece(0);
    for (u32 index = 0; index < c.a.phases; index++) {
        const uint4 ahead = piece(index + 1);
        const u32 kind = __shfl_sync(FULL, v.x, 0), fly = __shfl_sync(FULL, v.z, 0), pace = __shfl_sync(FULL, v.w, 0);
        const u64 w = (u64)__shfl_sync(FULL, v.y, 1) << 32 | __shfl_sync(FULL, v.x, 1);
        const u32 pitch = __shfl_sync(FULL, v.z, 1), k = __shfl_sync(FULL, v.w, 1);
        const u32 n = __shfl_sync(FULL, v.x, 2), gated = __shfl_sync(FULL, v.y, 2), segments = __shfl_sync(FULL, v.z, 4);
        v = ahead;
        if (kind != PHASE_PRODUCT) continue;
        const uint2 share = frame_share(c, n);
        for (u32 group = share.x; group < share.y; group++)
            for (u32 half = 0; half <= gated; half++)
                for (u32 segment = 0; segment < segments; segment++) {
                    while (count >= fly) {
                        c.await(frame_shared(c.s.full + done), done_phase);
                        if (++done == c.a.slots) done = 0, done_phase ^= 1;
                        count--;
                    }
                    const u32 full = frame_shared(c.s.full + slot);
                    c.await(frame_shared(c.s.empty + slot), phase ^ 1);
                    while (frame_clock() - last < pace) {}
                    last = frame_clock();
                    const u32 rows = min(8u, n - 8 * group), bytes = min(2048u, 2 * k - 2048 * segment);
                    const u64 from = w + (u64)(half * n + 8 * group) * pitch + 2048 * segment;
                    const bool whole = rows == 8 && pitch == 2048 && bytes == 2048;
                    if (c.lane == 0)
                        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(full), "r"(rows * bytes) : "memory");
                    __syncwarp();
                    if (c.lane < (whole ? 1 : rows))
                        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                                     ::"r"(c.ring + slot * FRAME_CHUNK + 2048 * c.lane), "l"(from + (u64)c.lane * pitch),
                                     "r"(whole ? FRAME_CHUNK : bytes), "r"(full), "l"(once) : "memory");
                    if (++slot == c.a.slots) slot = 0, phase ^= 1;
                    count++;
                }
    }
}

// Warps that compute take registers over from those that do not: together they have what a launch of 384 threads gets, 168 each.
template <int N> DEV void frame_registers() {
#if __CUDA_ARCH__ == 900
    if (N < 128) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
    else asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

DEV void frame_launch(const FrameArgs& a) {
    __shared__ FrameShared s;
    FrameBlock c(a, s);
    c.t = threadIdx.x, c.warp = same(threadIdx.x / 32), c.lane = threadIdx.x % 32, c.b = blockIdx.x, c.blocks = gridDim.x;
    c.ring = frame_shared(voce_shared), c.rest = reinterpret_cast<char*>(voce_shared) + a.slots * FRAME_CHUNK;
    c.xs = c.ring + a.slots * FRAME_CHUNK, c.red = reinterpret_cast<float*>(c.rest + a.x_bytes), c.ex = at<float>(a.exchange);
    c.rows = c.rest, c.rest += a.x_bytes + a.red_bytes;
    c.slot = c.phase = c.flip = 0, c.known = 0;
    c.shift = 31 - __clz(c.blocks);
    c.since = frame_clock();
    c.epoch = same(*at<const u32>(a.epochs + 4 * c.b));
    if (c.t == 0) {
        for (u32 i = 0; i < a.slots; i++) {
            asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(frame_shared(s.full + i)), "r"(1) : "memory");
            asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(frame_shared(s.empty + i)), "r"(FRAME_WARPS) : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        s.token = 0, s.seen = 0;
    }
    if (c.t < FRAME_NAPS) s.naps[c.t] = at<const int>(a.naps)[c.b * FRAME_NAPS + c.t];
    if (c.t < sizeof(FramePhase) / 16) s.phases[0][c.t] = *at<const uint4>(a.program + 16 * c.t);
    // Chunks that are not full are multiplied by zeros, and may be anything but infinite.
    if (a.blank)
        for (u32 i = c.t; i < a.slots * FRAME_CHUNK / 16; i += FRAME_BLOCK) reinterpret_cast<uint4*>(voce_shared)[i] = {};
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (c.warp >= FRAME_WARPS) {
        frame_registers<40>();
        if (c.warp == FRAME_WARPS) frame_feed(c);
        return;
    }
    frame_registers<232>();
    frame_run(c);
    c.meet();
    if (c.t == 0) {
        *at<u32>(a.epochs + 4 * c.b) = c.epoch + 1;
        u32* arrived = at<u32>(a.epochs + 4 * c.blocks);
        if (a.remembers) atomicAdd(arrived, 1u);
        if (s.seen) {
            u32 looks = 0;
            while ((int)(*(volatile u32*)arrived - (c.epoch + 1) * c.blocks) < 0) c.give_up(looks);
            *at<u32>(s.seen) |= s.bit;
        }
    }
    if (c.t < FRAME_NAPS) at<int>(a.naps)[c.b * FRAME_NAPS + c.t] = s.naps[c.t];
}
#endif

KERNEL_AHEAD(frame, FrameArgs, FRAME_BLOCK, 1) { frame_launch(a); }
