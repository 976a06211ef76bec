"""Checks and times everything on a machine with a GPU; one JSON line per step, on the screen and in a file."""

import argparse
import glob
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parents[2]
LIBRARIES = ["libnvrtc.so.1[23]", "libcublasLt.so.1[23]"]
SUITES = ["row_ops", "ops", "attention_ops", "codec_ops", "conv_ops", "decoder_ops", "conformer_ops", "sampling_ops", "mel_ops", "fp8_ops"]
MODELS = ["device", "device_fp8", "device_searches", "decoder_reference"]
LONG_STEPS = "10000"


def library_folders():
    """Folders that hold NVIDIA's libraries: the toolkit's, and those of Python packages."""
    places = ["/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu"]
    for base in sys.path:
        places += glob.glob(os.path.join(base, "nvidia", "*", "lib"))
    holds = lambda place: any(glob.glob(os.path.join(place, name)) for name in LIBRARIES)
    return [place for place in places if holds(place)]


def speeds():
    """What is timed: a name and the arguments of the binary."""
    nemotron = ["bench", "hear", "--shape", "nemotron-0.6b", "--chunk"]
    yield "nemotron-0.6b, one stream", [*nemotron, "80,560", "--seconds", "11.2"]
    yield "nemotron-0.6b 560 ms", [*nemotron, "560", "--streams", "3000,6000", "--seconds", "11.2"]
    yield "nemotron-0.6b 560 ms, more", [*nemotron, "560", "--streams", "8000,10000", "--seconds", "5.6"]
    yield "nemotron-0.6b 80 ms", [*nemotron, "80", "--streams", "2000,4000", "--seconds", "4.8"]
    yield "nemotron-0.6b 560 ms beam 4", [*nemotron, "560", "--streams", "3000", "--seconds", "11.2", "--beam", "4"]
    offline = ["bench", "hear", "--shape", "parakeet-tdt-0.6b", "--seconds", "10", "--streams"]
    yield "parakeet-tdt-0.6b, whole utterances of 10 s", [*offline, "64,512", "--repeat", "3", "--utterances", "8"]
    yield "parakeet-tdt-0.6b, one batch of 10 s", [*offline, "64", "--repeat", "5"]
    yield "pocket-100m", ["bench", "say", "--shape", "pocket-100m", "--frames", "125"]
    yield "pocket-100m, many", ["bench", "say", "--shape", "pocket-100m", "--frames", "125", "--streams", "16,64,256,512"]
    yield "qwen3-tts-1.7b", ["bench", "decode", "--shape", "qwen3-tts-1.7b", "--streams", "1,64"]
    yield "stt-1b", ["bench", "decode", "--shape", "stt-1b", "--streams", "1,512", "--context", "750"]


def precisions():
    """What is timed in bf16 and in fp8, one after the other."""
    yield "qwen3-tts-1.7b", ["bench", "decode", "--shape", "qwen3-tts-1.7b", "--streams", "1,64"]
    yield "stt-1b", ["bench", "decode", "--shape", "stt-1b", "--streams", "512", "--context", "750"]
    yield "nemotron-0.6b 560 ms", [
        "bench", "hear", "--shape", "nemotron-0.6b", "--chunk", "560", "--streams", "3000", "--seconds", "5.6"]
    yield "parakeet-tdt-0.6b, whole utterances of 10 s", [
        "bench", "hear", "--shape", "parakeet-tdt-0.6b", "--streams", "64", "--seconds", "10", "--repeat", "5"]
    yield "pocket-100m", ["bench", "say", "--shape", "pocket-100m", "--frames", "125", "--streams", "256"]


def kernels():
    """What is run with every kernel timed."""
    hear = ["bench", "hear", "--shape", "nemotron-0.6b", "--seconds", "2.8"]
    yield "nemotron-0.6b 560 ms x 3000", [*hear, "--chunk", "560", "--streams", "3000"]
    offline = ["bench", "hear", "--shape", "parakeet-tdt-0.6b", "--seconds", "10", "--utterances", "2"]
    yield "parakeet-tdt-0.6b, 10 s x 64", [*offline, "--streams", "64"]
    yield "nemotron-0.6b 80 ms x 1", [*hear, "--chunk", "80"]
    yield "nemotron-0.6b 80 ms x 2000", [*hear, "--chunk", "80", "--streams", "2000"]
    yield "pocket-100m x 1, x 256", ["bench", "say", "--shape", "pocket-100m", "--frames", "50", "--streams", "1,256"]
    yield "qwen3-tts-1.7b x 1, x 64", ["bench", "decode", "--shape", "qwen3-tts-1.7b", "--streams", "1,64", "--frames", "20"]
    yield "stt-1b x 512", ["bench", "decode", "--shape", "stt-1b", "--streams", "512", "--context", "750", "--frames", "20"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kit", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--only", default="", help="steps whose name this pattern finds")
    parser.add_argument("--skip", default="^$", help="steps whose name this pattern does not find")
    parser.add_argument("--limit", type=float, default=90, help="seconds for a step")
    args = parser.parse_args()
    kit, begun = args.kit.resolve(), time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    env = dict(os.environ, VOCE_CUDA_LIB=":".join(library_folders()), RUST_BACKTRACE="0")
    if (kit / "cache").exists():
        env["XDG_CACHE_HOME"] = str(kit / "cache")

    root = pathlib.Path((kit / "root").read_text())
    if not root.exists():
        root.parent.mkdir(parents=True, exist_ok=True)
        root.symlink_to(HERE)

    with open(args.out / "gpu.jsonl", "a") as log:

        def step(name, command, **more):
            if not re.search(args.only, name) or re.search(args.skip, name):
                return
            at = time.monotonic()
            # A group of its own, so that nothing of a late step stays on the GPU beside the next.
            run = subprocess.Popen([str(c) for c in command], env=env | more, text=True, start_new_session=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            try:
                text, _ = run.communicate(timeout=args.limit)
                code = run.returncode
            except subprocess.TimeoutExpired:
                os.killpg(run.pid, signal.SIGKILL)
                text, _ = run.communicate()
                code = "late"
            line = {"step": name, "code": code, "seconds": round(time.monotonic() - at, 2), "at": round(at - begun, 1)}
            # Results are kept: they say what was run, not where this machine has it.
            text = text.replace(str(kit), "KIT").replace(str(pathlib.Path.home()), "~")
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
        for suite in MODELS:
            step(f"check: {suite}", [kit / suite, "--test-threads", "1"], VOCE_TEST_DEVICE="cuda")
        step(f"long: {LONG_STEPS} steps", [kit / "long_run", "--test-threads", "1"], VOCE_TEST_DEVICE="cuda", VOCE_LONG_STEPS=LONG_STEPS)
        for name, arguments in speeds():
            step(f"speed: {name}", [kit / "voce", *arguments, "--device", "cuda", "--json"])
        for name, arguments in precisions():
            both = ["--precision", "bf16,fp8", "--device", "cuda", "--json"]
            step(f"fp8: {name}", [kit / "voce", *arguments, *both])
        for name, arguments in kernels():
            step(f"kernels: {name}", [kit / "voce", *arguments, "--device", "cuda", "--json", "--cuda-events", "on"])
        # Last: what these start may outlive them.
        sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        if os.path.exists(sanitizer):
            for tool in ["memcheck", "racecheck"]:
                for suite in SUITES:
                    # One test after the other: one that waits for the device would end the capture of another.
                    command = [sanitizer, "--tool", tool, kit / suite, "--test-threads", "1"]
                    step(f"{tool}: {suite}", command, VOCE_TEST_GPU="1")


if __name__ == "__main__":
    main()
