// What the kernels share: bf16 as bits, sums over a warp and a block, activations, row norms.
//
// Every kernel takes one struct by value and is declared as KERNEL(name, Args, threads); its Rust twin has
// the same fields in the same order, without padding. Addresses are 64-bit integers on both sides.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short bf16;
typedef signed char i8;

#ifdef VOCE_EMULATED
#define DEV static inline
#define KERNEL(name, Args, threads) void name(const Args a)
#define KERNEL_AHEAD(name, Args, threads, blocks) void name(const Args a)
#define KERNEL_DENSE(name, Args, threads, blocks) void name(const Args a)
#define SHARED(type, name) type* name = static_cast<type*>(emulator::shared())
#define CONSTANT static const
#else
#define DEV static __device__ __forceinline__
// The launch of a kernel is set up while the one before it runs: each lets the next one start, and waits for those before
// it to be done. KERNEL_AHEAD leaves both to the kernel, which may first ask for what no other kernel writes. `blocks` is how
// many fit on a multiprocessor: a kernel with too many registers neither fills it nor leaves room for the next one's start.
#define KERNEL_AHEAD(name, Args, threads, blocks) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) name(const Args a)
#define KERNEL(name, Args, threads) KERNEL_DENSE(name, Args, threads, 1)
#define KERNEL_DENSE(name, Args, threads, blocks)   \
    DEV void name##_body(const Args& a);            \
    KERNEL_AHEAD(name, Args, threads, blocks) {     \
        dependents_may_start();                     \
        wait_for_others();                          \
        name##_body(a);                             \
    }                                               \
    DEV void name##_body(const Args& a)
// A kernel of another part of the program: never instantiated, so that it costs its reading alone.
#define SKIPPED(name, Args, ...) template <int Unused> static __device__ void name##_skipped(const Args& a)
extern __shared__ __align__(128) unsigned char voce_shared[];
#define SHARED(type, name) type* name = reinterpret_cast<type*>(voce_shared)
#define CONSTANT static __device__ const
#endif

#define FULL 0xffffffffu
// Stands for no row in lists of rows.
#define NO_ROW 0xffffffffu
#define INF __uint_as_float(0x7f800000u)

template <class T> DEV T* at(u64 address) { return reinterpret_cast<T*>(address); }

DEV float widen(bf16 x) { return __uint_as_float((u32)x << 16); }
DEV float low(u32 pair) { return __uint_as_float(pair << 16); }
DEV float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

// Devices from this generation on round to bf16 themselves.
#if !defined(VOCE_EMULATED) && __CUDA_ARCH__ >= 800
#define NARROWS
#endif
// Round to nearest, ties to even; infinities and NaN stay what they are.
DEV bf16 narrow(float x) {
#ifdef NARROWS
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
#else
    u32 bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (bf16)((bits >> 16) | 64);
    return (bf16)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
#endif
}
// Two of them, the first one in the lower half.
DEV u32 narrow2(float a, float b) {
#ifdef NARROWS
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(b), "f"(a));
    return y;
#else
    return (u32)narrow(a) | (u32)narrow(b) << 16;
#endif
}
// A quotient with the bits of a division, where it is neither tiny nor huge; without the call that a division has for those.
DEV float quotient(float a, float b) {
#ifdef VOCE_EMULATED
    return a / b;
#else
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(b));
    y = __fmaf_rn(__fmaf_rn(-b, y, 1.0f), y, y);
    float q = __fmul_rn(a, y);
    q = __fmaf_rn(__fmaf_rn(-b, q, a), y, q);
    return __fmaf_rn(__fmaf_rn(-b, q, a), y, q);
#endif
}
DEV float4 widen4(const uint2 v) { return {low(v.x), high(v.x), low(v.y), high(v.y)}; }

// Two marks of a kernel: after the first the next kernel may be set up, after the second this one may read what earlier
// kernels wrote.
DEV void dependents_may_start() {
#if !defined(VOCE_EMULATED) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
DEV void wait_for_others() {
#if !defined(VOCE_EMULATED) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Asks for what will be read soon.
DEV void prefetch(u64 address) {
#ifndef VOCE_EMULATED
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
#endif
}

// Asks for a constant that will be read soon, nearer than `prefetch` does.
DEV void touch(u64 address) {
#ifndef VOCE_EMULATED
    u32 unused;
    asm volatile("ld.global.ca.u32 %0, [%1];" : "=r"(unused) : "l"(address));
#endif
}

// Reads from a table. Tables are copied before the first kernel of a recording, and all other kernels start after that one:
// they may be read before `wait_for_others`, but not from a cache that may hold an older table.
DEV uint4 table_load(u64 address) {
#ifdef VOCE_EMULATED
    return *at<const uint4>(address);
#else
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(address));
    return v;
#endif
}

// What is read once and not written meanwhile: it need not stay in the cache.
DEV uint4 stream_load(const uint4* at) {
#ifdef VOCE_EMULATED
    return *at;
#else
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at));
    return v;
#endif
}

DEV float warp_sum(float x) {
    for (int m = 16; m > 0; m >>= 1) x += __shfl_xor_sync(FULL, x, m);
    return x;
}
// Sums of H values over a warp, H a power of two: the 32 / H lanes from 32 / H * i on get that of value i. With every exchange
// a lane keeps half of the values, until it has one.
template <int H> DEV float warp_sums(float (&v)[H]) {
    const u32 lane = threadIdx.x % 32;
    int left = H;
#pragma unroll
    for (int m = 16; m > 0; m >>= 1) {
        if (left > 1) {
            left /= 2;
#pragma unroll
            for (int h = 0; h < left; h++) {
                const bool upper = lane & m;
                const float give = upper ? v[h] : v[h + left], keep = upper ? v[h + left] : v[h];
                v[h] = keep + __shfl_xor_sync(FULL, give, m);
            }
        } else {
            v[0] += __shfl_xor_sync(FULL, v[0], m);
        }
    }
    return v[0];
}
DEV float warp_max(float x) {
    for (int m = 16; m > 0; m >>= 1) x = fmaxf(x, __shfl_xor_sync(FULL, x, m));
    return x;
}

// Sum over all threads of a block, whose number is a multiple of 32; `scratch` has room for 33 floats.
// Every thread gets it, and may use `scratch` again at once.
DEV float block_sum(float x, float* scratch) {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    x = warp_sum(x);
    __syncthreads();
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    if (warp == 0) {
        x = warp_sum(lane < warps ? scratch[lane] : 0.0f);
        if (lane == 0) scratch[32] = x;
    }
    __syncthreads();
    return scratch[32];
}
DEV float block_max(float x, float* scratch) {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    x = warp_max(x);
    __syncthreads();
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    if (warp == 0) {
        x = warp_max(lane < warps ? scratch[lane] : -INF);
        if (lane == 0) scratch[32] = x;
    }
    __syncthreads();
    return scratch[32];
}

// The order of `Activation` in Rust.
#define ACT_NONE 0
// Of rows of a stream alone: the periodic activation, whose parameters the stream has.
#define ACT_SNAKE 100
#define ACT_RELU 1
#define ACT_SILU 2
#define ACT_ELU 3
#define ACT_GELU_TANH 4
#define ACT_GELU_ERF 5

DEV float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// For what becomes bf16: within some units of the last place of f32.
DEV float sigmoid_roughly(float x) {
#ifdef VOCE_EMULATED
    return sigmoid(x);
#else
    return __fdividef(1.0f, 1.0f + __expf(-x));
#endif
}

DEV float activate(u32 act, float x) {
    switch (act) {
        case ACT_RELU: return fmaxf(x, 0.0f);
        case ACT_SILU: return x * sigmoid(x);
        case ACT_ELU: return x > 0.0f ? x : expm1f(x);
        case ACT_GELU_TANH: {
            const float u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
            return 0.5f * x * (1.0f + tanhf(u));
        }
        case ACT_GELU_ERF: return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
        default: return x;
    }
}

// Four values activated: one look at which activation it is.
DEV float4 activate4(u32 act, const float4& v) {
    if (act == ACT_NONE) return v;
    if (act == ACT_ELU)
        return {activate(ACT_ELU, v.x), activate(ACT_ELU, v.y), activate(ACT_ELU, v.z), activate(ACT_ELU, v.w)};
    return {activate(act, v.x), activate(act, v.y), activate(act, v.z), activate(act, v.w)};
}

DEV float activate_roughly(u32 act, float x) { return act == ACT_SILU ? x * sigmoid_roughly(x) : activate(act, x); }

// What happens to rows before a product. Addresses that are 0 stand for parameters that are not there.
#define NORM_NONE 0
#define NORM_ACT 1
#define NORM_LAYER 2
#define NORM_RMS 3
#define NORM_SWIGLU 4

struct Norm {
    u64 weight, bias, shift, scale;
    u32 kind, act, shift_stride, scale_stride;
    float eps;
    u32 pad;
};

// Mean and reciprocal deviation of a row, over a whole block.
struct Moments { float mean, scale; };
DEV Moments row_moments(const Norm& n, const float* x, u32 k, float* scratch) {
    Moments m = {0.0f, 1.0f};
    if (n.kind != NORM_LAYER && n.kind != NORM_RMS) return m;
    if (n.kind == NORM_LAYER) {
        float sum = 0.0f;
        for (u32 i = threadIdx.x; i < k; i += blockDim.x) sum += x[i];
        m.mean = block_sum(sum, scratch) / k;
    }
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < k; i += blockDim.x) sum += (x[i] - m.mean) * (x[i] - m.mean);
    m.scale = rsqrtf(block_sum(sum, scratch) / k + n.eps);
    return m;
}

// A row's values in the registers of a warp: piece p of a lane is four values from 4 * (32 p + lane) on, zeros past k.
template <int PIECES> DEV void warp_row(const float* x, u32 k, float4 (&v)[PIECES]) {
    const u32 lane = threadIdx.x % 32;
    const float4 none = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const u32 i = 4 * (32 * p + lane);
        v[p] = i < k ? *reinterpret_cast<const float4*>(x + i) : none;
    }
}
template <int PIECES> DEV Moments warp_moments(const Norm& n, const float4 (&v)[PIECES], u32 k) {
    const u32 lane = threadIdx.x % 32;
    Moments m = {0.0f, 1.0f};
    float sum = 0.0f;
    if (n.kind == NORM_LAYER) {
#pragma unroll
        for (int p = 0; p < PIECES; p++) sum += v[p].x + v[p].y + v[p].z + v[p].w;
        m.mean = warp_sum(sum) / k;
    }
    sum = 0.0f;
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        if (4 * (32 * p + lane) >= k) continue;
        const float a = v[p].x - m.mean, b = v[p].y - m.mean, c = v[p].z - m.mean, d = v[p].w - m.mean;
        sum += a * a + b * b + c * c + d * d;
    }
    m.scale = rsqrtf(warp_sum(sum) / k + n.eps);
    return m;
}

DEV float apply_norm(const Norm& n, const Moments& m, float x, u32 row, u32 i) {
    if (n.kind == NORM_NONE) return x;
    if (n.kind == NORM_ACT) return activate(n.act, n.bias ? x + at<const float>(n.bias)[i] : x);
    x = (x - m.mean) * m.scale;
    if (n.weight) x *= at<const float>(n.weight)[i];
    if (n.bias) x += at<const float>(n.bias)[i];
    if (n.scale) x *= 1.0f + at<const float>(n.scale)[(u64)row * n.scale_stride + i];
    if (n.shift) x += at<const float>(n.shift)[(u64)row * n.shift_stride + i];
    return x;
}

// x + gain * sin(rate * x)^2, with the sine of simd/snake.rs: its square has a period of pi, so no quadrant matters.
DEV float snaked(float x, float rate, float gain) {
    const float y = x * rate, n = rintf(y * 0.318309886f);
    float r = fmaf(n, -3.140625f, y);
    r = fmaf(n, -9.675026e-4f, r);
    r = fmaf(n, -1.509958e-7f, r);
    r = fminf(fmaxf(r, -1.57079633f), 1.57079633f);
    const float z = r * r;
    float p = fmaf(2.5904724e-6f, z, -1.980089e-4f);
    p = fmaf(p, z, 8.3329e-3f);
    p = fmaf(p, z, -0.16666648f);
    p = fmaf(p, z, 1.0f);
    const float s = p * r;
    return fmaf(s * s, gain, x);
}

// Four values of a row of parameters.
DEV float4 four(u64 base, u64 i) {
    const u64 place = base + 4 * i;
    if (place % 16 == 0) return *at<const float4>(place);
    const float* x = at<const float>(place);
    return {x[0], x[1], x[2], x[3]};
}
// The same of four neighbouring values; `weight` is what the norm has for them.
DEV float4 apply_norm4(const Norm& n, const Moments& m, float4 x, const float4& weight, u32 row, u32 i) {
    if (n.kind == NORM_NONE) return x;
    x = {(x.x - m.mean) * m.scale, (x.y - m.mean) * m.scale, (x.z - m.mean) * m.scale, (x.w - m.mean) * m.scale};
    if (n.weight) x = {x.x * weight.x, x.y * weight.y, x.z * weight.z, x.w * weight.w};
    if (n.bias) {
        const float4 b = four(n.bias, i);
        x = {x.x + b.x, x.y + b.y, x.z + b.z, x.w + b.w};
    }
    if (n.scale) {
        const float4 s = four(n.scale, (u64)row * n.scale_stride + i);
        x = {x.x * (1.0f + s.x), x.y * (1.0f + s.y), x.z * (1.0f + s.z), x.w * (1.0f + s.w)};
    }
    if (n.shift) {
        const float4 s = four(n.shift, (u64)row * n.shift_stride + i);
        x = {x.x + s.x, x.y + s.y, x.z + s.z, x.w + s.w};
    }
    return x;
}
// The weights of a norm as a warp holds a row; asked for before the row's sums are known.
template <int PIECES> DEV void warp_weights(const Norm& n, u32 k, float4 (&w)[PIECES]) {
    const u32 lane = threadIdx.x % 32;
    const float4 one = {1.0f, 1.0f, 1.0f, 1.0f};
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const u32 i = 4 * (32 * p + lane);
        w[p] = n.weight && i < k ? *at<const float4>(n.weight + 4 * (u64)i) : one;
    }
}

// How a result meets the output: bias, activation, then set, add or gated add.
#define STORE_SET 0
#define STORE_ADD 1
#define STORE_GATED 2

struct Store {
    u64 out, bias, gate;
    u32 out_stride, gate_stride, act, store;
};

// Four neighbouring results; strides and `i` are multiples of four.
DEV void put4(const Store& s, u32 row, u32 i, float4 v) {
    if (s.bias) {
        const float4 b = *at<const float4>(s.bias + 4 * (u64)i);
        v = {v.x + b.x, v.y + b.y, v.z + b.z, v.w + b.w};
    }
    v = activate4(s.act, v);
    float4* out = at<float4>(s.out + 4 * ((u64)row * s.out_stride + i));
    if (s.store == STORE_SET) {
        *out = v;
        return;
    }
    float4 g = {1.0f, 1.0f, 1.0f, 1.0f};
    if (s.store == STORE_GATED) g = *at<const float4>(s.gate + 4 * ((u64)row * s.gate_stride + i));
    const float4 o = *out;
    *out = {o.x + g.x * v.x, o.y + g.y * v.y, o.z + g.z * v.z, o.w + g.w * v.w};
}

DEV void put(const Store& s, u32 row, u32 i, float v) {
    if (s.bias) v += at<const float>(s.bias)[i];
    v = activate(s.act, v);
    float* out = at<float>(s.out) + (u64)row * s.out_stride + i;
    if (s.store == STORE_SET) *out = v;
    else if (s.store == STORE_ADD) *out += v;
    else *out += at<const float>(s.gate)[(u64)row * s.gate_stride + i] * v;
}
