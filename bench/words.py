#!/usr/bin/env python3
"""Wrong words of real speech on Deepgram's socket, under what clients do beside sending audio: ends of utterances by short
pauses, `Finalize` in the middle of speech, soft audio. A line of JSON for each.

    python3 bench/words.py --voce target/release/voce --speech DIR [--clips 20] [--only plain,finalize-1000] [--out FILE]

DIR holds `transcripts.tsv`: file, tab, text. Needs Python 3.11 and the package `soundfile`.
"""

import argparse
import array
import concurrent.futures
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import time

import soundfile

import rig

# Name: the query's `endpointing`, milliseconds of audio between two `Finalize`, gain in dB.
CASES = {
    "plain": ("false", None, 0),
    "ends-300": ("300", None, 0),
    "ends-100": ("100", None, 0),
    "ends-25": ("25", None, 0),
    "finalize-1000": ("false", 1000, 0),
    "finalize-300": ("false", 300, 0),
    "ends-25-finalize-1000": ("25", 1000, 0),
    "gain-20": ("false", None, -20),
    "gain-40": ("false", None, -40),
    "gain-50": ("false", None, -50),
}
MESSAGE_MS = 100


def machine():
    with open("/proc/cpuinfo") as file:
        return next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "unknown")


def words(text):
    return re.sub(r"[^a-z0-9' ]", " ", text.lower()).split()


def distance(want, got):
    """Wrong words: the fewest that are put in, left out or changed."""
    before = list(range(len(got) + 1))
    for i, w in enumerate(want, 1):
        now = [i]
        for j, g in enumerate(got, 1):
            now.append(min(before[j] + 1, now[-1] + 1, before[j - 1] + (w != g)))
        before = now
    return before[-1]


def pcm(path, gain):
    """Samples of 16 bits; soft ones are as coarse as a soft recording's."""
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    factor = 32767 * 10 ** (gain / 20)
    return array.array("h", (max(-32768, min(32767, round(float(s) * factor))) for s in samples[:, 0])), rate


def hear(port, path, case):
    """What the finals of one clip say, and how many of them there were."""
    endpointing, finalize, gain = CASES[case]
    samples, rate = pcm(path, gain)
    socket = rig.Ws(port, f"/v1/listen?encoding=linear16&sample_rate={rate}&channels=1&endpointing={endpointing}", timeout=120)
    piece, sent = rate * MESSAGE_MS // 1000, 0
    for start in range(0, len(samples), piece):
        socket.send(samples[start : start + piece].tobytes())
        sent += MESSAGE_MS
        if finalize and sent % finalize == 0:
            socket.send(json.dumps({"type": "Finalize"}))
    socket.send(json.dumps({"type": "CloseStream"}))
    texts = []
    while True:
        message = socket.json()
        if message["type"] == "Metadata":
            return texts
        if message["type"] == "Results" and message["is_final"]:
            texts.append(message["channel"]["alternatives"][0]["transcript"])


def run(port, clips, case, workers):
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        heard = list(pool.map(lambda clip: hear(port, clip[0], case), clips))
    told = [words(" ".join(texts)) for texts in heard]
    want = [words(text) for _, text in clips]
    wrong, of = sum(map(distance, want, told)), sum(map(len, want))
    return {
        "case": case,
        "wrong_percent": round(100 * wrong / of, 2),
        "wrong": wrong,
        "words": of,
        "heard": sum(map(len, told)),
        "finals": sum(map(len, heard)),
        "seconds": round(time.monotonic() - begun, 1),
        "told": told,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--voce", required=True)
    parser.add_argument("--speech", required=True, type=pathlib.Path)
    parser.add_argument("--clips", type=int, default=0, help="so many of them, by a fixed draw; 0 is all")
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--serve", default="", help="more flags of `voce serve`")
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    lines = [line.rstrip("\n").split("\t") for line in open(args.speech / "transcripts.tsv")]
    clips = [(args.speech / name, text) for name, text in lines]
    if args.clips:
        clips = random.Random(1).sample(clips, args.clips)
    server = rig.Server(args.voce, ["--hear", "nano-ear", "--no-speak", *args.serve.split()]).ready()
    version = subprocess.run([args.voce, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    about = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "cores": os.cpu_count(), "version": version, "clips": len(clips), "command": " ".join(["bench/words.py", *sys.argv[1:]])}
    out = [about]
    print(json.dumps(about), flush=True)
    plain = None
    try:
        for case in args.only.split(","):
            result = run(server.port, clips, case, args.workers)
            told = result.pop("told")
            plain = plain or told
            # Against what was heard without: no reference is needed for that.
            result["differs_from_first_percent"] = round(100 * sum(map(distance, plain, told)) / max(1, sum(map(len, plain))), 2)
            out.append(result)
            print(json.dumps(result), flush=True)
    finally:
        server.stop()
    if args.out:
        args.out.write_text("".join(json.dumps(line) + "\n" for line in out))


if __name__ == "__main__":
    main()
