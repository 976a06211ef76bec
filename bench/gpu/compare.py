"""Times two builds on one GPU, one after the other and again, and prints how they compare; raw lines are kept.

    bench/gpu/compare.py --old OLD/voce --new NEW/voce --out FOLDER [--rounds 2] [--only PATTERN]
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import time

from run import library_folders

HEAR = ["bench", "hear", "--shape", "nemotron-0.6b", "--chunk"]
CASES = {
    "nemotron-0.6b 560 ms, 6000 streams": [*HEAR, "560", "--streams", "6000", "--seconds", "5.6"],
    "nemotron-0.6b 80 ms, 4000 streams": [*HEAR, "80", "--streams", "4000", "--seconds", "2.4"],
    "nemotron-0.6b 80 ms, one stream": [*HEAR, "80", "--seconds", "5.6"],
    "pocket-100m, one stream": ["bench", "say", "--shape", "pocket-100m", "--frames", "125"],
    "pocket-100m, 256 streams": ["bench", "say", "--shape", "pocket-100m", "--frames", "125", "--streams", "256"],
    "qwen3-tts-1.7b, 1 and 64 streams": ["bench", "decode", "--shape", "qwen3-tts-1.7b", "--streams", "1,64"],
    "stt-1b, 512 streams": ["bench", "decode", "--shape", "stt-1b", "--streams", "512", "--context", "750"],
}
# Alone, since the old build may not live through them.
NEW_CASES = {
    "nemotron-0.6b 560 ms, 10000 streams, bf16": [*HEAR, "560", "--streams", "10000", "--seconds", "5.6"],
    "nemotron-0.6b 560 ms, 10000 streams, fp8": [
        *HEAR, "560", "--streams", "10000", "--seconds", "5.6", "--precision", "fp8"],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=pathlib.Path, required=True)
    parser.add_argument("--new", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--limit", type=float, default=120, help="seconds for a run")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    builds = {"old": args.old.resolve(), "new": args.new.resolve()}
    env = dict(os.environ, VOCE_CUDA_LIB=":".join(library_folders()), RUST_BACKTRACE="0")

    with open(args.out / "compare.jsonl", "a") as log:

        def once(build, name, arguments):
            at = time.monotonic()
            command = [str(builds[build]), *arguments, "--device", "cuda", "--json"]
            try:
                run = subprocess.run(command, env=env, text=True, capture_output=True, timeout=args.limit)
                code, text = run.returncode, run.stdout + run.stderr
            except subprocess.TimeoutExpired:
                code, text = "late", ""
            found = [json.loads(t) for t in text.splitlines() if t.startswith("{") and t.endswith("}")]
            line = {"build": build, "case": name, "code": code, "seconds": round(time.monotonic() - at, 2)}
            line["result"] = found if found else text[-2000:]
            log.write(json.dumps(line) + "\n")
            log.flush()
            print(json.dumps(line)[:1500], flush=True)

        # Kernels are compiled once, and not in a run that counts; both builds at once.
        warm = [subprocess.Popen([str(b), "bench", "say", "--shape", "pocket-2m", "--frames", "2", "--repeat", "1", "--device",
                                  "cuda", "--json"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                for b in builds.values()]
        [w.wait() for w in warm]
        for name, arguments in NEW_CASES.items():
            if re.search(args.only, name):
                once("new", name, arguments)
        for _ in range(args.rounds):
            for name, arguments in CASES.items():
                for build in builds:
                    if re.search(args.only, name):
                        once(build, name, arguments)


if __name__ == "__main__":
    main()
