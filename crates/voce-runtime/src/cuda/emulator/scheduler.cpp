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
enum class State { Ready, AtBlock, AtWarp, Done };
constexpr unsigned MAX_THREADS = 1024;

#ifdef FIBRES_BY_HAND
using Place = void*;
#else
using Place = ucontext_t;
#endif

struct Machine;
struct Fibre { Thread thread; Place place; State state; Machine* machine; };

struct Machine {
    Fibre fibres[MAX_THREADS];
    Grid grid{};
    // What was mapped, and the first multiple of a stack's size in it.
    void* mapped = nullptr;
    unsigned char* stacks = nullptr;
    Place home{};
    std::vector<unsigned char> shared;
    alignas(16) Places exchange[2][MAX_THREADS / 32];
    void (*kernel)(const void*) = nullptr;
    const void* args = nullptr;
    unsigned threads = 0;

    ~Machine() {
        if (mapped) munmap(mapped, (MAX_THREADS + 1) * STACK);
    }
};

// The machine of a thread that has run a kernel.
thread_local std::unique_ptr<Machine> owner;

Fibre& running() { return reinterpret_cast<Fibre&>(current()); }

void switch_to(Place& from, Place& to) {
#ifdef FIBRES_BY_HAND
    voce_switch(&from, to);
#else
    if (swapcontext(&from, &to) != 0) std::abort();
#endif
}

// Leaves this fibre for the next one that is ready, in the order of their numbers; after the last one, for home.
void stop(State state) {
    Fibre* self = &running();
    Machine& m = *self->machine;
    self->state = state;
    for (Fibre* next = self + 1; next < m.fibres + m.threads; next++) {
        if (next->state == State::Ready) {
            switch_to(self->place, next->place);
            return;
        }
    }
    switch_to(self->place, m.home);
}

void begin() {
    Machine& m = *running().machine;
    m.kernel(m.args);
    stop(State::Done);
    std::abort();
}

// Lets a fibre begin on its stack.
void prepare(Fibre& f, unsigned char* stack) {
    *reinterpret_cast<Thread**>(stack) = &f.thread;
#ifdef FIBRES_BY_HAND
    // A frame that voce_switch pops: six registers, then begin() as the return address. The stack is
    // then where a call would leave it: 8 below a multiple of 16.
    void** top = reinterpret_cast<void**>(stack + STACK - 72);
    top[0] = nullptr;
    top[-1] = reinterpret_cast<void*>(&begin);
    for (int i = 2; i <= 7; i++) top[-i] = nullptr;
    f.place = top - 7;
#else
    if (getcontext(&f.place) != 0) std::abort();
    f.place.uc_stack.ss_sp = stack;
    f.place.uc_stack.ss_size = STACK;
    f.place.uc_link = nullptr;
    makecontext(&f.place, begin, 0);
#endif
}

void run_block(Machine& m) {
    const dim3 block_dim = m.grid.block_dim;
    for (unsigned t = 0; t < m.threads; t++) {
        Fibre& f = m.fibres[t];
        f.thread.index = {t % block_dim.x, t / block_dim.x % block_dim.y, t / block_dim.x / block_dim.y};
        f.thread.lane = t % 32;
        f.thread.warp = t / 32;
        f.thread.exchanges = 0;
        f.thread.grid = &m.grid;
        f.machine = &m;
        f.state = State::Ready;
        prepare(f, m.stacks + t * STACK);
    }
    for (;;) {
        bool ran = false, alive = false, all_at_block = true;
        // Those that are ready run one after the other, each until it waits; the last one comes back here.
        for (unsigned t = 0; t < m.threads && !ran; t++) {
            Fibre& f = m.fibres[t];
            if (f.state == State::Ready) {
                switch_to(m.home, f.place);
                ran = true;
            }
        }
        for (unsigned w = 0; w * 32 < m.threads; w++) {
            unsigned end = std::min(m.threads, (w + 1) * 32);
            bool warp_waits = false, warp_together = true;
            for (unsigned t = w * 32; t < end; t++) {
                State s = m.fibres[t].state;
                alive |= s != State::Done;
                all_at_block &= s == State::Done || s == State::AtBlock;
                warp_waits |= s == State::AtWarp;
                warp_together &= s == State::Done || s == State::AtWarp;
            }
            if (warp_waits && warp_together) {
                for (unsigned t = w * 32; t < end; t++)
                    if (m.fibres[t].state == State::AtWarp) m.fibres[t].state = State::Ready;
                ran = true;
            }
        }
        if (!alive) return;
        if (all_at_block) {
            for (unsigned t = 0; t < m.threads; t++)
                if (m.fibres[t].state == State::AtBlock) m.fibres[t].state = State::Ready;
            ran = true;
        }
        if (!ran) {
            std::fprintf(stderr, "emulator: threads of a block wait at different barriers\n");
            std::abort();
        }
    }
}
}  // namespace

void block_barrier() { stop(State::AtBlock); }
void warp_barrier() { stop(State::AtWarp); }
void* shared() {
    unsigned char* data = running().machine->shared.data();
    return data + (-(uintptr_t)data & 127);
}
Places& exchange(unsigned set) { return running().machine->exchange[set][current().warp]; }

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
