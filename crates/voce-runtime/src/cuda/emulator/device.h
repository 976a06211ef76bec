// The part of CUDA C++ that the kernels use, on a CPU: one fibre per thread of a block, barriers and warp
// exchanges between fibres. Slow and exact, so that machines without a GPU can test what the kernels compute.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#define VOCE_EMULATED 1
#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct dim3 { unsigned x, y, z; };

namespace emulator {
struct Thread { dim3 index; unsigned lane, warp; };
extern thread_local Thread* current;
extern thread_local dim3 block_index, block_dim, grid_dim;
void block_barrier();
void warp_barrier();
void* shared();
void run(void (*kernel)(const void*), const void* args, dim3 grid, dim3 block, unsigned shared_bytes);
// A place per lane for values of up to 16 bytes.
unsigned char* exchange(unsigned lane);

template <class T> T swap_with(T value, unsigned from) {
    static_assert(sizeof(T) <= 16);
    std::memcpy(exchange(current->lane), &value, sizeof(T));
    warp_barrier();
    T got;
    std::memcpy(&got, exchange(from), sizeof(T));
    warp_barrier();
    return got;
}
}  // namespace emulator

#define threadIdx (emulator::current->index)
#define blockIdx (emulator::block_index)
#define blockDim (emulator::block_dim)
#define gridDim (emulator::grid_dim)

inline void __syncthreads() { emulator::block_barrier(); }
inline void __syncwarp(unsigned = ~0u) { emulator::warp_barrier(); }
template <class T> T __shfl_sync(unsigned, T v, int lane) { return emulator::swap_with(v, lane & 31); }
template <class T> T __shfl_xor_sync(unsigned, T v, int mask) {
    return emulator::swap_with(v, (emulator::current->lane ^ mask) & 31);
}
template <class T> T __shfl_down_sync(unsigned, T v, int by) {
    unsigned to = emulator::current->lane + by;
    return emulator::swap_with(v, to > 31 ? emulator::current->lane : to);
}
template <class T> T __shfl_up_sync(unsigned, T v, int by) {
    int to = (int)emulator::current->lane - by;
    return emulator::swap_with(v, to < 0 ? emulator::current->lane : (unsigned)to);
}
inline unsigned __ballot_sync(unsigned, int p) {
    unsigned bits = 0;
    for (unsigned l = 0; l < 32; l++) bits |= (unsigned)(emulator::swap_with(p != 0 ? 1 : 0, l)) << l;
    return bits;
}
inline int __any_sync(unsigned m, int p) { return __ballot_sync(m, p) != 0; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }

inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __uint_as_float(unsigned x) { float f; std::memcpy(&f, &x, 4); return f; }
inline unsigned __float_as_uint(float f) { unsigned x; std::memcpy(&x, &f, 4); return x; }
inline int __float2int_rn(float x) { return (int)std::nearbyint(x); }
template <class T> T __ldg(const T* p) { return *p; }
template <class T> T min(T a, T b) { return b < a ? b : a; }
template <class T> T max(T a, T b) { return a < b ? b : a; }

// Blocks run one after the other and fibres do not preempt each other: plain updates are atomic.
template <class T> T atomicAdd(T* p, T v) { T old = *p; *p += v; return old; }
template <class T> T atomicMax(T* p, T v) { T old = *p; if (v > old) *p = v; return old; }
template <class T> T atomicExch(T* p, T v) { T old = *p; *p = v; return old; }
inline void __threadfence() {}
