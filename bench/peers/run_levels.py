"""Voce and its peers on one instruction set after the other: the table of docs/cpus.md.

    python run_levels.py --voce PATH --python PATH --weights DIR [--levels avx2 avxvnni avx512bw avx512 all] [--rounds 3]
        [--cores 0,1] [--repeats 1] [--seconds 450] [--out FILE]

`--weights` has `pocket` (reference/pocket/make_full.py), `stream120` and `tdt600` (reference/fastconformer/full_size.py);
`--python` has pocket-tts and transformers installed. On each level Voce is held to it by VOCE_CPU and the peers by what
PyTorch, oneDNN, MKL and FBGEMM read; `all` limits nobody. Speech: seconds of work for a second of it, Voce with one and two threads,
the package with its own (one for the generator, one for the decoder), as it ships and with its int8. Recognition: seconds of
audio for a second of one core, Voce as `auto` picks, transformers in f32 with one thread, and in bf16 where nobody is limited
(on AVX2 it is five times slower than f32); 0.12B hears chunks of 560 ms in eight streams, 0.6B TDT eight utterances of ten
seconds (transformers' encoder alone is timed). `--cores` keeps all of them on these cores; after `--seconds` nothing new is
started.
A line for each run, then a line for each level and figure.
"""

import argparse
import datetime
import itertools
import json
import os
import re
import statistics
import time
from pathlib import Path

from run_peers import LIMITS, machine, once

HERE = Path(__file__).resolve().parent
FASTCONFORMER = HERE.parents[1] / "reference" / "fastconformer" / "bench_peers.py"
LEVELS = {
    "avx2": ("avx2", "avx2", "AVX2", "AVX2", "AVX2"),
    "avxvnni": ("avxvnni", "avx2", "AVX2_VNNI", "AVX2", "AVX2"),
    "avx512bw": ("avx512bw", "avx512", "AVX512_CORE", "AVX512", "AVX512"),
    "avx512": ("avx512", "avx512", "AVX512_CORE_VNNI", "AVX512", "AVX512_E1"),
    "all": None,
}


def limits(level: str) -> dict[str, str]:
    return dict(zip(LIMITS, LEVELS[level], strict=True)) if LEVELS[level] else {}


def cases(a) -> list[dict]:
    """What is measured: commands by name, where the figure lies, and whether less of it is better."""
    pocket = str(a.weights / "pocket")
    package = [a.python, str(HERE / "pocket_tts_python.py"), "--model", pocket, "--tokens", "24", "--frames", "125", "--repeats", str(a.repeats or 3)]
    ours = ["--device", "cpu", "--json"]
    speech = {
        f"voce t{n}": [a.voce, "bench", "say", "--model", pocket, "--frames", "125", "--threads", str(n), "--repeat", str(a.repeats or 5), *ours]
        for n in (1, 2)
    }

    def hear(folder, *more):
        return [a.voce, "bench", "hear", "--model", str(a.weights / folder), "--streams", "8", "--threads", "1", *more, *ours]

    def peer(folder, dtype, *more):
        return [a.python, str(FASTCONFORMER), "transformers", "--model", str(a.weights / folder), "--dtype", dtype, "--repeat", str(a.repeats or 2), *more]

    stream, whole = ("--mode", "stream", "--lookahead", "6", "--batch", "8"), ("--mode", "offline", "--batch", "8")
    return [
        {"name": "pocket-100m", "figure": "rtf_p50", "less": True,
         "commands": speech | {"pocket-tts": package, "pocket-tts int8": [*package, "--quantize"]}},
        {"name": "fastconformer-0.12b", "figure": "streams_per_core", "less": False,
         "commands": {"voce": hear("stream120", "--chunk", "560", "--seconds", "20")}
         | {f"transformers {d}": peer("stream120", d, *stream) for d in ("f32", "bf16")}},
        {"name": "tdt-0.6b", "figure": "streams_per_core", "less": False,
         "commands": {"voce": hear("tdt600", "--seconds", "10")}
         | {f"transformers {d}": peer("tdt600", d, *whole) for d in ("f32", "bf16")}},
    ]  # fmt: skip


def summary(case: dict, seen: dict[str, list[dict]]) -> dict:
    medians = {}
    for name, rows in seen.items():
        got = [r[case["figure"]] for r in rows if isinstance(r.get(case["figure"]), (int, float))]
        if got:
            medians[name] = round(statistics.median(got), 4)
    ours = [v for n, v in medians.items() if n.startswith("voce")]
    if not ours:
        return {"medians": medians}
    best = min(ours) if case["less"] else max(ours)
    times = {n: round(v / best if case["less"] else best / v, 2) for n, v in medians.items() if not n.startswith("voce")}
    return {"medians": medians, "times": times}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--voce", required=True)
    ap.add_argument("--python", required=True, help="a python with pocket-tts and transformers")
    ap.add_argument("--weights", required=True, type=Path)
    ap.add_argument("--levels", nargs="+", default=list(LEVELS), choices=list(LEVELS))
    ap.add_argument("--only", default="", help="a pattern of figures")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--repeats", type=int, help="timed runs in a process [default: speech 5 of Voce and 3 of the package, transformers 2]")
    ap.add_argument("--cores", help="the cores of everybody, such as 0,1 (Linux)")
    ap.add_argument("--seconds", type=float, default=float("inf"), help="start nothing after this time")
    ap.add_argument("--limit", type=float, default=400.0, help="seconds for one process")
    ap.add_argument("--note", help="what else ran meanwhile")
    ap.add_argument("--out", type=Path, help="a file to add to [default: bench/runs/<date>-<cpu>-levels.jsonl]")
    a = ap.parse_args()
    if a.cores:
        os.sched_setaffinity(0, {int(core) for core in a.cores.split(",")})
    host = machine()
    cpu = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\(.*?\)|CPU|@.*", "", host["cpu"]).lower()).strip("-")
    path = a.out or HERE.parent / "runs" / f"{datetime.date.today()}-{cpu}-levels.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + a.seconds
    chosen = [c for c in cases(a) if re.search(a.only, c["name"])]
    seen = {c["name"]: {level: {name: [] for name in c["commands"]} for level in a.levels} for c in chosen}
    with path.open("a") as log:

        def keep(line):
            log.write(json.dumps(line) + "\n")
            log.flush()

        keep({"machine": host, "note": a.note, "held_to": a.cores, "repeats": a.repeats})
        for turn, case, level in itertools.product(range(a.rounds), chosen, a.levels):
            for name, command in case["commands"].items():
                if (name == "transformers bf16" and LEVELS[level]) or time.monotonic() > end:
                    continue
                begun = time.monotonic()
                row = once(command, a.limit, limits(level))
                seen[case["name"]][level][name].append(row)
                about = {"case": case["name"], "level": level, "engine": name, "round": turn}
                keep(about | {"took_s": round(time.monotonic() - begun, 1), "load": os.getloadavg()[0], "result": row})
        for case, level in itertools.product(chosen, a.levels):
            line = {"case": case["name"], "level": level, "limits": limits(level), **summary(case, seen[case["name"]][level])}
            keep(line)
            print(json.dumps(line), flush=True)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
