// Attention of a few queries that share a ring: rows alone with their heads of a key head, where there are many, or a few rows of a
// slot, such as the positions of one frame of a codec. Warps on tensor cores, straight from rings to registers: a product does not
// mind in which order its dimensions or keys come, so every lane's part of an operand is whole 16-byte pieces.

// Columns of a block's products, its warps, and keys that a warp takes at once. Up to half as many queries have two columns each:
// what bf16 keeps of their values and weights, and what it leaves, so that nothing is rounded but keys and values.
#define FEW_QUERIES 8
#define FEW_WARPS 4
#define FEW_KEYS 16

DEV u32 word_of(const uint4& v, int j) { return j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w; }
DEV u32 low_halves(u32 x, u32 y) { return (x & 0xffffu) | y << 16; }
DEV u32 high_halves(u32 x, u32 y) { return x >> 16 | (y & 0xffff0000u); }

// Sixteen keys and values of 64 H dimensions as a lane has them, with g = lane / 4 and t = lane % 4. Of every 64 dimensions it has
// pieces t and t + 4 of keys g and g + 8, and piece g of the values 2t, 2t + 1, 2t + 8, 2t + 9.
template <int H> struct FewRows {
    uint4 keys[H][2][2], values[H][4];
    METHOD void load(const bf16* ring, u32 capacity, u32 start, u32 from, u32 n) {
        const u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        const uint4 none = {0, 0, 0, 0};
        const uint4* k_ring = reinterpret_cast<const uint4*>(ring);
        const uint4* v_ring = k_ring + capacity * 8 * H;
        const auto place = [&](u32 i) { return (start + i < capacity ? start + i : start + i - capacity) * 8 * H; };
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const u32 i = from + g + 8 * r;
            const uint4* key = k_ring + place(i);
#pragma unroll
            for (int h = 0; h < H; h++)
#pragma unroll
                for (int c = 0; c < 2; c++) keys[h][r][c] = i < n ? key[8 * h + 4 * c + t] : none;
        }
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const u32 i = from + 2 * t + (r & 1) + 8 * (r / 2);
            const uint4* value = v_ring + place(i);
#pragma unroll
            for (int h = 0; h < H; h++) values[h][r] = i < n ? value[8 * h + g] : none;
        }
    }
};

// What bf16 leaves of a value.
DEV float left_by_narrow(float x) { return x - widen(narrow(x)); }

// The weights of column g for keys 2t, 2t + 1 and 2t + 8, 2t + 9, from lanes that have keys g and g + 8 of columns 2t, 2t + 1.
DEV uint2 few_weights(const float (&w)[4], bool rest) {
    const u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    u32 near = narrow2(w[0], w[1]), far = narrow2(w[2], w[3]);
    if (rest) {
        near = narrow2(left_by_narrow(w[0]), left_by_narrow(w[1]));
        far = narrow2(left_by_narrow(w[2]), left_by_narrow(w[3]));
    }
    const u32 from = 8 * t + g / 2;
    const u32 a = __shfl_sync(FULL, near, from), b = __shfl_sync(FULL, near, from + 4);
    const u32 c = __shfl_sync(FULL, far, from), d = __shfl_sync(FULL, far, from + 4);
    return g & 1 ? uint2{high_halves(a, b), high_halves(c, d)} : uint2{low_halves(a, b), low_halves(c, d)};
}

// What a warp has of its keys: the columns 2t and 2t + 1 of a lane, and their sums over values of dimensions 8g..8g + 7 of every 64.
template <int H> struct FewSums {
    float top[2], total[2], d[H][4][4];
    METHOD void clear() {
        top[0] = top[1] = -INF, total[0] = total[1] = 0.0f;
#pragma unroll
        for (int h = 0; h < H; h++)
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) d[h][j][i] = 0.0f;
    }
    // `seen` and `end` are what each column sees, `at` the position of key g. With `halves` the upper half of the columns is what
    // bf16 leaves of the lower.
    METHOD void add(const FewRows<H>& x, const uint2 (&q)[H][4], u32 at, const u32 (&seen)[2], const u32 (&end)[2], bool halves) {
        // Two chains of products, which do not wait for each other.
        float chains[2][4] = {}, s[4], shrink[2];
#pragma unroll
        for (int h = 0; h < H; h++) {
            const uint4(&k)[2][2] = x.keys[h];
#pragma unroll
            for (int j = 0; j < 4; j++)
                mma(chains[j & 1], {word_of(k[0][0], j), word_of(k[1][0], j), word_of(k[0][1], j), word_of(k[1][1], j)}, q[h][j]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) s[i] = chains[0][i] + chains[1][i];
        if (halves) {
#pragma unroll
            for (int i = 0; i < 4; i++) s[i] += __shfl_xor_sync(FULL, s[i], 2);
        }
#pragma unroll
        for (int c = 0; c < 2; c++) {
            if (at < seen[c] || at >= end[c]) s[c] = -INF;
            if (at + 8 < seen[c] || at + 8 >= end[c]) s[2 + c] = -INF;
            float most = fmaxf(s[c], s[2 + c]);
            for (int m = 4; m < 32; m *= 2) most = fmaxf(most, __shfl_xor_sync(FULL, most, m));
            most = fmaxf(most, top[c]);
            // Before a column sees anything there is nothing to shrink.
            shrink[c] = top[c] == most ? 1.0f : expf(top[c] - most);
            s[c] = s[c] == -INF ? 0.0f : expf(s[c] - most);
            s[2 + c] = s[2 + c] == -INF ? 0.0f : expf(s[2 + c] - most);
            top[c] = most;
            total[c] = total[c] * shrink[c] + s[c] + s[2 + c];
        }
        const uint2 weights = few_weights(s, halves && threadIdx.x % 4 >= 2);
#pragma unroll
        for (int h = 0; h < H; h++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
#pragma unroll
                for (int i = 0; i < 4; i++) d[h][j][i] *= shrink[i & 1];
                const u32 a = word_of(x.values[h][0], j), b = word_of(x.values[h][1], j);
                const u32 e = word_of(x.values[h][2], j), f = word_of(x.values[h][3], j);
                mma(d[h][j], {low_halves(a, b), high_halves(a, b), low_halves(e, f), high_halves(e, f)}, weights);
            }
    }
};

// The queries of a task to shared memory, and the keys and values of its rows to the ring: normed where heads are, and turned.
template <int DIM>
DEV void few_put(const AttendArgs& a, const AttendTask& t, u32 head, u32 half, bf16* ring, bf16 (*queries)[DIM + 8]) {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = a.heads / a.kv_heads, count = t.rows * group;
    for (u32 i = warp; i < count + t.rows; i += FEW_WARPS) {
        const bool query = i < count;
        const u32 r = query ? i / group : i - count;
        const float* row = at<const float>(a.qkv) + (u64)(t.row + r) * a.qkv_stride;
        const float* x = row + (query ? head * group + i % group : a.heads + head) * DIM;
        HeadRow from = {x, at<const float>(query ? a.query_norm : a.key_norm), 1.0f};
        if (from.weight) {
            float sum = 0.0f;
#pragma unroll
            for (u32 d = lane; d < DIM; d += 32) sum += x[d] * x[d];
            from.scale = rsqrtf(warp_sum(sum) / DIM + a.eps);
        }
        bf16* to = ring + (u64)((t.position + r) % a.capacity) * DIM;
#pragma unroll
        for (u32 d = lane; d < DIM; d += 32) {
            const float v = rotated(a, from, d, t.position + r);
            if (query) {
                queries[i][d] = narrow(v * a.scale);
                if (i + half < FEW_QUERIES) queries[i + half][d] = narrow(left_by_narrow(v * a.scale));
            } else {
                to[d] = narrow(v);
                to[(u64)a.capacity * DIM + d] = narrow(x[a.kv_heads * DIM + d]);
            }
        }
    }
    // Columns of no query.
    for (u32 i = warp; i < FEW_QUERIES; i += FEW_WARPS) {
        if (i % half < count) continue;
        for (u32 d = lane; d < DIM; d += 32) queries[i][d] = 0;
    }
}

// A block per task and key head, whose warps take sixteen keys in turn and meet once at the end. Bound by reading the ring.
template <int H> DEV void few_rows(const AttendArgs& a) {
    constexpr int DIM = 64 * H;
    __align__(16) __shared__ bf16 queries[FEW_QUERIES][DIM + 8];
    __align__(16) __shared__ float sums[FEW_WARPS][FEW_QUERIES][DIM];
    __shared__ float tops[FEW_WARPS][FEW_QUERIES], totals[FEW_WARPS][FEW_QUERIES];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t4 = lane % 4;
    const u32 head = blockIdx.x % a.kv_heads, group = a.heads / a.kv_heads;
    const u64 task = a.tasks + sizeof(AttendTask) * (blockIdx.x / a.kv_heads);
    const uint4 task0 = table_load(task), task1 = table_load(task + 16);
    const AttendTask t = {task0.x, task0.y, task0.z, task0.w, task1.x, task1.y, 0, 0};
    bf16* ring = ring_of<bf16>(a, t.slot, head, 0);
    const u32 start = t.first % a.capacity, past = t.position - t.first, count = t.rows * group;
    // The column where what is left of the first query is, if there is room.
    const bool halves = count <= FEW_QUERIES / 2;
    const u32 half = halves ? FEW_QUERIES / 2 : FEW_QUERIES;
    dependents_may_start();
    wait_for_others();
    FewRows<H> now, next;
    now.load(ring, a.capacity, start, warp * FEW_KEYS, past);
    few_put<DIM>(a, t, head, half, ring, queries);
    __syncthreads();
    uint2 q[H][4];
    u32 seen[2], end[2], own_end[2];
#pragma unroll
    for (int h = 0; h < H; h++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const bf16* x = &queries[g][64 * h + 8 * t4 + 2 * j];
            q[h][j] = {*reinterpret_cast<const u32*>(x), *reinterpret_cast<const u32*>(x + 32)};
        }
#pragma unroll
    for (int c = 0; c < 2; c++) {
        const u32 i = (2 * t4 + c) % half, position = t.position + i / group, frame_end = (position / a.causal + 1) * a.causal;
        seen[c] = a.window && frame_end > a.window ? min(frame_end - a.window, position) : 0;
        end[c] = i < count ? t.position : 0;
        own_end[c] = i < count ? position + 1 : 0;
    }
    FewSums<H> own;
    own.clear();
    for (u32 i = warp * FEW_KEYS; i < past; i += FEW_WARPS * FEW_KEYS) {
        next.load(ring, a.capacity, start, i + FEW_WARPS * FEW_KEYS, past);
        own.add(now, q, t.first + i + g, seen, end, halves);
        now = next;
    }
    // The rows' own keys, which were not there when the first of the past were asked for.
    if (warp == (past + FEW_KEYS - 1) / FEW_KEYS % FEW_WARPS) {
        now.load(ring, a.capacity, t.position % a.capacity, 0, t.rows);
        own.add(now, q, t.position + g, seen, own_end, halves);
    }
#pragma unroll
    for (int c = 0; c < 2; c++) {
        const u32 i = 2 * t4 + c;
        for (int m = 4; m < 32; m *= 2) own.total[c] += __shfl_xor_sync(FULL, own.total[c], m);
        if (g == 0) tops[warp][i] = own.top[c], totals[warp][i] = own.total[c];
#pragma unroll
        for (int h = 0; h < H; h++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                *reinterpret_cast<float2*>(&sums[warp][i][64 * h + 8 * g + 2 * j]) = {own.d[h][j][c], own.d[h][j][2 + c]};
    }
    __syncthreads();
    for (u32 e = threadIdx.x; e < count * DIM; e += 32 * FEW_WARPS) {
        const u32 i = e / DIM, d = e % DIM;
        float top = -INF, total = 0.0f, value = 0.0f;
#pragma unroll
        for (int w = 0; w < FEW_WARPS; w++) top = fmaxf(top, tops[w][i]);
#pragma unroll
        for (int w = 0; w < FEW_WARPS; w++) {
            const float scale = expf(tops[w][i] - top);
            total += totals[w][i] * scale;
            value += (sums[w][i][d] + (halves ? sums[w][i + half][d] : 0.0f)) * scale;
        }
        put_attended(a, t.row + i / group, (head * group + i % group) * DIM + d, value / total);
    }
}

KERNEL_AHEAD(few_rows_64, AttendArgs, 32 * FEW_WARPS, 4) { few_rows<1>(a); }
KERNEL_AHEAD(few_rows_128, AttendArgs, 32 * FEW_WARPS, 2) { few_rows<2>(a); }
