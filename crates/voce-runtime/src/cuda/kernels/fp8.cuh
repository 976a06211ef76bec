// e4m3: a sign, four bits of exponent (bias 7), three of mantissa; up to 448, down to 2^-9, no infinities. Rounded to
// nearest, ties to even; what is larger becomes 448, what is no number stays none. From sm_89 on by instructions, before
// that and on the emulated device by integers; both give the same codes.

struct fp8 { unsigned char code; };

#define E4M3_MAX 448.0f
// The largest value of a row below which the row counts as zeros: its reciprocal would not be a number.
#define E4M3_TINY 1e-30f
// The smallest exponent of a row: its smallest code is still a bf16.
#define LEAST_EXPONENT 8

#if !defined(VOCE_EMULATED) && __CUDA_ARCH__ >= 890
#define E4M3_NATIVE
#endif

DEV u32 to_e4m3(float x) {
#ifdef E4M3_NATIVE
    unsigned short pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
    return pair & 0xffu;
#else
    const u32 bits = __float_as_uint(x), sign = bits >> 24 & 0x80u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return sign | 0x7fu;
    // Below 2^-6 codes are multiples of 2^-9.
    if (size < 0x3c800000u) return sign | (u32)__float2int_rn(__uint_as_float(size) * 512.0f);
    const u32 code = (size + 0x7ffffu + (size >> 20 & 1)) >> 20;
    return sign | min(code - (120u << 3), 0x7eu);
#endif
}

// Four codes, the first in the lowest byte.
DEV u32 to_e4m3(const float4& v) {
#ifdef E4M3_NATIVE
    unsigned short lower, upper;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(lower) : "f"(v.y), "f"(v.x));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(upper) : "f"(v.w), "f"(v.z));
    return (u32)lower | (u32)upper << 16;
#else
    return to_e4m3(v.x) | to_e4m3(v.y) << 8 | to_e4m3(v.z) << 16 | to_e4m3(v.w) << 24;
#endif
}

#ifdef E4M3_NATIVE
DEV float2 from_e4m3_pair(u32 codes) {
    float2 v;
    asm("{ .reg .b32 p; .reg .b16 l, h; cvt.rn.f16x2.e4m3x2 p, %2; mov.b32 {l, h}, p; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }"
        : "=f"(v.x), "=f"(v.y)
        : "h"((unsigned short)codes));
    return v;
}
#endif
DEV float from_e4m3(u32 code) {
#ifdef E4M3_NATIVE
    return from_e4m3_pair(code).x;
#else
    const u32 sign = (code & 0x80u) << 24, size = code & 0x7fu;
    if (size == 0x7fu) return __uint_as_float(sign | 0x7fc00000u);
    if (size < 8u) return __uint_as_float(sign | __float_as_uint((float)size * 0.001953125f));
    return __uint_as_float(sign | ((size << 20) + (120u << 23)));
#endif
}
DEV float4 from_e4m3_four(u32 q) {
#ifdef E4M3_NATIVE
    const float2 x = from_e4m3_pair(q), y = from_e4m3_pair(q >> 16);
    return {x.x, x.y, y.x, y.y};
#else
    return {from_e4m3(q & 0xffu), from_e4m3(q >> 8 & 0xffu), from_e4m3(q >> 16 & 0xffu), from_e4m3(q >> 24)};
#endif
}

// Rows of keys and values have a power of two each, kept as the exponent of an f32: the smallest by which the row's
// largest value fits, so that a value that was kept is a bf16 exactly, and stays what it is when it is kept again.
DEV u32 row_exponent(float top) {
    const u32 bits = __float_as_uint(top), exponent = bits >> 23, over = (bits & 0x7fffffu) > 0x600000u;
    return top > 0.0f ? (u32)max((int)(exponent + over) - 8, LEAST_EXPONENT) : 127u;
}
DEV float power_of(u32 exponent) { return __uint_as_float(exponent << 23); }
DEV float inverse_power(u32 exponent) { return __uint_as_float((254u - exponent) << 23); }
