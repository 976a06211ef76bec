// Runs a grid: blocks one after the other, a block's threads as fibres that take turns at barriers.
#include "device.h"
#include <cstdio>
#include <cstdlib>
#include <algorithm>
#include <memory>
#include <sys/mman.h>
#include <vector>

// A fibre is left by saving its registers on its own stack: on x86-64 by hand, elsewhere by the C library, which is slower
// (VOCE_PORTABLE_FIBRES asks for that anywhere).
#if defined(__x86_64__) && !defined(VOCE_PORTABLE_FIBRES)
#define FIBRES_BY_HAND 1
extern "C" void voce_switch(void** save, void* to);
asm(R"(
.text
.globl voce_switch
.type voce_switch, @function
voce_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size voce_switch, .-voce_switch
)");
#else
#include <ucontext.h>
#endif

namespace emulator {
namespace {
enum class State : unsigned char { Ready, AtBlock, AtWarp, Done };
constexpr unsigned MAX_THREADS = 1024, WARP = 32;

#ifdef FIBRES_BY_HAND
using Place = void*;
#else
using Place = ucontext_t;
#endif

struct Machine {
    // Those behind the last thread of the last warp are done.
    State states[MAX_THREADS + WARP];
    Place places[MAX_THREADS];
    Grid grid{};
    // What was mapped, and the first multiple of a stack's size in it.
    void* mapped = nullptr;
    unsigned char* stacks = nullptr;
    Place home{};
    std::vector<unsigned char> shared;
    alignas(16) Places shown[MAX_THREADS / WARP][SETS];
    void (*kernel)(const void*) = nullptr;
    const void* args = nullptr;
    unsigned threads = 0;

    ~Machine() {
        if (mapped) munmap(mapped, (MAX_THREADS + 1) * STACK);
    }
};

// The machine of a thread that has run a kernel.
thread_local std::unique_ptr<Machine> owner;

Machine& running() { return *static_cast<Machine*>(current().machine); }

void switch_to(Place& from, Place& to) {
#ifdef FIBRES_BY_HAND
    voce_switch(&from, to);
#else
    if (swapcontext(&from, &to) != 0) std::abort();
#endif
}

// Lets a warp go on if all of its threads that have not ended wait for each other; returns whether it did.
bool release(State* warp) {
    State waiting[WARP];
    std::memset(waiting, (int)State::AtWarp, WARP);
    if (std::memcmp(warp, waiting, WARP) == 0) {
        std::memset(warp, (int)State::Ready, WARP);
        return true;
    }
    bool waits = false, together = true;
    for (unsigned t = 0; t < WARP; t++) {
        waits |= warp[t] == State::AtWarp;
        together &= warp[t] == State::Done || warp[t] == State::AtWarp;
    }
    if (!waits || !together) return false;
    std::replace(warp, warp + WARP, State::AtWarp, State::Ready);
    return true;
}

// Leaves this fibre for the next one that is ready, in the order of their numbers; the last one of a warp to reach a barrier
// of the warp lets it go on at once. After the last fibre of all comes home.
void stop(State state) {
    Machine& m = running();
    const unsigned self = current().number, warp = self / WARP * WARP;
    m.states[self] = state;
    unsigned next = self + 1;
    while (next < warp + WARP && m.states[next] != State::Ready) next++;
    if (next == warp + WARP && release(m.states + warp)) next = warp;
    while (next < m.threads && m.states[next] != State::Ready) next++;
    if (next == self) return;
    switch_to(m.places[self], next < m.threads ? m.places[next] : m.home);
}

void begin() {
    const Machine& m = running();
    m.kernel(m.args);
    stop(State::Done);
    std::abort();
}

// Lets a fibre begin on its stack, below its thread.
void prepare(Place& place, uintptr_t stack) {
    const uintptr_t end = reinterpret_cast<uintptr_t>(&thread_of(stack));
#ifdef FIBRES_BY_HAND
    // A frame that voce_switch pops: six registers, then begin() as the return address. The stack is
    // then where a call would leave it: 8 below a multiple of 16.
    void** top = reinterpret_cast<void**>(end - 8);
    top[0] = nullptr;
    top[-1] = reinterpret_cast<void*>(&begin);
    for (int i = 2; i <= 7; i++) top[-i] = nullptr;
    place = top - 7;
#else
    if (getcontext(&place) != 0) std::abort();
    place.uc_stack.ss_sp = reinterpret_cast<void*>(stack);
    place.uc_stack.ss_size = end - stack;
    place.uc_link = nullptr;
    makecontext(&place, begin, 0);
#endif
}

void run_block(Machine& m) {
    const dim3 block_dim = m.grid.block_dim;
    const uintptr_t stacks = reinterpret_cast<uintptr_t>(m.stacks);
    for (unsigned t = 0; t < m.threads; t++) {
        const dim3 index{t % block_dim.x, t / block_dim.x % block_dim.y, t / block_dim.x / block_dim.y};
        thread_of(stacks + t * STACK) = {index, t, t % WARP, 0, &m.grid, m.shown[t / WARP], &m};
        m.states[t] = State::Ready;
        prepare(m.places[t], stacks + t * STACK);
    }
    std::fill_n(m.states + m.threads, WARP, State::Done);
    State* const end = m.states + m.threads;
    for (;;) {
        // Those that are ready run one after the other, each until it waits; the last one comes back here.
        State* const ready = std::find(m.states, end, State::Ready);
        if (ready != end) {
            switch_to(m.home, m.places[ready - m.states]);
            continue;
        }
        if (std::find(m.states, end, State::AtWarp) != end) {
            std::fprintf(stderr, "emulator: threads of a block wait at different barriers\n");
            std::abort();
        }
        if (std::find(m.states, end, State::AtBlock) == end) return;
        std::replace(m.states, end, State::AtBlock, State::Ready);
    }
}
}  // namespace

void block_barrier() { stop(State::AtBlock); }
void warp_barrier() { stop(State::AtWarp); }
void* shared() {
    unsigned char* data = running().shared.data();
    return data + (-(uintptr_t)data & 127);
}

void run(void (*kernel)(const void*), const void* args, dim3 grid, dim3 block, unsigned shared_bytes) {
    if (!owner) owner = std::make_unique<Machine>();
    Machine& m = *owner;
    if (!m.mapped) {
        void* mapped = mmap(nullptr, (MAX_THREADS + 1) * STACK, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mapped == MAP_FAILED) std::abort();
        m.mapped = mapped;
        m.stacks = reinterpret_cast<unsigned char*>((reinterpret_cast<uintptr_t>(mapped) + STACK - 1) & ~(STACK - 1));
    }
    m.threads = block.x * block.y * block.z;
    if (m.threads == 0 || m.threads > MAX_THREADS) {
        std::fprintf(stderr, "emulator: a block of %u threads\n", m.threads);
        std::abort();
    }
    // Poisoned: a kernel that reads what it did not write gives NaN.
    m.shared.assign(shared_bytes + 128, 0xff);
    m.kernel = kernel;
    m.args = args;
    m.grid.block_dim = block;
    m.grid.grid_dim = grid;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                m.grid.block_index = {x, y, z};
                run_block(m);
            }
}
}  // namespace emulator
