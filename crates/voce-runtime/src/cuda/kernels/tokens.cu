// Tokens by slot: from the host, and looked up in embedding tables.

struct PutTokensArgs {
    u64 values, slots, tokens;
    u32 columns, column, each, count;
};

KERNEL(put_tokens, PutTokensArgs, 256) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.count * a.each) return;
    const u64 slot = at<const u32>(a.slots)[i / a.each];
    at<u32>(a.tokens)[slot * a.columns + a.column + i % a.each] = at<const u32>(a.values)[i];
}

struct BranchTokensArgs {
    u64 then, otherwise, slots, tokens;
    u32 columns, drawn, key, column, each, count;
};

// The column of what was drawn is none of those written.
KERNEL(branch_tokens, BranchTokensArgs, 256) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.count * a.each) return;
    u32* row = at<u32>(a.tokens) + (u64)at<const u32>(a.slots)[i / a.each] * a.columns;
    row[a.column + i % a.each] = at<const u32>(row[a.drawn] == a.key ? a.then : a.otherwise)[i];
}

struct MoveTokensArgs {
    u64 moves, from, to;
    u32 count, pad;
};

// Words by their places in both lists.
KERNEL(move_tokens, MoveTokensArgs, 256) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.count) return;
    const uint2 places = at<const uint2>(a.moves)[i];
    at<u32>(a.to)[places.y] = at<const u32>(a.from)[places.x];
}

struct EmbedPart {
    u64 rows;
    u32 count, stride, column, narrow;
};

struct EmbedArgs {
    u64 parts, slots, tokens, out;
    u32 count, columns, dim, out_stride, first, every;
};

// Sums of rows, in the order of the parts: blocks (slot, share of the columns). Bound by the latency of one load,
// as all parts' are under way at once, or by memory.
KERNEL(embed, EmbedArgs, 256) {
    const u32 i = 2 * (blockIdx.y * blockDim.x + threadIdx.x);
    if (i >= a.dim) return;
    const u32* tokens = at<const u32>(a.tokens) + (u64)at<const u32>(a.slots)[blockIdx.x] * a.columns;
    float lo = 0.0f, hi = 0.0f;
#pragma unroll 8
    for (u32 p = 0; p < a.count; p++) {
        const EmbedPart part = at<const EmbedPart>(a.parts)[p];
        const u32 token = tokens[part.column];
        if (token >= part.count) continue;
        const u64 value = (u64)token * part.stride + i;
        if (part.narrow) {
            const u32 pair = at<const u32>(part.rows)[value / 2];
            lo += low(pair);
            hi += high(pair);
        } else {
            const float2 pair = at<const float2>(part.rows)[value / 2];
            lo += pair.x;
            hi += pair.y;
        }
    }
    float* out = at<float>(a.out) + ((u64)a.first + (u64)blockIdx.x * a.every) * a.out_stride;
    out[i] = lo;
    if (i + 1 < a.dim) out[i + 1] = hi;
}
