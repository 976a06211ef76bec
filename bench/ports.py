"""What this CPU's ports make of the instruction mixes that int8 products without VNNI consist of.

    python ports.py [--cc gcc]

Writes a C program of unrolled loops, compiles and runs it: for each mix the cycles of a loop, its instructions, and the
multiply-adds of bytes in a cycle. The clock is taken from a chain of multiplications of three cycles each, so a busy neighbour
on the same core shows as fewer of them. x86-64 with AVX-512 BW, Linux; no package is needed.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

SUMS, ROUNDS, LOOPS = 8, 60, 20_000


def step(reg: str, sums: int, weights: str | None) -> list[str]:
    """One step of four inputs for each sum: multiply, widen, add."""
    lines = []
    for i in range(sums):
        w, t = weights.format(64 * i) if weights else f"%{reg}13", 8 + i % 4
        lines += [f"vpmaddubsw {w},%{reg}12,%{reg}{t}", *widened(reg, t, i)]
    return lines


def steps(reg: str, sums: int, count: int, weights: str | None) -> list[str]:
    """Several steps, whose products are added in 16 bits before they are widened."""
    lines = []
    for i in range(sums):
        t = 8 + 2 * (i % 2)
        for s in range(count):
            w = weights.format(64 * i + 512 * s) if weights else f"%{reg}13"
            lines.append(f"vpmaddubsw {w},%{reg}12,%{reg}{t + min(s, 1)}")
            if s > 0:
                lines.append(f"vpaddw %{reg}{t},%{reg}{t + 1},%{reg}{t}")
        lines += widened(reg, t, i)
    return lines


def widened(reg: str, t: int, i: int) -> list[str]:
    return [f"vpmaddwd %{reg}14,%{reg}{t},%{reg}{t}", f"vpaddd %{reg}{t},%{reg}{i},%{reg}{i}"]


def mixes() -> list[tuple[str, list[str], int]]:
    """Name, instructions, multiply-adds."""
    found = []
    for reg, bits in (("ymm", 256), ("zmm", 512)):
        n, cache = bits // 8, "{}(%rdi)"
        spread = [f"vpbroadcastd 64(%rdi),%{reg}12"]
        fma = [f"vfmadd231ps %{reg}15,%{reg}14,%{reg}{i}" for i in range(12)]
        found += [
            (f"{bits} bit: f32", fma, 12 * n // 4),
            (f"{bits} bit: one step", step(reg, SUMS, None), SUMS * n),
            (f"{bits} bit: one step, weights from the cache", step(reg, SUMS, cache) + spread, SUMS * n),
            (f"{bits} bit: two steps in 16 bits", steps(reg, SUMS, 2, None), 2 * SUMS * n),
            (f"{bits} bit: two, weights from the cache", steps(reg, SUMS, 2, cache) + 2 * spread, 2 * SUMS * n),
            (f"{bits} bit: four steps in 16 bits", steps(reg, SUMS, 4, None), 4 * SUMS * n),
        ]
    return found


def program() -> str:
    lines = [
        "#include <stdio.h>",
        "#include <time.h>",
        "static double now(void){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec+t.tv_nsec*1e-9;}",
        "static char cache[8192] __attribute__((aligned(64)));",
        "int main(void){double best=1e9;",
        f'for(int r=0;r<{ROUNDS};r++){{unsigned long x=3;double t=now();for(int i=0;i<{LOOPS};i++)'
        '__asm__ volatile("imul %0,%0\\nimul %0,%0\\nimul %0,%0\\nimul %0,%0":"+r"(x));t=now()-t;if(t<best)best=t;}',
        f'double hz={LOOPS}*12/best;printf("%.2f GHz\\n",hz/1e9);',
    ]
    used = ",".join(f'"xmm{i}"' for i in range(16))
    for name, asm, macs in mixes():
        body = "\\n".join(asm).replace("%", "%%").replace("%%rdi", "%0")
        lines.append(
            f'best=1e9;for(int r=0;r<{ROUNDS};r++){{double t=now();for(int i=0;i<{LOOPS};i++)'
            f'__asm__ volatile("{body}"::"r"(cache):{used});t=now()-t;if(t<best)best=t;}}'
            f'printf("%-46s %6.2f cycles, %2d instructions, %5.1f a cycle\\n","{name}",best*hz/{LOOPS},{len(asm)},{macs}*{LOOPS}/(best*hz));'
        )
    return "\n".join([*lines, "}"])


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--cc", default="cc")
    a = ap.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder) / "ports.c", Path(folder) / "ports"
        source.write_text(program())
        subprocess.run([a.cc, "-O2", "-mavx512bw", str(source), "-o", str(binary)], check=True)
        subprocess.run([str(binary)], check=True)


if __name__ == "__main__":
    main()
