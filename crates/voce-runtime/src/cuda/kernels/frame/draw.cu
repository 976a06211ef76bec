// Draws of a frame: every block makes all of them.

#ifdef FRAME_RUNS
// Shows a thread's keys from `low_key` to `high_key`.
template <class F> DEV void frame_each(const uint4* keys, u32 groups, u32 low_key, u32 high_key, F visit) {
    for (u32 i = 0; i < groups; i++) {
        const uint4 four = keys[FRAME_THREADS * i];
        const u32 own[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (own[e] >= low_key && own[e] <= high_key) visit(own[e]);
    }
}

// The key that `k` of a block's keys reach, and no more of those above it; at least `k` of them lie between `low` and `high`, which
// is the largest. Keys are counted by bins of their values, and those of the bin that decides are looked at one by one; where these
// are many, they are counted again, by finer bins of the keys themselves. Bins and crowd are empty.
DEV u32 frame_kth(FrameBlock& c, const uint4* keys, u32 groups, u32 k, u32 low_key, u32 high_key) {
    FrameCrowd& crowd = c.s.crowd;
    const float least = value_of(low_key), scale = __fdividef(FRAME_BINS, value_of(high_key) - least);
    for (u32 round = 0;; round++) {
        const u32 shift = max(24 - (int)__clz(high_key - low_key), 0);
        const auto bin_of = [&](u32 key) {
            if (round > 0) return (key - low_key) >> shift;
            return min((u32)((value_of(key) - least) * scale), FRAME_BINS - 1u);
        };
        frame_each(keys, groups, low_key, high_key, [&](u32 key) { atomicAdd(c.s.bins + bin_of(key), 1u); });
        c.meet();
        // A lane has eight bins, and those of the lanes above lie above them.
        const uint4 *eight = reinterpret_cast<const uint4*>(c.s.bins) + 2 * c.lane, b0 = eight[0], b1 = eight[1];
        const u32 held[8] = {b0.x, b0.y, b0.z, b0.w, b1.x, b1.y, b1.z, b1.w};
        u32 above = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) above += held[i];
        const u32 own = above;
#pragma unroll
        for (int m = 1; m < 32; m <<= 1) {
            const u32 other = __shfl_down_sync(FULL, above, m);
            if (c.lane + m < 32) above += other;
        }
        above -= own;
        u32 bin = 0, before_it = 0;
#pragma unroll
        for (int i = 7; i >= 0; i--) {
            if (above < k && above + held[i] >= k) bin = 8 * c.lane + i, before_it = above;
            above += held[i];
        }
        // One lane has it, the others have zeros.
        bin = warp_total(bin), k -= warp_total(before_it);
        frame_each(keys, groups, low_key, high_key, [&](u32 key) {
            if (bin_of(key) != bin) return;
            const u32 place = atomicAdd(&crowd.count, 1u);
            if (place < 32) crowd.keys[place] = key;
            atomicMin(&crowd.least, key), atomicMax(&crowd.most, key);
        });
        c.meet();
        low_key = crowd.least, high_key = crowd.most;
        const u32 count = crowd.count;
        if (low_key == high_key) return low_key;
        if (count <= 32) {
            const u32 mine = c.lane < count ? crowd.keys[c.lane] : 0;
            u32 greater = 0, equal = 0;
#pragma unroll
            for (int i = 0; i < 32; i++) {
                const u32 other = __shfl_sync(FULL, mine, i);
                greater += other > mine, equal += other == mine;
            }
            return warp_most(greater < k && greater + equal >= k ? mine : 0);
        }
        c.meet();
        c.s.bins[c.t] = 0;
        if (c.t == 0) crowd.begin();
        c.meet();
    }
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
    // The place of the largest noisy value of those with keys from `limit` on, the first of equals, and its key.
    const auto best_of = [&](u32 limit, u32& key) {
        u32 most = 0, place = NO_INDEX, own = 0;
        for (u32 i = 0; i < groups; i++) {
            const uint4 four = keys[FRAME_THREADS * i];
            const float4 heard = drawn ? noise[FRAME_THREADS * i] : float4{};
            const u32 key4[4] = {four.x, four.y, four.z, four.w};
            const float noise4[4] = {heard.x, heard.y, heard.z, heard.w};
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const u32 now = key_of(plain_add(value_of(key4[e]), noise4[e]));
                // Places of a thread rise: the first of equals stays.
                if (key4[e] >= limit && now > most) most = now, place = 4 * (c.t + FRAME_THREADS * i) + e, own = key4[e];
            }
        }
        const u32 top = warp_most(most), first = ~warp_most(most == top ? ~place : 0);
        if (c.lane == 0) c.s.best[turn][c.warp] = top, c.s.places[turn][c.warp] = first;
        if (place == first && place != NO_INDEX) c.s.keys[turn][c.warp] = own;
        c.meet();
        const u32 from = c.lane % FRAME_WARPS, theirs = c.s.best[turn][from], at = c.s.places[turn][from];
        const u32 all = warp_most(theirs), winner = ~warp_most(theirs == all ? ~at : 0);
        const u32 whose = __ffs(__ballot_sync(FULL, theirs == all && at == winner)) - 1;
        key = c.s.keys[turn][whose % FRAME_WARPS];
        turn ^= 1;
        return winner;
    };
    u32 key;
    u32 best = best_of(1, key);
    if (drawn && r.top_k > 0 && r.top_k < n) {
        // It is drawn from the best `top_k` and their equals: most often the best of all is one of them.
        u32 better = 0, top = 0;
        for (u32 i = 0; i < groups; i++) {
            const uint4 four = keys[FRAME_THREADS * i];
            better += (four.x > key) + (four.y > key) + (four.z > key) + (four.w > key);
            top = max(max(top, max(four.x, four.y)), max(four.z, four.w));
        }
        better = warp_total(better), top = warp_most(top);
        if (c.lane == 0) c.s.counts[turn][c.warp] = better, c.s.more[turn][c.warp] = top;
        c.s.bins[c.t] = 0;
        if (c.t == 0) c.s.crowd.begin();
        c.meet();
        better = 0;
#pragma unroll
        for (int w = 0; w < FRAME_WARPS; w++) better += c.s.counts[turn][w], top = max(top, c.s.more[turn][w]);
        turn ^= 1;
        if (better >= r.top_k) best = best_of(frame_kth(c, keys, groups, r.top_k, key + 1, top), key);
    }
    const u32 token = best == NO_INDEX ? 0 : best;
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
