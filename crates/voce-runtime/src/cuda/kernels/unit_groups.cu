// Residual units as in `unit.cu`, by the products of warpgroups that sm_90a has: 64 rows at a time, both operands in shared memory.
//
// Rows and weights lie there in panels of eight columns, [column / 8][row][8]: eight rows of a panel are the 128 bytes that a product
// takes at once, and rows that begin at a later tap are an address 16 bytes further per row.

#if !defined(VOCE_EMULATED) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
// Other devices never run it.
#define UNIT_GROUPS_RUN
#endif

#ifdef UNIT_GROUPS_RUN
// Where an operand lies: its panels begin `pitch` rows apart.
DEV u64 panels_at(const void* from, u32 pitch) {
    return ((u32)__cvta_generic_to_shared(from) >> 4) | (u64)pitch << 16 | (u64)8 << 32;
}
DEV void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void products_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits for all batches of products but the last N.
template <int N> DEV void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// What this thread wrote to shared memory is there for products.
DEV void products_see() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Marks that threads arrive at, one phase after the other.
DEV u32 shared_at(const void* p) { return (u32)__cvta_generic_to_shared(p); }
DEV void mark_begin(u64* mark, u32 count) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_at(mark)), "r"(count) : "memory"); }
DEV void mark_arrive(u64* mark) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_at(mark)) : "memory"); }
DEV void mark_wait(u64* mark, u32 phase) {
    asm volatile("{.reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @!p bra again;}" ::"r"(shared_at(mark)), "r"(phase) : "memory");
}
// A piece of memory on its way to shared memory; the mark has it arrive.
DEV void bulk_copy(void* to, u64 from, u32 bytes, u64* mark) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_at(mark)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_at(to)), "l"(from), "r"(bytes),
                 "r"(shared_at(mark)) : "memory");
}
// A barrier of one warpgroup.
DEV void group_sync(u32 group) { asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory"); }

#define TO_31 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TO_47 TO_31 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define TO_95 TO_47 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SUMS_8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define SUMS_16(d, i) SUMS_8(d, i), SUMS_8(d, i + 8)
#define SUMS_48(d, i) SUMS_16(d, i), SUMS_16(d, i + 16), SUMS_16(d, i + 32)

// d += a b^T of 64 rows and 16 columns: with g = lane / 4 and t = lane % 4, d is (g, 8j + 2t), (g, 8j + 2t + 1), (g + 8, ..) of a
// warp's 16 rows, as `mma` has it.
DEV void group_mma(float (&d)[48], u64 a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" TO_47
                 "}, %48, %49, 1, 1, 1, 0, 0;" : SUMS_48(d, 0) : "l"(a), "l"(b));
}
DEV void group_mma(float (&d)[96], u64 a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {" TO_95
                 "}, %96, %97, 1, 1, 1, 0, 0;" : SUMS_48(d, 0), SUMS_48(d, 48) : "l"(a), "l"(b));
}
// The same with the left operand in registers, in the order of sums.
DEV void group_mma(float (&d)[48], const u32* a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" TO_47
                 "}, {%48, %49, %50, %51}, %52, 1, 1, 1, 0;"
                 : SUMS_48(d, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
DEV void group_mma(float (&d)[96], const u32* a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {" TO_95
                 "}, {%96, %97, %98, %99}, %100, 1, 1, 1, 0;"
                 : SUMS_48(d, 0), SUMS_48(d, 48) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
DEV void group_mma(float (&d)[32], const u32* a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" TO_31
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
                 : SUMS_16(d, 0), SUMS_16(d, 16) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// Two values as bf16.
DEV u32 pack2(float x, float y) {
    u32 v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(y), "f"(x));
    return v;
}
// `snaked` for what becomes bf16: within 1e-6 of gain, and half as many instructions.
DEV float snaked_roughly(float x, float rate, float gain) {
    const float y = x * rate, n = fmaf(y, 0.318309886f, 12582912.0f) - 12582912.0f;
    float r = fmaf(n, -3.140625f, y), wave;
    r = fmaf(n, -9.67653589793e-4f, r);
    asm("sin.approx.ftz.f32 %0, %1;" : "=f"(wave) : "f"(r));
    return fmaf(wave * wave, gain, x);
}
DEV uint2 snaked4(const float4& v, const float4& rate, const float4& gain) {
    return {pack2(snaked_roughly(v.x, rate.x, gain.x), snaked_roughly(v.y, rate.y, gain.y)),
            pack2(snaked_roughly(v.z, rate.z, gain.z), snaked_roughly(v.w, rate.w, gain.w))};
}

// A tile: where it begins in the output and in x, its span, its place in the span, and how many of its rows there are.
struct UnitTile { u32 begin, from, span, local, valid; };
DEV u32 unit_span(const ResidualArgs& a, u32 tile) { return at<const u32>(a.stream.rows)[tile / a.tiles]; }
DEV uint2 unit_first(const ResidualArgs& a, u32 span) { return *at<const uint2>(a.stream.spans + (u64)span * sizeof(StreamSpan)); }
DEV UnitTile unit_tile(const ResidualArgs& a, u32 tile, u32 span, uint2 first) {
    const u32 unit = tile / a.tiles, skip = (tile - unit * a.tiles) * 64, begin = unit * a.stream.unit + skip;
    return {begin, first.y + begin - first.x, span, begin - first.x, min(64u, a.stream.unit - skip)};
}

#define UNIT_STAGES 16

// A warpgroup has a run of tiles of 64 rows. Each value is activated and narrowed once; rows that the next tile sees again stay in
// shared memory, hidden rows in registers. Where a block's weights fit (CHUNK is WIDTH), they are all there from the beginning; else they
// come a chunk of CHUNK columns at a time through a ring, which one more warp fills.
// Weights lie in memory as they will in shared memory, chunk after chunk.
// Bound by the tensor cores; narrow rows by reading and writing them.
template <int WIDTH, int GROUPS, int CHUNK> DEV void unit_groups(const UnitArgs& of) {
    const ResidualArgs& a = of.block;
    const Stream& s = a.stream;
    constexpr bool ALL = CHUNK == WIDTH;
    // Whether a thread keeps what it read of a tile, to add it to the sums.
    constexpr bool HELD = ALL || (WIDTH == 192 && GROUPS == 2);
    constexpr u32 QUADS = WIDTH / 4, SIDE = WIDTH < 192 ? WIDTH : 192;
    // Outputs of the second product at a time, inputs of a chunk of its weights, and pieces of a chunk.
    constexpr u32 PART = HELD ? WIDTH : 64, DEEP = WIDTH * CHUNK / PART, STAGE = WIDTH * CHUNK / 8;
    // What a thread has of a tile: TALL rows that are TALL_STEP apart, and four columns of every WIDE_STEP.
    constexpr u32 TALL = HELD ? 2 : 4, TALL_STEP = HELD ? 8 : 16, WIDE_STEP = HELD ? 16 : 32;
    SHARED(u64, marks);
    float* const parameters = reinterpret_cast<float*>(marks + 2 * UNIT_STAGES);
    const float *const rate = parameters, *const gain = rate + WIDTH, *const hidden_bias = gain + WIDTH, *const hidden_rate = hidden_bias + WIDTH,
                *const hidden_gain = hidden_rate + WIDTH, *const bias = hidden_gain + WIDTH;
    const u32 group = __shfl_sync(FULL, threadIdx.x / 128, 0), in = threadIdx.x % 128, warp = in / 32, lane = in % 32, g = lane / 4, t = lane % 4;
    // Rows between panels: what a warp writes at once lies in different banks.
    const u32 history = s.history, pitch = HELD ? (64 + history + 3) / 8 * 8 + 4 : (64 + history + 1) / 4 * 4 + 2, tile_size = WIDTH / 8 * pitch;
    uint4* const rows = reinterpret_cast<uint4*>(parameters + 6 * WIDTH) + group * tile_size;
    uint4* const weights = reinterpret_cast<uint4*>(parameters + 6 * WIDTH) + GROUPS * tile_size;
    const u32 before = a.taps * (WIDTH / CHUNK), chunks = before + WIDTH / CHUNK;
    u32 stages = chunks;
    if (!ALL) {
        asm("mov.u32 %0, %dynamic_smem_size;" : "=r"(stages));
        stages = min((stages - (u32)(reinterpret_cast<unsigned char*>(weights) - voce_shared)) / (STAGE * 16), (u32)UNIT_STAGES);
    }
    dependents_may_start();
    const u32 workers = gridDim.x * GROUPS;
    const auto share = [&](u32 i) { return (u32)((u64)a.blocks * i / workers); };
    u32 rounds = 0;
    for (u32 i = 0; i < GROUPS; i++) {
        const u32 one = i * gridDim.x + blockIdx.x;
        rounds = max(rounds, share(one + 1) - share(one));
    }
    const auto ready = [&](u32 chunk) {
        return chunk < before ? a.first + (u64)chunk * (STAGE * 16) : a.second + (u64)(chunk - before) * (STAGE * 16);
    };
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < stages; i++) mark_begin(marks + i, 1), mark_begin(marks + UNIT_STAGES + i, 4 * GROUPS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        if (ALL)
            for (u32 c = 0; c < chunks; c++) bulk_copy(weights + c * STAGE, ready(c), STAGE * 16, marks + c);
    }
    for (u32 i = threadIdx.x; i < WIDTH; i += blockDim.x) {
        parameters[i] = at<const float>(s.rate)[i], parameters[WIDTH + i] = at<const float>(s.gain)[i];
        parameters[2 * WIDTH + i] = a.first_bias ? at<const float>(a.first_bias)[i] : 0.0f;
        parameters[3 * WIDTH + i] = at<const float>(of.rate)[i], parameters[4 * WIDTH + i] = at<const float>(of.gain)[i];
        parameters[5 * WIDTH + i] = a.second_bias ? at<const float>(a.second_bias)[i] : 0.0f;
    }
    __syncthreads();
    u32 stage = 0, phase = 0;
    const auto next_stage = [&] {
        if (++stage == stages) stage = 0, phase ^= 1;
    };
    if (!ALL && group == GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(GROUPS == 2 ? 40 : 32));
        if (in > 0) return;
        u32 chunk = 0;
        for (u32 c = 0; c < rounds * chunks; c++) {
            mark_wait(marks + UNIT_STAGES + stage, phase ^ 1);
            bulk_copy(weights + stage * STAGE, ready(chunk), STAGE * 16, marks + stage);
            next_stage();
            if (++chunk == chunks) chunk = 0;
        }
        return;
    }
    if (!ALL) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(GROUPS == 2 ? 232 : 160));
    // The next chunk's place, once it is there.
    const auto next_chunk = [&]() -> const uint4* {
        mark_wait(marks + stage, phase);
        return weights + stage * STAGE;
    };
    // Another may take the place of a chunk.
    const auto release = [&](u32 place) {
        if (lane == 0) mark_arrive(marks + UNIT_STAGES + place);
    };
    wait_for_others();

    const u32 my_row = HELD ? 16 * warp + g : in / 8, my_column = 4 * (HELD ? t : in % 8);
    float4 x[WIDTH / 8];
    const auto load = [&](const UnitTile& tile) {
        const float* from = at<const float>(s.x) + (u64)(tile.from + my_row) * WIDTH + my_column;
#pragma unroll
        for (u32 e = 0; e < WIDTH / 8; e++) {
            const u32 row = e % TALL * TALL_STEP;
            x[e] = {0.0f, 0.0f, 0.0f, 0.0f};
            if (my_row + row < tile.valid) x[e] = *reinterpret_cast<const float4*>(from + row * WIDTH + e / TALL * WIDE_STEP);
        }
    };
    const auto put = [&] {
        uint2* const to = reinterpret_cast<uint2*>(rows + my_column / 8 * pitch + history + my_row) + my_column / 4 % 2;
#pragma unroll
        for (u32 i = 0; i < WIDTH / WIDE_STEP; i++) {
            const float4 by = *reinterpret_cast<const float4*>(rate + my_column + WIDE_STEP * i);
            const float4 of = *reinterpret_cast<const float4*>(gain + my_column + WIDE_STEP * i);
#pragma unroll
            for (u32 r = 0; r < TALL; r++) to[2 * (WIDE_STEP / 8 * i * pitch + TALL_STEP * r)] = snaked4(x[TALL * i + r], by, of);
        }
    };
    // Rows before a tile, where the tile before it did not leave them.
    const auto load_past = [&](const UnitTile& tile) {
        const StreamSpan p = at<const StreamSpan>(s.spans)[tile.span];
        for (u32 begin = in; begin < history * QUADS; begin += 4 * 128) {
            float4 old[4];
            u32 act[4];
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                const u32 e = begin + 128 * j;
                old[j] = {0.0f, 0.0f, 0.0f, 0.0f}, act[j] = ACT_NONE;
                if (e >= history * QUADS) continue;
                const StreamRow r = stream_row(s, p, tile.local + e / QUADS);
                act[j] = r.act;
                if (r.at) old[j] = *reinterpret_cast<const float4*>(r.at + e % QUADS * 4);
            }
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                const u32 e = begin + 128 * j, row = e / QUADS, quad = e % QUADS;
                if (e >= history * QUADS) continue;
                const float4 by = *reinterpret_cast<const float4*>(rate + 4 * quad), of = *reinterpret_cast<const float4*>(gain + 4 * quad);
                *(reinterpret_cast<uint2*>(rows + quad / 2 * pitch + row) + quad % 2) =
                    act[j] == ACT_NONE ? uint2{pack2(old[j].x, old[j].y), pack2(old[j].z, old[j].w)} : snaked4(old[j], by, of);
            }
        }
    };
    // The past rows that come next, if a tile is the last one of its span.
    const auto keep = [&](const UnitTile& tile) {
        const StreamSpan p = at<const StreamSpan>(s.spans)[tile.span];
        if (tile.local + tile.valid < p.rows) return;
        float* const to = at<float>(s.past) + (u64)(2 * p.slot + (p.half ^ 1)) * history * WIDTH;
        if (p.rows >= history) {
            const float* from = at<const float>(s.x) + (u64)(p.first + p.rows - history) * WIDTH;
            for (u32 begin = in; begin < history * QUADS; begin += 4 * 128) {
                float4 v[4];
#pragma unroll
                for (u32 j = 0; j < 4; j++)
                    if (begin + 128 * j < history * QUADS) v[j] = *reinterpret_cast<const float4*>(from + 4 * (begin + 128 * j));
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    const u32 e = begin + 128 * j, i = e % QUADS * 4;
                    if (e >= history * QUADS) continue;
                    const float4 by = *reinterpret_cast<const float4*>(rate + i), of = *reinterpret_cast<const float4*>(gain + i);
                    *reinterpret_cast<float4*>(to + 4 * e) = {snaked(v[j].x, by.x, of.x), snaked(v[j].y, by.y, of.y), snaked(v[j].z, by.z, of.z),
                                                             snaked(v[j].w, by.w, of.w)};
                }
            }
            return;
        }
        for (u32 e = in; e < history * QUADS; e += 128) {
            const StreamRow r = stream_row(s, p, p.rows + e / QUADS);
            float4 v = {0.0f, 0.0f, 0.0f, 0.0f};
            if (r.at) v = stream4(s, r, *reinterpret_cast<const float4*>(r.at + e % QUADS * 4), e % QUADS * 4);
            *reinterpret_cast<float4*>(to + 4 * e) = v;
        }
    };

    const u32 first = share(group * gridDim.x + blockIdx.x), end = share(group * gridDim.x + blockIdx.x + 1);
    UnitTile tile = {};
    bool goes_on = false;
    if (first < end) {
        const u32 span = unit_span(a, first);
        tile = unit_tile(a, first, span, unit_first(a, span));
    }
    for (u32 round = 0; round < rounds; round++) {
        const bool here = first + round < end, more = first + round + 1 < end;
        u32 next_span = 0;
        if (more) next_span = unit_span(a, first + round + 1);
        float v[PART / 2];
        if (here) {
            load(tile);
            if (!goes_on) load_past(tile);
            put();
            if (HELD) {
#pragma unroll
                for (u32 i = 0; i < PART / 16; i++) {
                    const float4 m = x[2 * i], n = x[2 * i + 1];
                    v[8 * i] = m.x, v[8 * i + 1] = m.y, v[8 * i + 4] = m.z, v[8 * i + 5] = m.w;
                    v[8 * i + 2] = n.x, v[8 * i + 3] = n.y, v[8 * i + 6] = n.z, v[8 * i + 7] = n.w;
                }
            }
        }
        products_see();
        group_sync(group);
        uint2 next_first = {0, 0};
        if (more) next_first = unit_first(a, next_span);
        if (!here) {
            if (!ALL)
                for (u32 chunk = 0; chunk < chunks; chunk++) next_chunk(), release(stage), next_stage();
            break;
        }
        float d[WIDTH / SIDE][SIDE / 2];
#pragma unroll
        for (u32 i = 0; i < WIDTH / 2; i++) d[i / (SIDE / 2)][i % (SIDE / 2)] = 0.0f;
        u64 l = panels_at(rows, pitch);
        u32 held = 0;
        if (ALL) {
            products_begin();
#pragma unroll 1
            for (u32 tap = 0; tap < a.taps; tap++) {
                if (round == 0) mark_wait(marks + tap, 0);
                const u64 w = panels_at(weights + tap * STAGE, WIDTH);
#pragma unroll
                for (u32 k = 0; k < WIDTH / 8; k += 2) group_mma(d[0], l + k * pitch, w + k * WIDTH);
                l += a.dilation;
            }
            products_end();
        } else {
            u32 column = 0;
#pragma unroll 1
            for (u32 chunk = 0; chunk < before; chunk++) {
                const u64 w = panels_at(next_chunk(), WIDTH);
                products_begin();
#pragma unroll
                for (u32 k = 0; k < CHUNK / 8; k += 2)
#pragma unroll
                    for (u32 n = 0; n < WIDTH / SIDE; n++) group_mma(d[n], l + k * pitch, w + k * WIDTH + n * SIDE);
                products_end();
                products_wait<1>();
                if (chunk > 0) release(held);
                held = stage;
                next_stage();
                l += CHUNK / 8 * pitch, column += CHUNK;
                if (column == WIDTH) column = 0, l = l + a.dilation - WIDTH / 8 * pitch;
            }
        }
        // Meanwhile the next tile comes nearer.
        UnitTile next = {};
        if (more) {
            next = unit_tile(a, first + round + 1, next_span, next_first);
            const u64 from = s.x + (u64)next.from * (WIDTH * 4);
            for (u32 e = in; e < next.valid * (WIDTH / 32); e += 128) prefetch(from + e * 128);
        }
        products_wait<0>();
        if (!ALL) release(held);
        goes_on = more && next.span == tile.span && next.local == tile.local + 64;
        group_sync(group);
        if (goes_on)
            for (u32 r = lane; r < history; r += 32)
#pragma unroll
                for (u32 panel = warp; panel < WIDTH / 8; panel += 4) rows[panel * pitch + r] = rows[panel * pitch + r + 64];
        u32 hidden[WIDTH / 4];
#pragma unroll
        for (u32 j = 0; j < WIDTH / 8; j++) {
            // A few at a time, or there are not registers enough.
            if (j % 3 == 0) asm volatile("" ::: "memory");
            const u32 i = 8 * j + 2 * t;
            const float2 b = *reinterpret_cast<const float2*>(hidden_bias + i), by = *reinterpret_cast<const float2*>(hidden_rate + i);
            const float2 of = *reinterpret_cast<const float2*>(hidden_gain + i);
            const float* sum = d[8 * j / SIDE] + 8 * j % SIDE / 2;
            hidden[2 * j] = pack2(snaked_roughly(sum[0] + b.x, by.x, of.x), snaked_roughly(sum[1] + b.y, by.y, of.y));
            hidden[2 * j + 1] = pack2(snaked_roughly(sum[2] + b.x, by.x, of.x), snaked_roughly(sum[3] + b.y, by.y, of.y));
        }
        // Of every 16 outputs a thread has the four from 4 t on, of two rows.
        const u32 row = 16 * warp + g;
        const bool low = row < tile.valid, high = row + 8 < tile.valid;
        const float* const old = at<const float>(s.x) + (u64)(tile.from + row) * WIDTH + 4 * t;
        float* const out = at<float>(a.out) + (u64)(tile.begin + row) * WIDTH + 4 * t;
        float after[PART / 2];
        const auto load_old = [&](float(&to)[PART / 2], u32 part) {
#pragma unroll
            for (u32 i = 0; i < PART / 16; i++) {
                float4 m = {0.0f, 0.0f, 0.0f, 0.0f}, n = m;
                if (low) m = *reinterpret_cast<const float4*>(old + part * PART + 16 * i);
                if (high) n = *reinterpret_cast<const float4*>(old + part * PART + 16 * i + 8 * WIDTH);
                to[8 * i] = m.x, to[8 * i + 1] = m.y, to[8 * i + 4] = m.z, to[8 * i + 5] = m.w;
                to[8 * i + 2] = n.x, to[8 * i + 3] = n.y, to[8 * i + 6] = n.z, to[8 * i + 7] = n.w;
            }
        };
        if (!HELD) load_old(v, 0);
#pragma unroll 1
        for (u32 part = 0; part < WIDTH / PART; part++) {
#pragma unroll
            for (u32 k = 0; k < WIDTH / DEEP; k++) {
                if (ALL && round == 0) mark_wait(marks + before, 0);
                const u64 w = panels_at(ALL ? weights + before * STAGE : next_chunk(), PART);
                products_begin();
#pragma unroll
                for (u32 i = 0; i < DEEP / 8; i += 2) group_mma(v, hidden + (k * (DEEP / 8) + i) * 2, w + i * PART);
                products_end();
                if (!ALL) {
                    if (k > 0) products_wait<1>(), release(held);
                    held = stage;
                    next_stage();
                }
            }
            if (part + 1 < WIDTH / PART) load_old(after, part + 1);
            products_wait<0>();
            if (!ALL) release(held);
#pragma unroll
            for (u32 i = 0; i < PART / 16; i++) {
                const u32 column = part * PART + 16 * i;
                const float4 b = *reinterpret_cast<const float4*>(bias + column + 4 * t);
                const float* sum = v + 8 * i;
                if (low) *reinterpret_cast<float4*>(out + column) = {sum[0] + b.x, sum[1] + b.y, sum[4] + b.z, sum[5] + b.w};
                if (high) *reinterpret_cast<float4*>(out + column + 8 * WIDTH) = {sum[2] + b.x, sum[3] + b.y, sum[6] + b.z, sum[7] + b.w};
            }
            if (PART < WIDTH) {
#pragma unroll
                for (u32 i = 0; i < PART / 2; i++) v[i] = after[i];
            }
        }
        keep(tile);
        group_sync(group);
        tile = next;
    }
}
#else
template <int WIDTH, int GROUPS, int CHUNK> DEV void unit_groups(const UnitArgs&) {}
#endif

KERNEL_AHEAD(unit_groups_96, UnitArgs, 384, 1) { unit_groups<96, 3, 96>(a); }
KERNEL_AHEAD(unit_groups_192, UnitArgs, 384, 1) { unit_groups<192, 2, 32>(a); }
KERNEL_AHEAD(unit_groups_384, UnitArgs, 384, 1) { unit_groups<384, 2, 16>(a); }
