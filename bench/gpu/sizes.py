"""Times a step of every family over numbers of streams, and names the sizes that take longer than a larger one."""

import argparse
import json
import os
import pathlib
import subprocess
import time

from run import library_folders

FEW = "1,2,3,4,5,6,7,8,9,12,16"
# A name, the command, the precisions that the family has on a GPU, and where a line of its JSON has the milliseconds.
FAMILIES = [
    ("qwen3-tts-1.7b decoders", ["decode", "--shape", "qwen3-tts-1.7b", "--frames", "60"], "bf16,fp8", ("frame_ms", "p50")),
    ("nemotron-0.6b 80 ms", ["hear", "--shape", "nemotron-0.6b", "--chunk", "80", "--seconds", "4.8"], "bf16,fp8,f32,int8",
     ("chunk_ms", "p50")),
    ("stt-1b", ["hear", "--shape", "stt-1b", "--seconds", "8"], "bf16", ("chunk_ms", "p50")),
    ("tts-1.6b", ["say", "--shape", "tts-1.6b", "--frames", "150", "--repeat", "1"], "bf16", ("frame_ms",)),
    ("pocket-100m", ["say", "--shape", "pocket-100m", "--frames", "400", "--repeat", "3"], "bf16,f32,int8,fp8", ("frame_ms",)),
    ("qwen3-tts-0.6b decoders", ["decode", "--shape", "qwen3-tts-0.6b", "--frames", "60"], "bf16,f32,int8,fp8",
     ("frame_ms", "p50")),
    ("moshi-7b", ["talk", "--shape", "moshi-7b"], "bf16", ("frame_ms",)),
]


def step_ms(line, place):
    # One request that speaks tells when its frames came: several at a time.
    if "wall_ms" in line and "frames" in line:
        return line["wall_ms"] / line["frames"]
    for key in place:
        line = line[key]
    return line


def slower(steps, bound):
    """Sizes that take more than `bound` times what a larger one takes."""
    found = []
    for size, ms in steps.items():
        most = max((ms / other, larger) for larger, other in steps.items() if larger >= size)
        if most[0] > bound:
            found.append(f"{size} streams take {most[0]:.2f} times as long as {most[1]}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--voce", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="JSON lines are added to this file")
    parser.add_argument("--streams", default=FEW)
    parser.add_argument("--only", default="", help="families whose names begin with one of these, by commas")
    parser.add_argument("--precision", default="", help="only these of a family's precisions")
    parser.add_argument("--bound", type=float, default=1.1)
    parser.add_argument("--note", default="", help="kept with every line")
    parser.add_argument("--limit", type=float, default=120, help="seconds for a family in one precision")
    args = parser.parse_args()
    env = dict(os.environ, VOCE_CUDA_LIB=":".join(library_folders()))
    wanted = [name for name in args.precision.split(",") if name]
    for name, command, precisions, place in FAMILIES:
        if not name.startswith(tuple(args.only.split(","))):
            continue
        for precision in precisions.split(","):
            if wanted and precision not in wanted:
                continue
            run = [args.voce.resolve(), "bench", *command, "--streams", args.streams, "--precision", precision, "--device", "cuda", "--json"]
            at = time.monotonic()
            try:
                done = subprocess.run(run, env=env, text=True, capture_output=True, timeout=args.limit)
                text, error = done.stdout, done.stderr
            except subprocess.TimeoutExpired as late:
                text, error = (late.stdout or b"").decode(), "late"
            lines = [json.loads(t) for t in text.splitlines() if t.startswith("{")]
            steps = {line.get("streams", 1): step_ms(line, place) for line in lines}
            with open(args.out, "a") as log:
                kept = {"family": name, "precision": precision, "note": args.note, "step_ms": steps,
                        "device": lines[-1].get("device") if lines else None, "seconds": round(time.monotonic() - at, 1)}
                if not steps:
                    kept["error"] = error[-500:]
                log.write(json.dumps(kept) + "\n")
            shown = "  ".join(f"{size}: {ms:.2f}" for size, ms in steps.items())
            print(f"{args.note} {name} {precision} [{kept['seconds']} s]  {shown or error[-300:]}", flush=True)
            for fault in slower(steps, args.bound):
                print(f"    {fault}", flush=True)


if __name__ == "__main__":
    main()
