// What the blocks of a frame's kernel have: the program's structs, the ring of weights, and rows that they exchange.

#define FRAME_WARPS 8
#define FRAME_THREADS (32 * FRAME_WARPS)
// One more warp copies weights; it comes with three that only leave their registers to others.
#define FRAME_BLOCK (FRAME_THREADS + 128)
// A part of a matrix on its way: 8 outputs of 1024 inputs in bf16.
#define FRAME_CHUNK 16384
#define FRAME_SLOTS 12
// Segments of a long row that a thread asks for at once.
#define FRAME_BATCH 6
#define FRAME_NAPS 32
// Bins that a draw counts its numbers in: one of every thread.
#define FRAME_BINS FRAME_THREADS
// Tokens that it can be from, and those that it makes noise for unless it has to be all: as in `plan.rs`.
#define FRAME_DRAWN 8192
#define FRAME_LISTED 512
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
#define PHASE_PRODUCT_TWO 6

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
    u32 n, gated, rows, pad;
    u64 norm;
    float eps;
    u32 pad_too;
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

#if !defined(VOCE_EMULATED) && __CUDA_ARCH__ >= 900
// Devices that cannot copy in bulk never run it.
#define FRAME_RUNS
#endif

#ifdef FRAME_RUNS
#define MEMBER __device__ __forceinline__

struct FrameShared {
    u64 full[FRAME_SLOTS], empty[FRAME_SLOTS];
    uint4 phases[3][sizeof(FramePhase) / 16];
    float squares[2][2][FRAME_WARPS];
    float tops[FRAME_WARPS][2], totals[FRAME_WARPS][2];
    float scores[FRAME_SHORT];
    int naps[FRAME_NAPS];
    u32 best[2][FRAME_WARPS], places[2][FRAME_WARPS];
    alignas(16) u32 bins[FRAME_BINS];
    u32 listed[2];  // tokens that are left for sure, and those of the bin that decides
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
// Four neighbours that no kernel writes.
DEV float4 frame_ldg(u64 p) {
    float4 v;
    asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
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
    uint4 task;   // the slot, its position, the first one that it sees and the end
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
    MEMBER void meet() { asm volatile("bar.sync 1, 256;" ::: "memory"); }
    // The slot, its position and what it sees: layers after each other have the same.
    MEMBER void learn_task(u64 place) {
        if (same((u32)(place ^ known)) == 0) return;
        const uint4 t0 = *at<const uint4>(place), t1 = *at<const uint4>(place + 16);
        known = place, task = {same(t0.z), same(t0.w), same(t1.x), same(t1.y)};
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
        return there(from, i);
    }
    // A value of a row of a table, or of one that was there before the program.
    MEMBER float there(const FrameRow& from, u32 i) const {
        const u64 row = (from.how & 3) == FROM_PLAIN ? 0 : (u64)s.token * from.area;
        if ((from.how & 3) == FROM_TABLE_BF16) return widen(at<const bf16>(from.at)[row + i]);
        return at<const float>(from.at)[row + i];
    }
    // An exchanged value that this block made before, as it is there now, and that value: the look that finds it was most often the
    // first.
    MEMBER u32 glance(const FrameRow& from, u32 i) const {
        u32 word;
        asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(ex + from.area + i) : "memory");
        return word;
    }
    MEMBER float seen(u32 word, const FrameRow& from, u32 i) {
        if (!__any_sync(FULL, (word & 1) != flag(from.how))) return __uint_as_float(word & ~1u);
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
    // Asks for N groups of four values, `step` values apart; those from `count` on, a multiple of four, are nobody's.
    template <int N> MEMBER void ask(const FrameRow& from, u32 first, u32 step, u32 count, uint4 (&x)[N]) const {
        const u32 how = same(from.how), wanted = flag(how) ? FULL : 0;
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[i] = {wanted, wanted, wanted, wanted};
            if ((how & 3) == FROM_EXCHANGE && first + i * step < count)
                asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                             : "=r"(x[i].x), "=r"(x[i].y), "=r"(x[i].z), "=r"(x[i].w)
                             : "l"(ex + from.area + first + i * step) : "memory");
        }
    }
    // The values that were asked for, once they are there; nobody's are zeros.
    template <int N> MEMBER void given(const FrameRow& from, u32 first, u32 step, u32 count, uint4 (&x)[N], float (&v)[4 * N]) {
        const u32 how = same(from.how);
        if ((how & 3) == FROM_EXCHANGE) {
            const u32 wanted = flag(how) ? FULL : 0;
            u32 looks = 0;
            while (true) {
                u32 wrong = 0;
#pragma unroll
                for (int i = 0; i < N; i++) wrong |= (x[i].x ^ wanted) | (x[i].y ^ wanted) | (x[i].z ^ wanted) | (x[i].w ^ wanted);
                if (!__any_sync(FULL, wrong & 1)) break;
                waited = true;
                give_up(looks);
                ask<N>(from, first, step, count, x);
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
    template <int N> MEMBER void take(const FrameRow& from, u32 first, u32 step, u32 count, float (&v)[4 * N]) {
        uint4 x[N];
        ask<N>(from, first, step, count, x);
        given<N>(from, first, step, count, x, v);
    }
};

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
#endif
