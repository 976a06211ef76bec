"""Runs voce and the published packages of Kyutai and Qwen in turn on this CPU, at the published sizes, and keeps the numbers.

    python run_families.py --voce PATH --weights DIR --kyutai-python PATH --qwen-python PATH [--only PATTERN] [--rounds 2]

`--weights` has the folders that reference/kyutai/full_size.py makes (mimi, stt-1b, tts-1.6b); without one, and for Qwen3-TTS,
weights are random ones of the published shapes, as voce's are: speed does not depend on their values.
Everything is one stream. The result goes to bench/runs/<date>-<cpu>-families.jsonl: a line for each run, then a line for each
figure with its medians and ratios. What is not installed or not there is skipped by name.
"""

import argparse
import datetime
import json
import re
import statistics
import subprocess
from pathlib import Path

from run_peers import machine, once

HERE = Path(__file__).resolve().parent
DOCTOR = ("isa", "isa_available", "threads", "read_gb_per_s", "read_gb_per_s_1", "memory_bytes", "huge_pages")


def cases(a) -> list[dict]:
    """What is measured: a voce command with where its figures lie, and peers with where theirs lie."""
    weights = a.weights
    kyutai = [a.kyutai_python, str(HERE / "kyutai_python.py")] if a.kyutai_python else None
    threads = str(a.threads)

    def peer(what, folder, frames, *more):
        return kyutai and [*kyutai, "--what", what, "--model", str(weights / folder), "--frames", frames, "--threads", threads, *more]

    def say(shape, frames, precision):
        return [a.voce, "bench", "say", "--shape", shape, "--frames", frames, "--repeat", "1", "--precision", precision,
                "--threads", threads, "--json"]

    return [
        {"name": "mimi", "voce": {p: [a.voce, "bench", "codec", "--frames", "60", "--precision", p, "--threads", threads, "--json"]
                                  for p in ("f32", "bf16", "int8")},
         "peers": {"moshi": peer("mimi", "mimi", "60"), "rustymimi": peer("rustymimi", "mimi", "60")},
         "figures": {"encode_ms": ("encode_ms.median", "encode_ms.median"), "decode_ms": ("decode_ms.median", "decode_ms.median")}},
        {"name": "qwen3-tts-0.6b", "voce": {p: say("qwen3-tts-0.6b", "10", p) for p in ("int8",)},
         "peers": {"qwen-tts": a.qwen_python and [a.qwen_python, str(HERE / "qwen_python.py"), "--frames", "10", "--threads", threads]},
         "figures": {"talker_and_predictor_ms": ("stages.talker.ms+stages.predictor.ms", "frame_ms.median"),
                     "codec_ms": ("stages.codec.ms", "codec_ms")}},
        {"name": "stt-1b", "voce": {p: [a.voce, "bench", "hear", "--shape", "stt-1b", "--streams", "1", "--seconds", "4",
                                        "--precision", p, "--threads", threads, "--json"] for p in ("int8",)},
         "peers": {"moshi": peer("stt", "stt-1b", "20")},
         "figures": {"frame_ms": ("chunk_ms.p50", "frame_ms.median")}},
        {"name": "tts-1.6b", "voce": {p: say("tts-1.6b", "12", p) for p in ("int8",)},
         "peers": {"moshi": peer("tts", "tts-1.6b", "8")},
         # The package's frames are without the codec.
         "figures": {"frame_ms": ("frame_ms.p50", "frame_ms.median")}},
    ]


def value(row: dict, path: str):
    """A number by its path; `a+b` is a sum, `a|b` the first that is there."""
    for way in path.split("|"):
        parts = []
        for one in way.split("+"):
            at = row
            for key in one.split("."):
                at = at.get(key) if isinstance(at, dict) else None
            if isinstance(at, dict):
                at = at.get("median", at.get("p50", at.get("ms")))
            parts.append(at)
        if all(isinstance(p, (int, float)) for p in parts):
            return sum(parts)
    return None


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--voce", required=True)
    ap.add_argument("--weights", required=True, type=Path)
    ap.add_argument("--kyutai-python", help="a python with moshi (and rustymimi) installed")
    ap.add_argument("--qwen-python", help="a python with qwen-tts installed")
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--rounds", type=int, default=2)
    ap.add_argument("--only", default="")
    ap.add_argument("--limit", type=float, default=400.0, help="seconds for one process")
    ap.add_argument("--note", help="what else ran meanwhile")
    ap.add_argument("--runs", type=Path, default=HERE.parent / "runs")
    a = ap.parse_args()
    host = machine()
    cpu = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\(.*?\)|CPU|@.*", "", host["cpu"]).lower()).strip("-")
    a.runs.mkdir(parents=True, exist_ok=True)
    path = a.runs / f"{datetime.date.today()}-{cpu}-families.jsonl"
    doctor = subprocess.run([a.voce, "doctor", "--json"], capture_output=True, text=True, check=False).stdout.strip()
    with path.open("a") as log:

        def keep(line):
            log.write(json.dumps(line) + "\n")
            log.flush()

        told = json.loads(doctor) if doctor.startswith("{") else {}
        keep({"machine": host, "note": a.note, "doctor": {k: told[k] for k in DOCTOR if k in told}})
        for case in cases(a):
            if not re.search(a.only, case["name"]):
                continue
            commands = {f"voce {p}": c for p, c in case["voce"].items()} | case["peers"]
            seen: dict[str, list[dict]] = {name: [] for name in commands}
            for turn in range(a.rounds):
                # Who goes first alternates.
                for name in sorted(commands, reverse=turn % 2 == 0):
                    row = once(commands[name], a.limit) if commands[name] else {"skipped": "no path given"}
                    seen[name].append(row)
                    keep({"case": case["name"], "engine": name, "round": turn, "result": row})
            for figure, (ours, theirs) in case["figures"].items():
                medians = {}
                for name, rows in seen.items():
                    got = [v for r in rows if (v := value(r, ours if name.startswith("voce") else theirs)) is not None]
                    if got:
                        medians[name] = round(statistics.median(got), 3)
                own = {n: v for n, v in medians.items() if n.startswith("voce")}
                ratios = {f"{p} / {n}": round(medians[p] / v, 2) for n, v in own.items() for p in medians if not p.startswith("voce")}
                line = {"case": case["name"], "figure": figure, "threads": a.threads, "medians": medians, "ratios": ratios}
                keep(line)
                print(json.dumps(line), flush=True)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
