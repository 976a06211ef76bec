// A recording of one stream's ops as one persistent kernel: `cuda/frame/` makes the program that it runs.
//
// Every block stays on its multiprocessor for the whole recording and goes through the same phases: products, attention, draws.
// A block has fixed outputs of every matrix. One warp streams the block's weights through a ring in shared memory, in the order of
// their use and as far ahead as there is room. Rows go from block to block through the cache as values that carry their own
// flag: the lowest bit says which use of its place a value belongs to, so there is neither a fence nor a barrier of the grid.
// Bound by reading the weights, or by the latency of the exchanges.

#ifndef FRAME_RUNS
DEV void frame_launch(const FrameArgs& a) {}
#else

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

// Phases that are no product of one row.
DEV void frame_other(FrameBlock& c, u32 index, const uint4& next) {
    const FramePhase& p = *reinterpret_cast<const FramePhase*>(c.s.phases[index % 3]);
    const u32 queries = same(p.gated), width = same(p.k);
    switch (same(p.kind)) {
        case PHASE_PRODUCT_TWO: frame_product<2>(c, p, index, next); break;
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
        if (same(p.kind) == PHASE_PRODUCT) frame_product<1>(c, p, index, next);
        else frame_other(c, index, next);
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
        if (kind != PHASE_PRODUCT && kind != PHASE_PRODUCT_TWO) continue;
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
