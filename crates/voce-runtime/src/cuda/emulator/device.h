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
struct Grid { dim3 block_index, block_dim, grid_dim; };
// Places of a warp, one per lane, for values of up to 16 bytes. Three sets take turns, so that two may be read at once: whoever
// writes into one again has passed the barrier of the last, and so have all that read the first two.
using Places = unsigned char[32][16];
constexpr unsigned SETS = 3;
// `shown` are the sets of the thread's warp, `turn` is the one it writes next.
struct alignas(64) Thread { dim3 index; unsigned number, lane, turn; const Grid* grid; Places* shown; void* machine; };
constexpr uintptr_t STACK = 256 * 1024;

// The thread of a stack lies above the frames of what it calls, five cache lines further from the end in each next stack: if it
// lay at the same offset in all, hundreds of stacks would compete for a few sets of the first-level cache.
inline Thread& thread_of(uintptr_t stack) {
    constexpr uintptr_t LINE = 64, STACKS = 64, LINES = 5;
    return *reinterpret_cast<Thread*>(stack + STACK - (1 + stack / STACK % STACKS * LINES) * LINE);
}

// The thread whose kernel runs: stacks begin at multiples of their size. A thread-local variable would take a call at
// every step.
inline Thread& current() {
    return thread_of(reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) & ~(STACK - 1));
}

void block_barrier();
void warp_barrier();
void* shared();
void run(void (*kernel)(const void*), const void* args, dim3 grid, dim3 block, unsigned shared_bytes);

// Shows all lanes this one's value; returns where theirs are until the exchange after the next.
template <class T> Places& show(T value) {
    static_assert(sizeof(T) <= 16);
    Thread& thread = current();
    Places& places = thread.shown[thread.turn];
    thread.turn = (thread.turn + 1) % SETS;
    std::memcpy(places[thread.lane], &value, sizeof(T));
    warp_barrier();
    return places;
}

// What a lane has shown.
template <class T> T seen(const Places& places, unsigned lane) {
    T got;
    std::memcpy(&got, places[lane], sizeof(T));
    return got;
}

template <class T> T swap_with(T value, unsigned from) { return seen<T>(show(value), from); }
}  // namespace emulator

#define threadIdx (emulator::current().index)
#define blockIdx (emulator::current().grid->block_index)
#define blockDim (emulator::current().grid->block_dim)
#define gridDim (emulator::current().grid->grid_dim)

inline void __syncthreads() { emulator::block_barrier(); }
inline void __syncwarp(unsigned = ~0u) { emulator::warp_barrier(); }
template <class T> T __shfl_sync(unsigned, T v, int lane) { return emulator::swap_with(v, lane & 31); }
template <class T> T __shfl_xor_sync(unsigned, T v, int mask) {
    return emulator::swap_with(v, (emulator::current().lane ^ mask) & 31);
}
template <class T> T __shfl_down_sync(unsigned, T v, int by) {
    unsigned to = emulator::current().lane + by;
    return emulator::swap_with(v, to > 31 ? emulator::current().lane : to);
}
template <class T> T __shfl_up_sync(unsigned, T v, int by) {
    int to = (int)emulator::current().lane - by;
    return emulator::swap_with(v, to < 0 ? emulator::current().lane : (unsigned)to);
}
inline unsigned __ballot_sync(unsigned, int p) {
    unsigned bits = 0;
    emulator::Places& places = emulator::show<unsigned char>(p != 0);
    for (unsigned l = 0; l < 32; l++) bits |= (unsigned)(places[l][0] & 1) << l;
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
