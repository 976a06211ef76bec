"""Checks and times everything on a machine with a GPU; one JSON line per step, on the screen and in a file."""

import argparse
import glob
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parents[2]
LIBRARIES = ["libnvrtc.so.1[23]", "libcublasLt.so.1[23]"]
SUITES = ["row_ops", "ops", "conv_ops", "decoder_ops", "conformer_ops"]


def library_folders():
    """Folders that hold NVIDIA's libraries: the toolkit's, and those of Python packages."""
    places = ["/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu"]
    for base in sys.path:
        places += glob.glob(os.path.join(base, "nvidia", "*", "lib"))
    holds = lambda place: any(glob.glob(os.path.join(place, name)) for name in LIBRARIES)
    return [place for place in places if holds(place)]


def hear(shape, chunk, streams, seconds, *more):
    return ["bench", "hear", "--shape", shape, "--chunk", str(chunk), "--streams", str(streams), "--seconds", str(seconds), *more]


def speeds():
    """What is timed: a name and the arguments of the binary."""
    for streams in [1, 64, 1000, 3000, 6000, 10000]:
        seconds = "28" if streams == 1 else "11.2" if streams <= 1000 else "5.6"
        yield f"nemotron-0.6b 560 ms x {streams}", hear("nemotron-0.6b", 560, streams, seconds)
    for streams in [1, 500, 2000, 4000]:
        yield f"nemotron-0.6b 80 ms x {streams}", hear("nemotron-0.6b", 80, streams, "10" if streams == 1 else "3.2")
    yield "nemotron-0.6b 560 ms beam 4 x 1000", hear("nemotron-0.6b", 560, 1000, "5.6", "--beam", "4")
    yield "nemotron-0.6b 560 ms beam 4 x 3000", hear("nemotron-0.6b", 560, 3000, "5.6", "--beam", "4")
    offline = ["bench", "hear", "--shape", "parakeet-tdt-0.6b", "--streams", "64", "--seconds", "10", "--repeat", "3"]
    yield "parakeet-tdt-0.6b offline, 64 x 10 s", offline
    for streams in [1, 16, 64, 256, 512]:
        say = ["bench", "say", "--shape", "pocket-100m", "--frames", "125", "--streams", str(streams)]
        yield f"pocket-100m x {streams}", say


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kit", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--only", default="", help="steps whose name this pattern finds")
    parser.add_argument("--skip", default="^$", help="steps whose name this pattern does not find")
    parser.add_argument("--events", default="^$", help="speeds that are also run with each kernel timed")
    parser.add_argument("--limit", type=float, default=90, help="seconds for a step")
    args = parser.parse_args()
    kit, begun = args.kit.resolve(), time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    env = dict(os.environ, VOCE_CUDA_LIB=":".join(library_folders()), RUST_BACKTRACE="0")

    root = pathlib.Path((kit / "root").read_text())
    if not root.exists():
        root.parent.mkdir(parents=True, exist_ok=True)
        root.symlink_to(HERE)

    with open(args.out / "gpu.jsonl", "a") as log:

        def step(name, command, **more):
            if not re.search(args.only, name) or re.search(args.skip, name):
                return
            at = time.monotonic()
            try:
                run = subprocess.run([str(c) for c in command], env=env | more, timeout=args.limit, text=True,
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                code, text = run.returncode, run.stdout
            except subprocess.TimeoutExpired as late:
                code, text = "late", (late.stdout or b"").decode(errors="replace")
            line = {"step": name, "code": code, "seconds": round(time.monotonic() - at, 2), "at": round(at - begun, 1)}
            found = [json.loads(t) for t in text.splitlines() if t.startswith("{") and t.endswith("}")]
            line["result"] = found if found else text[-3000:]
            text = json.dumps(line)
            log.write(text + "\n")
            log.flush()
            print(text[:2500], flush=True)

        step("check: machine", ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm", "--format=csv"])
        step("check: doctor", [kit / "voce", "doctor", "--json"])
        for suite in SUITES:
            step(f"check: {suite}", [kit / suite], VOCE_TEST_GPU="1")
        step("check: models", [kit / "device", "--test-threads", "1"], VOCE_TEST_DEVICE="cuda")
        sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        if os.path.exists(sanitizer):
            for tool in ["memcheck", "racecheck"]:
                for suite in SUITES:
                    step(f"{tool}: {suite}", [sanitizer, "--tool", tool, kit / suite], VOCE_TEST_GPU="1")
        for name, arguments in speeds():
            command = [kit / "voce", *arguments, "--device", "cuda", "--json"]
            step(f"speed: {name}", command)
            if re.search(args.events, name):
                step(f"kernels: {name}", [*command, "--cuda-events", "on"])


if __name__ == "__main__":
    main()
