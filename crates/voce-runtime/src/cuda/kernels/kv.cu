// Keys and values between caches and the host.

struct KvMoveArgs {
    u64 cache, values, place;
    u32 layers, slots, kv_heads, dim, width, capacity, count, out;
};

// Rows of one slot to or from f32 [layer][head][position][keys, values][dim]: a block per layer, head and position.
// `place` is the slot and the first position.
template <class T> DEV void move_kv(const KvMoveArgs& a) {
    const u32 slot = at<const u32>(a.place)[0], first = at<const u32>(a.place)[1];
    const u32 index = blockIdx.x % a.count, ring = blockIdx.x / a.count;
    const u32 head = ring % a.kv_heads, layer = ring / a.kv_heads;
    float* values = at<float>(a.values) + (u64)blockIdx.x * 2 * a.dim;
    const u64 rings = (((u64)layer * a.slots + slot) * a.kv_heads + head) * 2;
    for (u32 e = threadIdx.x; e < 2 * a.dim; e += blockDim.x) {
        const u64 row = (rings + e / a.dim) * a.capacity + (first + index) % a.capacity;
        T* kept = at<T>(a.cache) + row * a.width + e % a.dim;
        if (a.out) values[e] = widened(*kept);
        else keep_kv(kept, values[e]);
    }
}

KERNEL(move_kv_f32, KvMoveArgs, 128) { move_kv<float>(a); }
KERNEL(move_kv_bf16, KvMoveArgs, 128) { move_kv<bf16>(a); }

// The same in e4m3: a warp has the key, another the value.
KERNEL(move_kv_fp8, KvMoveArgs, 128) {
    const u32 kv = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (kv > 1) return;
    const u32 slot = at<const u32>(a.place)[0], first = at<const u32>(a.place)[1];
    const u32 index = blockIdx.x % a.count, heads = blockIdx.x / a.count;
    const u32 head = heads % a.kv_heads, layer = heads / a.kv_heads;
    float* values = at<float>(a.values) + ((u64)blockIdx.x * 2 + kv) * a.dim;
    const u64 rings = (((u64)layer * a.slots + slot) * a.kv_heads + head) * 2 + kv;
    const u32 place = (first + index) % a.capacity;
    fp8* ring = at<fp8>(a.cache) + rings * ring_values<fp8>(a.capacity, a.width);
    fp8* exponent = ring + a.capacity * a.width + place;
    fp8* row = ring + (u64)place * a.width;
    if (a.out) {
        const float scale = power_of(exponent->code);
        for (u32 d = lane; d < a.dim; d += 32) values[d] = from_e4m3(row[d].code) * scale;
    } else {
        const u32 kept = keep_row(row, a.dim, a.width, [&](u32 d) { return values[d]; });
        if (lane == 0) exponent->code = (unsigned char)kept;
    }
}

struct KvCopyArgs {
    u64 to, from, place;
    u32 kv_heads, pieces, to_slots, from_slots, to_capacity, from_capacity, exponents, pad;
};

// The first positions of a slot to slots of another cache, rows of `pieces` 16-byte pieces: blocks (ring, share, copy).
// A `place` is the slot to fill, the slot to copy and how many positions; `exponents` is whether rings are e4m3 and have
// one a row. Bound by memory.
KERNEL(copy_kv, KvCopyArgs, 256) {
    const u32* place = at<const u32>(a.place) + 3 * blockIdx.z;
    const u32 kv = blockIdx.x % 2, head = blockIdx.x / 2 % a.kv_heads, layer = blockIdx.x / 2 / a.kv_heads;
    const u64 to = (((u64)layer * a.to_slots + place[0]) * a.kv_heads + head) * 2 + kv;
    const u64 from = (((u64)layer * a.from_slots + place[1]) * a.kv_heads + head) * 2 + kv;
    const u64 row = 16 * a.pieces + a.exponents;
    uint4* target = at<uint4>(a.to + to * a.to_capacity * row);
    const uint4* source = at<const uint4>(a.from + from * a.from_capacity * row);
    for (u32 e = blockIdx.y * blockDim.x + threadIdx.x; e < place[2] * a.pieces; e += gridDim.y * blockDim.x)
        target[e] = source[e];
    if (!a.exponents || blockIdx.y > 0) return;
    fp8* exponents = reinterpret_cast<fp8*>(target + a.to_capacity * a.pieces);
    const fp8* copied = reinterpret_cast<const fp8*>(source + a.from_capacity * a.pieces);
    for (u32 e = threadIdx.x; e < place[2]; e += blockDim.x) exponents[e] = copied[e];
}
