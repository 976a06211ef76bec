// Draws of a frame: every block makes all of them.

#ifdef FRAME_RUNS
// Shows a thread's keys from `low_key` to `high_key`.
template <int N, class F> DEV void frame_each(const u32 (&keys)[N], u32 low_key, u32 high_key, F visit) {
#pragma unroll
    for (int i = 0; i < N; i++)
        if (keys[i] >= low_key && keys[i] <= high_key) visit(keys[i]);
}

// The key that `k` of a block's keys reach, and no more of those above it; at least `k` of them lie between `low` and `high`, which
// is the largest. Keys are counted by bins of their values, and those of the bin that decides are looked at one by one; where these
// are many, they are counted again, by finer bins of the keys themselves. Bins and crowd are empty.
template <int N> DEV u32 frame_kth(FrameBlock& c, const u32 (&keys)[N], u32 k, u32 low_key, u32 high_key) {
    FrameCrowd& crowd = c.s.crowd;
    const float least = value_of(low_key), scale = __fdividef(FRAME_BINS, value_of(high_key) - least);
    for (u32 round = 0;; round++) {
        const u32 shift = max(24 - (int)__clz(high_key - low_key), 0);
        const auto bin_of = [&](u32 key) {
            if (round > 0) return (key - low_key) >> shift;
            return min((u32)((value_of(key) - least) * scale), FRAME_BINS - 1u);
        };
        frame_each(keys, low_key, high_key, [&](u32 key) { atomicAdd(c.s.bins + bin_of(key), 1u); });
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
        frame_each(keys, low_key, high_key, [&](u32 key) {
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
// each of G times 1024 logits.
template <int G> DEV void frame_draw(FrameBlock& c, const FramePhase& p, u32 index, const uint4& next) {
    const uint4 row0 = *at<const uint4>(p.address[0]), row1 = *at<const uint4>(p.address[0] + 16), row2 = *at<const uint4>(p.address[0] + 32);
    const SampleRow r = {row0.x, row0.y, row0.z, row0.w, __uint_as_float(row1.x), __uint_as_float(row1.y), __uint_as_float(row1.z),
                         row1.w, row2.x, row2.y, 0, 0};
    const u32 n = same(p.n), columns = p.number[0], column = p.number[1], words = p.number[2];
    u32* history = p.address[2] ? at<u32>(p.address[2]) + (u64)r.slot * words : 0;
    const bool penalised = same(history && r.penalty != 1.0f), drawn = same(r.inverse > 0.0f);
    const auto place_of = [&](int i) { return 4 * (c.t + FRAME_THREADS * (i / 4)) + i % 4; };
    float noise[4 * G], x[4 * G];
    u32 keys[4 * G], seen[G];
#pragma unroll
    for (int i = 0; i < 4 * G; i++) noise[i] = 0.0f;
    if (drawn)
#pragma unroll
        for (int i = 0; i < 4 * G; i++) noise[i] = gumbel(r, place_of(i));
#pragma unroll
    for (int i = 0; i < G; i++) {
        const u32 begin = place_of(4 * i);
        seen[i] = penalised && begin < n ? history[begin / 32] >> (begin % 32) : 0;
    }
    frame_announce(c, index, next);
    c.rest_for(p.nap);
    c.take<G>(p.in[0], 4 * c.t, 4 * FRAME_THREADS, n, x);
#pragma unroll
    for (int i = 0; i < 4 * G; i++) {
        const u32 id = place_of(i);
        float v = x[i];
        if (seen[i / 4] >> i % 4 & 1) v = v < 0.0f ? plain_mul(v, r.penalty) : quotient(v, r.penalty);
        if (drawn) v = plain_mul(v, r.inverse);
        const bool may = id < n && (id < r.below || id == r.also) && v > -INF;
        keys[i] = may ? key_of(fminf(v, 3e38f)) : 0;
    }
    u32 turn = 0;
    // The place of the largest noisy value of those with keys from `limit` on, the first of equals, and its key.
    const auto best_of = [&](u32 limit, u32& key) {
        u32 most = 0, place = NO_INDEX, own = 0;
#pragma unroll
        for (int i = 0; i < 4 * G; i++) {
            const u32 now = key_of(plain_add(value_of(keys[i]), noise[i]));
            // Places of a thread rise: the first of equals stays.
            if (keys[i] >= limit && now > most) most = now, place = place_of(i), own = keys[i];
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
#pragma unroll
        for (int i = 0; i < 4 * G; i++) better += keys[i] > key, top = max(top, keys[i]);
        better = warp_total(better), top = warp_most(top);
        if (c.lane == 0) c.s.counts[turn][c.warp] = better, c.s.more[turn][c.warp] = top;
        c.s.bins[c.t] = 0;
        if (c.t == 0) c.s.crowd.begin();
        c.meet();
        better = 0;
#pragma unroll
        for (int w = 0; w < FRAME_WARPS; w++) better += c.s.counts[turn][w], top = max(top, c.s.more[turn][w]);
        turn ^= 1;
        if (better >= r.top_k) best = best_of(frame_kth(c, keys, r.top_k, key + 1, top), key);
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
