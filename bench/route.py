"""What `voce route` costs: the same clients straight to a server with the null model and through a router, in turns, on one
machine. The router's processor time is read from /proc; what it adds to an answer is the difference of two runs side by side.

    python bench/route.py --voce target/release/voce --streams 100 --rounds 3 >> bench/runs/DATE-CPU-route.jsonl

`VOCE bench serve --url` is the client. Python 3.11 and nothing else."""

import argparse
import json
import os
import platform
import subprocess
import sys
import time


def start(command):
    """A process that says in a line of JSON where it listens."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"{command}: ended with {process.wait()}")
    return process, json.loads(line)["addr"]


def cpu(pid):
    """Seconds of processor time."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def bench(voce, address, streams, seconds, frame_ms):
    command = [voce, "--quiet", "--json", "bench", "serve", "--url", f"ws://{address}", "--streams", str(streams), "--seconds", str(seconds), "--frame-ms", str(frame_ms)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--voce", default="target/release/voce")
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--frame-ms", type=int, nargs="+", default=[80, 20])
    args = parser.parse_args()
    serve = [args.voce, "--json", "serve", "--port", "0", "--no-speak", "--null-model", "--hear-slots", str(2 * args.streams), "--log", "error"]
    server, direct = start(serve)
    router, routed = start([args.voce, "--json", "route", "--port", "0", "--to", direct])
    try:
        time.sleep(1)
        for frame_ms in args.frame_ms:
            for round_ in range(args.rounds):
                one = bench(args.voce, direct, args.streams, args.seconds, frame_ms)
                before, begun = cpu(router.pid), time.monotonic()
                two = bench(args.voce, routed, args.streams, args.seconds, frame_ms)
                used = cpu(router.pid) - before
                frames = two["frames_sent"] * frame_ms / 80
                print(json.dumps({
                    "streams": args.streams, "frame_ms": frame_ms, "round": round_,
                    "router_us_per_80ms": round(used * 1e6 / frames, 2), "router_cores": round(used / (time.monotonic() - begun), 3),
                    "answer_ms_direct": one["answer_ms"], "answer_ms_routed": two["answer_ms"],
                    "added_p50_ms": round(two["answer_ms"]["p50"] - one["answer_ms"]["p50"], 3),
                    "added_p99_ms": round(two["answer_ms"]["p99"] - one["answer_ms"]["p99"], 3),
                    "pace": [one["pace"], two["pace"]], "cpu": two["cpu"], "cores": os.cpu_count(), "load": os.getloadavg()[0],
                    "date": time.strftime("%Y-%m-%d"), "system": platform.release(),
                }), flush=True)
    finally:
        for process in (router, server):
            process.terminate()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
