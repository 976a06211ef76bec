// Draws of a frame: every block makes all of them.

#ifdef FRAME_RUNS
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
#endif
