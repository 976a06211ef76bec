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

struct KvCopyArgs {
    u64 to, from, place;
    u32 kv_heads, pieces, to_slots, from_slots, to_capacity, from_capacity;
};

// The first positions of a slot to slots of another cache, rows of `pieces` 16-byte pieces: blocks (ring, share, copy).
// A `place` is the slot to fill, the slot to copy and how many positions. Bound by memory.
KERNEL(copy_kv, KvCopyArgs, 256) {
    const u32* place = at<const u32>(a.place) + 3 * blockIdx.z;
    const u32 kv = blockIdx.x % 2, head = blockIdx.x / 2 % a.kv_heads, layer = blockIdx.x / 2 / a.kv_heads;
    const u64 to = (((u64)layer * a.to_slots + place[0]) * a.kv_heads + head) * 2 + kv;
    const u64 from = (((u64)layer * a.from_slots + place[1]) * a.kv_heads + head) * 2 + kv;
    uint4* target = at<uint4>(a.to) + to * a.to_capacity * a.pieces;
    const uint4* source = at<const uint4>(a.from) + from * a.from_capacity * a.pieces;
    for (u32 e = blockIdx.y * blockDim.x + threadIdx.x; e < place[2] * a.pieces; e += gridDim.y * blockDim.x)
        target[e] = source[e];
}
