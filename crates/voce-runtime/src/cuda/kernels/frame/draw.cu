// Draws of a frame: every block makes all of them.
//
// The code is short rather than fast: it runs once in some twenty phases, and by then its instructions come from a cache that gives
// them more slowly than they are executed. So loops are hardly unrolled, keys are in shared memory, and noise is made for the few
// tokens that are left alone.

#ifdef FRAME_RUNS
DEV u32 frame_lds1(u32 p) {
    u32 v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(p));
    return v;
}

struct FrameDraw {
    FrameBlock& c;
    const SampleRow& r;
    u32 count, keys, list;   // of the thread's keys, and where they are; where the tokens are that are left
    bool drawn;
    u32 low, high;           // keys among which the last of the best is looked for
    float least, scale;      // the lowest of their values, and bins for each unit

    // A thread has four neighbours of each 1024 tokens.
    MEMBER u32 place_of(u32 i) const { return 1024 * (i / 4) + 4 * c.t + i % 4; }
    MEMBER u32 key_at(u32 i) const { return frame_lds1(keys + 4 * FRAME_THREADS * i); }
    // Bins of values at first; of keys themselves once those of a bin are too many.
    MEMBER u32 bin_of(u32 key, u32 round) const {
        if (round > 0) return (key - low) >> max(24 - (int)__clz(high - low), 0);
        return min((u32)((value_of(key) - least) * scale), FRAME_BINS - 1u);
    }
    MEMBER void span(u32 from, u32 to) {
        low = from, high = to, least = value_of(from);
        scale = __fdividef(FRAME_BINS, value_of(to) - least);
    }
    // Largest and smallest of what the threads have.
    MEMBER uint2 extremes(u32 most, u32 lowest) const {
        most = warp_most(most), lowest = ~warp_most(~lowest);
        if (c.lane == 0) c.s.best[0][c.warp] = most, c.s.places[0][c.warp] = lowest;
        c.meet();
        const u32 from = c.lane % FRAME_WARPS;
        return {warp_most(c.s.best[0][from]), ~warp_most(~c.s.places[0][from])};
    }
    // The bin that the `k`-th of the keys from the top is in, how many lie above it, and how many in it; the lowest, where there are
    // fewer. Bins are complete.
    MEMBER uint3 find(u32 k) const {
        // A lane has eight bins, and those of the lanes above lie above them.
        const u32 eight = frame_shared(c.s.bins) + 32 * c.lane;
        const uint4 b0 = frame_lds(eight), b1 = frame_lds(eight + 16);
        const u32 own = b0.x + b0.y + b0.z + b0.w + b1.x + b1.y + b1.z + b1.w;
        u32 above = own;
#pragma unroll
        for (int m = 1; m < 32; m <<= 1) {
            const u32 other = __shfl_down_sync(FULL, above, m);
            if (c.lane + m < 32) above += other;
        }
        above -= own;
        const u32 has = __ballot_sync(FULL, above < k);
        const u32 whose = __ffs(has) - 1;
        u32 bin = 0, before_it = 0, in_it = 0;
        if (c.lane == whose) {
            // Lanes above reach less than `k`; this one reaches it, or is the lowest.
            bin = 8;
#pragma unroll 1
            do {
                bin--;
                in_it = frame_lds1(eight + 4 * bin), before_it = above, above += in_it;
            } while (bin > 0 && above < k);
            bin += 8 * c.lane;
        }
        return {warp_total(bin), warp_total(before_it), warp_total(in_it)};
    }
    MEMBER void better(u32& most, u32& best, u32 key, u32 place) const {
        const u32 now = key_of(drawn ? plain_add(value_of(key), gumbel(r, place)) : value_of(key));
        if (now > most || (now == most && place < best)) most = now, best = place;
    }
    // The thread's best of its keys from `limit` on.
    MEMBER void best_of_all(u32 limit, u32& most, u32& best) const {
#pragma unroll 1
        for (u32 i = 0; i < count; i++) {
            const u32 key = key_at(i);
            if (key >= limit) better(most, best, key, place_of(i));
        }
    }
    // The thread's best of those that are left: all that lie above the bin that decides, and of the bin those that belong to the best `k`
    // with their equals.
    MEMBER void best_of_few(u32 round, u32 bin, u32 sure, u32 in_it, u32 k, u32& most, u32& best) const {
#pragma unroll 2
        for (u32 i = 0; i < count; i++) {
            const u32 key = key_at(i);
            if (key < low) continue;
            const u32 its = key > high ? FRAME_BINS : bin_of(key, round);
            if (its < bin) continue;
            const bool inside = its == bin;
            const u32 at = list + 8 * ((inside ? sure : 0) + atomicAdd(&c.s.listed[inside], 1u));
            frame_sts(at, key), frame_sts(at + 4, place_of(i));
        }
        c.meet();
#pragma unroll 1
        for (u32 j = c.t; j < sure + in_it; j += FRAME_THREADS) {
            const uint2 entry = frame_lds2(list + 8 * j);
            u32 greater = 0;
            if (j >= sure)
#pragma unroll 1
                for (u32 i = 0; i < in_it; i++) greater += frame_lds1(list + 8 * (sure + i)) > entry.x;
            if (greater < k) better(most, best, entry.x, entry.y);
        }
    }
    // The thread's best of the best `k` of all, whose largest and smallest keys are known.
    MEMBER void best_of(u32 k, uint2 ends, u32& most, u32& best) {
        span(ends.y, ends.x);
        u32 sure = 0;
        for (u32 round = 0;; round++) {
#pragma unroll 4
            for (u32 i = 0; i < count; i++) {
                const u32 key = key_at(i);
                if (key >= low && key <= high) atomicAdd(c.s.bins + bin_of(key, round), 1u);
            }
            c.meet();
            const uint3 found = find(k);
            sure += found.y, k -= found.y;
            if (sure + found.z <= FRAME_LISTED) return best_of_few(round, found.x, sure, found.z, k, most, best);
            // Too many in one bin: those are told apart by finer ones, unless all are equal.
            u32 top = 0, bottom = FULL;
#pragma unroll 1
            for (u32 i = 0; i < count; i++) {
                const u32 key = key_at(i);
                if (key >= low && key <= high && bin_of(key, round) == found.x) top = max(top, key), bottom = min(bottom, key);
            }
            c.meet();
            c.s.bins[c.t] = 0;
            ends = extremes(top, bottom);
            low = ends.y, high = ends.x;
            if (low == high) return best_of_all(low, most, best);
        }
    }
};

// Every block draws the same token for itself. Arithmetic that decides is that of `sampling.cu`.
DEV void frame_draw(FrameBlock& c, const FramePhase& p, u32 index, const uint4& next) {
    const uint4 row0 = *at<const uint4>(p.address[0]), row1 = *at<const uint4>(p.address[0] + 16), row2 = *at<const uint4>(p.address[0] + 32);
    const SampleRow r = {row0.x, row0.y, row0.z, row0.w, __uint_as_float(row1.x), __uint_as_float(row1.y), __uint_as_float(row1.z),
                         row1.w, row2.x, row2.y, 0, 0};
    const u32 n = same(p.n), columns = p.number[0], column = p.number[1], words = p.number[2];
    u32* history = p.address[2] ? at<u32>(p.address[2]) + (u64)r.slot * words : 0;
    const bool penalised = same(history && r.penalty != 1.0f);
    const u32 count = 4 * ((n + 1023) / 1024), end = c.xs + 4 * FRAME_THREADS * count;
    FrameDraw d = {c, r, count, c.xs + 4 * c.t, end, (bool)same(r.inverse > 0.0f), 0, 0, 0.0f, 0.0f};
    // Four tokens of each group: whether they were drawn before.
    u32 seen = 0;
    if (penalised)
#pragma unroll
        for (int i = 0; i < FRAME_DRAWN / 1024; i++) {
            const u32 begin = d.place_of(4 * i);
            if (begin < n) seen |= (history[begin / 32] >> (begin % 32) & 15) << 4 * i;
        }
    c.s.bins[c.t] = 0;
    if (c.t < 2) c.s.listed[c.t] = 0;
    frame_announce(c, index, next);
    c.rest_for(p.nap);
#pragma unroll 1
    for (u32 from = 0; from < count; from += 16) {
        float x[16];
        c.take<4>(p.in[0], d.place_of(from), 1024, n, x);
#pragma unroll
        for (int i = 0; i < 16; i++)
            if (from + i < count) frame_sts(d.keys + 4 * FRAME_THREADS * (from + i), __float_as_uint(x[i]));
    }
    u32 most = 0, lowest = FULL;
#pragma unroll 4
    for (u32 i = 0; i < count; i++) {
        const u32 id = d.place_of(i);
        float v = __uint_as_float(d.key_at(i));
        if (seen >> i & 1) v = v < 0.0f ? plain_mul(v, r.penalty) : quotient(v, r.penalty);
        if (d.drawn) v = plain_mul(v, r.inverse);
        const bool may = id < n && (id < r.below || id == r.also) && v > -INF;
        const u32 key = may ? key_of(fminf(v, 3e38f)) : 0;
        frame_sts(d.keys + 4 * FRAME_THREADS * i, key);
        most = max(most, key);
        if (may) lowest = min(lowest, key);
    }
    const uint2 ends = d.extremes(most, lowest);
    u32 best = NO_INDEX;
    most = 0;
    if (ends.x > 0) {
        const bool all = d.drawn && (r.top_k == 0 || r.top_k >= n);
        if (all) d.best_of_all(1, most, best);
        else d.best_of(d.drawn ? r.top_k : 1, ends, most, best);
    }
    // The first of the largest.
    u32 top = warp_most(most), first = ~warp_most(most == top ? ~best : 0);
    if (c.lane == 0) c.s.best[1][c.warp] = top, c.s.places[1][c.warp] = first;
    c.meet();
    const u32 from = c.lane % FRAME_WARPS, theirs = c.s.best[1][from];
    top = warp_most(theirs), first = ~warp_most(theirs == top ? ~c.s.places[1][from] : 0);
    const u32 token = first == NO_INDEX ? 0 : first;
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
