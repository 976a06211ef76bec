"""Times two builds on this CPU, one after the other and again, and prints how they compare; raw lines are kept.

    python bench/compare.py --old OLD/voce --new NEW/voce --out bench/runs/compare.jsonl [--rounds 5] [--only PATTERN]

A row's figure is the median over the rounds of what the bench calls `rtf` (wall time over audio) or, for sockets, the server's
processor time; above 1 the new build is slower. Shared machines drift by more than builds differ: builds alternate, and `spread`
is what one build's own runs differ by. Python 3.11 and nothing else.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import time

SAY = ["bench", "say", "--frames", "125", "--repeat", "3"]
HEAR = ["bench", "hear", "--chunk", "560"]
CASES = {
    "say 100m, 1 thread": [*SAY, "--shape", "pocket-100m", "--threads", "1"],
    "say 100m, 2 threads": [*SAY, "--shape", "pocket-100m", "--threads", "2"],
    "say 7m, 1 thread": [*SAY, "--shape", "pocket-7m", "--threads", "1"],
    "say 7m, 2 threads": [*SAY, "--shape", "pocket-7m", "--threads", "2"],
    "say 100m, 8 in lock step": ["bench", "say", "--shape", "pocket-100m", "--frames", "40", "--streams", "8", "--repeat", "2"],
    "hear 0.12b, 1 stream": [*HEAR, "--shape", "fastconformer-0.12b", "--streams", "1", "--seconds", "22.4"],
    "hear 0.12b, 16 streams": [*HEAR, "--shape", "fastconformer-0.12b", "--streams", "16", "--seconds", "5.6"],
    "hear 0.6b, 1 stream": [*HEAR, "--shape", "nemotron-0.6b", "--streams", "1", "--seconds", "11.2"],
    "hear 0.6b, 16 streams": [*HEAR, "--shape", "nemotron-0.6b", "--streams", "16", "--seconds", "2.8"],
    "serve, 2000 sockets": ["bench", "serve", "--streams", "2000", "--seconds", "8", "--churn", "0"],
}
FIGURES = ["rtf", "frame_ms", "cpu_us_per_frame"]


def numbers(value, path=""):
    """Every number of a result, by its path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for inner in value:
            yield from numbers(inner, path)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, value


def figure(result):
    found = dict(reversed(list(numbers(result))))
    for want in FIGURES:
        for path, value in found.items():
            if path.split(".")[-1] == want:
                return value
    raise SystemExit(f"no figure in {sorted(found)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=pathlib.Path, required=True)
    parser.add_argument("--new", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "?")
    flags = next((l for l in open("/proc/cpuinfo") if l.startswith("flags")), "")
    best = next((f for f in ("amx_tile", "avx512_vnni", "avx512f", "avx2") if f in flags), "scalar")
    print(f"{'case':<28} {'old':>10} {'new':>10} {'new/old':>8} {'spread':>7}   {cpu}, {best}")
    with open(args.out, "a") as log:
        for name, arguments in CASES.items():
            if not re.search(args.only, name):
                continue
            seen = {"old": [], "new": []}
            for turn in range(args.rounds):
                # Who goes first alternates, too.
                for build in sorted(seen, reverse=turn % 2 == 0):
                    load = open("/proc/loadavg").read().split()[0]
                    run = subprocess.run([str(getattr(args, build).resolve()), *arguments, "--json"], text=True, capture_output=True)
                    results = [json.loads(t) for t in run.stdout.splitlines() if t.startswith("{")] if run.returncode == 0 else []
                    if not results:
                        raise SystemExit(f"{build}: {name} failed: {run.stderr[-500:]}")
                    seen[build].append(figure(results[-1]))
                    line = {"case": name, "build": build, "round": turn, "date": time.strftime("%Y-%m-%d"), "cpu": cpu, "isa": best,
                            "load": float(load), "figure": seen[build][-1], "result": results[-1]}
                    log.write(json.dumps(line) + "\n")
                    log.flush()
            old, new = statistics.median(seen["old"]), statistics.median(seen["new"])
            ratios = [n / o for o, n in zip(seen["old"], seen["new"])]
            spread = (max(seen["old"]) - min(seen["old"])) / old
            print(f"{name:<28} {old:>10.4f} {new:>10.4f} {statistics.median(ratios):>8.3f} {spread:>7.1%}", flush=True)


if __name__ == "__main__":
    main()
