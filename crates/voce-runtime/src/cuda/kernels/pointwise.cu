// Ops that take each row by itself: gated units, norms in place, LSTM cells, the joint's input.
// All of them are bound by memory: a value is read once and written once.

// A part of a row: `lanes` threads, a power of two, share up to TILE columns of it. Blocks along y take further columns.
#define TILE 1024
struct Tile { u32 row, begin, end; };
DEV Tile tile_of(u32 lanes, u32 width) {
    const u32 begin = blockIdx.y * TILE;
    return {blockIdx.x * (blockDim.x / lanes) + threadIdx.x / lanes, begin + threadIdx.x % lanes,
            min(width, begin + TILE)};
}

struct GluArgs {
    u64 x, out;
    u32 rows, n, out_stride, lanes;
};

KERNEL(glu, GluArgs, 256) {
    const Tile t = tile_of(a.lanes, a.n);
    if (t.row >= a.rows) return;
    const float* x = at<const float>(a.x) + (u64)t.row * (2 * a.n);
    float* out = at<float>(a.out) + (u64)t.row * a.out_stride;
    for (u32 i = t.begin; i < t.end; i += a.lanes) out[i] = x[i] * sigmoid(x[a.n + i]);
}

// The same, four columns per thread.
KERNEL(glu4, GluArgs, 256) {
    const u32 pieces = a.n / 4;
    const u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u32 row = (u32)(index / pieces), i = (u32)(index % pieces) * 4;
    if (row >= a.rows) return;
    const u64 from = a.x + 4 * ((u64)row * (2 * a.n) + i);
    const float4 x = *at<const float4>(from), y = *at<const float4>(from + 4 * (u64)a.n);
    *at<float4>(a.out + 4 * ((u64)row * a.out_stride + i)) = {x.x * sigmoid(y.x), x.y * sigmoid(y.y), x.z * sigmoid(y.z),
                                                              x.w * sigmoid(y.w)};
}

struct SnakeArgs {
    u64 x, out, rate, gain;
    u32 rows, n, narrow, pad;
};

KERNEL(snake, SnakeArgs, 256) {
    const u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= (u64)a.rows * a.n) return;
    const u32 i = (u32)(index % a.n);
    at<float>(a.out)[index] = snaked(at<const float>(a.x)[index], at<const float>(a.rate)[i], at<const float>(a.gain)[i]);
}

// The same, four columns per thread; `narrow` is for rows that products alone read.
KERNEL(snake4, SnakeArgs, 256) {
    const u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u32 pieces = a.n / 4;
    if (index >= (u64)a.rows * pieces) return;
    const u32 i = (u32)(index % pieces);
    const float4 x = at<const float4>(a.x)[index], rate = at<const float4>(a.rate)[i], gain = at<const float4>(a.gain)[i];
    const float4 v = {snaked(x.x, rate.x, gain.x), snaked(x.y, rate.y, gain.y), snaked(x.z, rate.z, gain.z),
                      snaked(x.w, rate.w, gain.w)};
    if (a.narrow) at<uint2>(a.out)[index] = {narrow2(v.x, v.y), narrow2(v.z, v.w)};
    else at<float4>(a.out)[index] = v;
}

struct NormalizeArgs {
    Norm norm;
    u64 x;
    u32 n, rows;
};

// One block per row, in place: the sums have read all of the row before any of it is written.
KERNEL(normalize, NormalizeArgs, 256) {
    __shared__ float scratch[33];
    float* x = at<float>(a.x) + (u64)blockIdx.x * a.n;
    const Moments m = row_moments(a.norm, x, a.n, scratch);
    for (u32 i = threadIdx.x; i < a.n; i += blockDim.x) x[i] = apply_norm(a.norm, m, x[i], blockIdx.x, i);
}

// A warp per row, which it holds in registers.
template <int PIECES> DEV void normalize_rows(const NormalizeArgs& a) {
    const u32 row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= a.rows) return;
    float* x = at<float>(a.x) + (u64)row * a.n;
    float4 v[PIECES], w[PIECES];
    warp_row<PIECES>(x, a.n, v);
    warp_weights<PIECES>(a.norm, a.n, w);
    const Moments m = warp_moments<PIECES>(a.norm, v, a.n);
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const u32 i = 4 * (32 * p + lane);
        if (i < a.n) *reinterpret_cast<float4*>(x + i) = apply_norm4(a.norm, m, v[p], w[p], row, i);
    }
}
KERNEL(normalize_4, NormalizeArgs, 256) { normalize_rows<4>(a); }
KERNEL(normalize_8, NormalizeArgs, 256) { normalize_rows<8>(a); }
KERNEL(normalize_16, NormalizeArgs, 256) { normalize_rows<16>(a); }

struct LstmCellArgs {
    u64 gates, state, from, to;
    u32 rows, hidden, stride, lanes;
};

// `state` is at the layer's first column. Rows of a launch do not depend on each other.
KERNEL(lstm_cell, LstmCellArgs, 256) {
    const Tile t = tile_of(a.lanes, a.hidden);
    if (t.row >= a.rows) return;
    const u32 from = at<const u32>(a.from)[t.row], to = at<const u32>(a.to)[t.row];
    if (from == NO_ROW || to == NO_ROW) return;
    const float* gates = at<const float>(a.gates) + (u64)t.row * (4 * a.hidden);
    const float* past = at<const float>(a.state) + (u64)from * a.stride + a.hidden;
    float* out = at<float>(a.state) + (u64)to * a.stride;
    for (u32 i = t.begin; i < t.end; i += a.lanes) {
        const float in = sigmoid(gates[i]), forget = sigmoid(gates[a.hidden + i]);
        const float cell = tanhf(gates[2 * a.hidden + i]), open = sigmoid(gates[3 * a.hidden + i]);
        const float c = forget * past[i] + in * cell;
        out[a.hidden + i] = c;
        out[i] = open * tanhf(c);
    }
}

struct AddReluArgs {
    u64 a, b, a_rows, b_rows, out;
    u32 rows, n, lanes, pad;
};

KERNEL(add_relu, AddReluArgs, 256) {
    const Tile t = tile_of(a.lanes, a.n);
    if (t.row >= a.rows) return;
    const u32 left = at<const u32>(a.a_rows)[t.row], right = at<const u32>(a.b_rows)[t.row];
    if (left == NO_ROW || right == NO_ROW) return;
    const float* x = at<const float>(a.a) + (u64)left * a.n;
    const float* y = at<const float>(a.b) + (u64)right * a.n;
    float* out = at<float>(a.out) + (u64)t.row * a.n;
    for (u32 i = t.begin; i < t.end; i += a.lanes) out[i] = fmaxf(x[i] + y[i], 0.0f);
}
