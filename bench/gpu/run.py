"""Checks and times everything on a machine with a GPU; one JSON line per step, on the screen and in a file."""

import argparse
import glob
import json
import os
import pathlib
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
        yield f"nemotron-0.6b 560 ms, {streams} streams", hear("nemotron-0.6b", 560, streams, 11.2 if streams > 64 else 28)
    for streams in [1, 500, 2000, 4000]:
        yield f"nemotron-0.6b 80 ms, {streams} streams", hear("nemotron-0.6b", 80, streams, 4 if streams > 64 else 20)
    yield "nemotron-0.6b 560 ms beam 4, 1000 streams", hear("nemotron-0.6b", 560, 1000, 5.6, "--beam", "4")
    offline = ["bench", "hear", "--shape", "parakeet-tdt-0.6b", "--streams", "64", "--seconds", "10"]
    yield "parakeet-tdt-0.6b offline, 64 x 10 s", offline
    for graphs in ["on", "off"]:
        say = ["bench", "say", "--shape", "pocket-100m", "--frames", "125", "--cuda-graphs", graphs]
        yield f"pocket-100m, 1 stream, graphs {graphs}", say
    yield "pocket-100m, long text in lock step", ["bench", "say", "--shape", "pocket-100m", "--text", "long", "--lockstep", "256"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kit", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--only", choices=["checks", "speeds"])
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
            print(text[:1500], flush=True)

        step("machine", ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm", "--format=csv"])
        step("doctor", [kit / "voce", "doctor", "--json"])
        if args.only != "speeds":
            for suite in SUITES:
                step(f"op suite: {suite}", [kit / suite], VOCE_TEST_GPU="1")
            step("models", [kit / "device", "--test-threads", "1"], VOCE_TEST_DEVICE="cuda")
            sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
            if os.path.exists(sanitizer):
                for tool in ["memcheck", "racecheck"]:
                    for suite in ["row_ops", "conv_ops", "decoder_ops"]:
                        step(f"{tool}: {suite}", [sanitizer, "--tool", tool, kit / suite], VOCE_TEST_GPU="1")
        if args.only != "checks":
            for name, arguments in speeds():
                step(name, [kit / "voce", *arguments, "--device", "cuda", "--json"])


if __name__ == "__main__":
    main()
