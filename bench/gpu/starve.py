"""A server on a GPU beside a program that takes the device's memory for a while: it must answer again afterwards.

    bench/gpu/starve.py --voce BINARY --out FOLDER [--seconds 25]

Prints one JSON line per phase: first audio of as many requests at once on a fresh server, what is answered while the memory is gone, and how long
after its return requests are answered again. Needs PyTorch for the program that takes the memory.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

from run import HERE, library_folders

PORT = 18181
HOG = """
import sys, time, torch
free, _ = torch.cuda.mem_get_info()
held = []
for size in (1 << 30, 1 << 26, 1 << 22):
    try:
        while True:
            held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
print("held", flush=True)
time.sleep(float(sys.argv[1]))
"""


def ask(path, body=None, timeout=30):
    """Status, seconds to the first bytes, and all of the answer."""
    begun = time.monotonic()
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            first = answer.read(2048)
            at = time.monotonic() - begun
            return answer.status, at, first + answer.read()
    except urllib.error.HTTPError as e:
        return e.code, time.monotonic() - begun, e.read()
    except OSError as e:
        return type(e).__name__, time.monotonic() - begun, b""


def speak(seed, text="The quick brown fox jumps over the lazy dog, and then it does so again."):
    return ask("/v1/audio/speech", {"model": "tts-1", "input": text, "voice": "alloy", "response_format": "pcm", "seed": seed})


def crowd(count):
    """First audio of requests that come at once, in milliseconds."""
    answers = [None] * count

    def one(i):
        answers[i] = speak(i)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    good = sorted(a[1] * 1e3 for a in answers if a[0] == 200)
    codes = {}
    for a in answers:
        codes[str(a[0])] = codes.get(str(a[0]), 0) + 1
    return {"requests": count, "codes": codes, "first_ms_p50": round(good[len(good) // 2], 1) if good else None,
            "first_ms_worst": round(good[-1], 1) if good else None}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--voce", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=float, default=25)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    env = dict(os.environ, VOCE_CUDA_LIB=":".join(library_folders()), RUST_BACKTRACE="0")
    log = open(args.out / "starve.jsonl", "a")

    def tell(**line):
        log.write(json.dumps(line) + "\n")
        log.flush()
        print(json.dumps(line), flush=True)

    server = subprocess.Popen(
        [str(args.voce), "serve", "--speak", str(HERE / "models/nano-voice"), "--hear", str(HERE / "models/nano-ear"), "--device", "cuda",
         "--port", str(PORT), "--speak-slots", "64", "--connections-per-address", "2000", "--slots-per-address", "2000"],
        env=env, stdout=subprocess.DEVNULL, stderr=open(args.out / "server.log", "w"))
    try:
        begun = time.monotonic()
        while ask("/readyz")[0] != 200 and server.poll() is None and time.monotonic() - begun < 120:
            time.sleep(0.2)
        tell(phase="ready", seconds=round(time.monotonic() - begun, 1), exit=server.poll())
        for count in (1, 16, 16, 64):
            tell(phase="fresh", **crowd(count))
        hog = subprocess.Popen([sys.executable, "-c", HOG, str(args.seconds)], stdout=subprocess.PIPE, text=True)
        hog.stdout.readline()
        for count in (1, 16, 64, 64):
            tell(phase="starved", **crowd(count))
        tell(phase="starved", readyz=ask("/readyz")[0], livez=ask("/livez")[0])
        hog.wait()
        free = time.monotonic()
        while server.poll() is None and time.monotonic() - free < 90 and (ask("/readyz")[0] != 200 or speak(1)[0] != 200):
            time.sleep(0.2)
        tell(phase="back", seconds=round(time.monotonic() - free, 1), exit=server.poll(), **crowd(16))
    finally:
        server.terminate()
        try:
            tell(phase="end", code=server.wait(30))
        except subprocess.TimeoutExpired:
            server.kill()
            tell(phase="end", code="killed")


if __name__ == "__main__":
    main()
