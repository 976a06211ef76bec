"""The product of some rows by a 4096 x 1024 matrix: BLAS and PyTorch beside Voce's kernels, one thread each.

    cargo bench -p voce-runtime --no-run         # prints the path of the kernels' program
    python blas.py --kernels PATH [--isa amx] [--rounds 3]

Six matrices in turn, so that weights come from where a model's come from. NumPy brings OpenBLAS (f32), PyTorch MKL (f32) and
oneDNN or FBGEMM (bf16, int8 with rows quantised at each call). Voce's figures have a norm before the product and an activation
behind it, the libraries' are the product alone. Each round runs everybody once; a line for each of them: milliseconds for one
matrix, in the median of the rounds' medians, and 1e9 multiply-adds a second. Needs numpy and torch.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import re
import statistics
import subprocess
import time
import warnings

import numpy
import torch

OUTPUTS, INPUTS, COPIES = 4096, 1024, 6
ROWS = (1, 16, 64)
UNITS = {"ns": 1e-6, "µs": 1e-3, "ms": 1.0, "s": 1e3}


def median_ms(call, matrices) -> float:
    """Milliseconds of one matrix, in the median of passes over all of them for half a second."""
    end, passes = time.perf_counter() + 0.5, []
    for m in matrices:
        call(m)
    while time.perf_counter() < end or len(passes) < 5:
        begun = time.perf_counter()
        for m in matrices:
            call(m)
        passes.append((time.perf_counter() - begun) * 1e3 / len(matrices))
    return statistics.median(passes)


def libraries(rows: int):
    """What each library does: name, call, matrices."""
    rng = numpy.random.default_rng(1)
    x = rng.standard_normal((rows, INPUTS), dtype=numpy.float32)
    weights = [rng.standard_normal((OUTPUTS, INPUTS), dtype=numpy.float32) for _ in range(COPIES)]
    yield "openblas f32 (numpy)", lambda w: x @ w.T, weights
    tensors = [torch.from_numpy(w) for w in weights]
    t = torch.from_numpy(x)
    yield "mkl f32 (torch)", lambda w: torch.nn.functional.linear(t, w), tensors
    half = t.bfloat16()
    yield "onednn bf16 (torch)", lambda w: torch.nn.functional.linear(half, w), [w.bfloat16() for w in tensors]
    layers = []
    for w in tensors:
        layer = torch.nn.Linear(INPUTS, OUTPUTS, bias=False)
        layer.weight = torch.nn.Parameter(w, requires_grad=False)
        layers.append(torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(layer), dtype=torch.qint8)[0])
    yield f"{torch.backends.quantized.engine} int8 (torch)", lambda layer: layer(t), layers


def kernels(path: str, isa: str) -> dict[str, float]:
    """Medians of the kernels' own program by bench, in milliseconds of one matrix."""
    found, bench = {}, None
    command = [path, "--bench", f"gem.*{isa}", "--max-time", "1"]
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        if named := re.search(r"[├╰]─ (gem[a-z0-9_]+)", line):
            bench = named[1]
        elif re.search(rf"[├╰]─ {isa} ", line):
            value, unit = line.split("│")[3].split()
            found[bench] = float(value) * UNITS[unit] / COPIES
    return found


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--kernels", required=True, help="the program that `cargo bench -p voce-runtime --no-run` names")
    ap.add_argument("--isa", default="amx", help="whose figures of Voce are shown")
    ap.add_argument("--rounds", type=int, default=3)
    a = ap.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    seen = {}
    for _ in range(a.rounds):
        for rows in ROWS:
            for name, call, matrices in libraries(rows):
                with torch.inference_mode():
                    seen.setdefault((rows, name), []).append(median_ms(call, matrices))
        ours = kernels(a.kernels, a.isa)
        for rows in ROWS:
            for bench in (f"gem{'v' if rows == 1 else 'm'}_{f}{'' if rows == 1 else f'_{rows}_rows'}" for f in ("f32", "bf16", "int8", "int4")):
                if bench in ours:
                    seen.setdefault((rows, f"voce {bench.split('_')[1]} ({a.isa})"), []).append(ours[bench])
    print(f"numpy {numpy.__version__}, torch {torch.__version__}; {OUTPUTS} x {INPUTS}, one thread, {a.rounds} rounds")
    for (rows, name), times in sorted(seen.items(), key=lambda item: item[0][0]):
        ms = statistics.median(times)
        print(f"{rows:3} rows  {name:24} {ms:8.3f} ms  {rows * OUTPUTS * INPUTS / ms / 1e6:7.1f} G")


if __name__ == "__main__":
    main()
