"""What `voce route` costs: the same clients straight to a server with the null model and through a router, in turns, on one
machine. The router's processor time is read from /proc, for the whole run with its connections and for streams that are under way;
what it adds to an answer is the difference of two runs side by side.

    python bench/route.py --voce target/release/voce --streams 100 1000 --rounds 3 >> bench/runs/DATE-CPU-route.jsonl

`--cores 0-3 4-5 6-9` keeps the server, the router and the clients on cores of their own (Linux): each starts as many threads
as it has cores. `VOCE bench serve --url` is the client. Python 3.11 and nothing else."""

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import time


def cores(text):
    """The numbers of a list such as `0-3,8`."""
    ends = [part.split("-") for part in text.split(",")]
    return sorted({core for end in ends for core in range(int(end[0]), int(end[-1]) + 1)})


def held(to):
    """What a process does before it begins: stay on these cores."""
    return None if to is None else lambda: os.sched_setaffinity(0, to)


def start(command, to):
    """A process that says in a line of JSON where it listens."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, preexec_fn=held(to))
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"{command}: ended with {process.wait()}")
    return process, json.loads(line)["addr"]


def cpu(pid):
    """Seconds of processor time."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def bench(voce, address, streams, seconds, frame_ms, to, watched=None):
    """What the clients measured, and the processor time of `watched` for 80 ms of a stream that is under way: from 40 to 90 % of the run."""
    command = [voce, "--quiet", "--json", "bench", "serve", "--url", f"ws://{address}", "--streams", str(streams), "--seconds", str(seconds), "--frame-ms", str(frame_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=held(to)) as process:
        running = None
        if watched:
            time.sleep(0.4 * seconds)
            used, begun = cpu(watched.pid), time.monotonic()
            time.sleep(0.5 * seconds)
            running = (cpu(watched.pid) - used) / (time.monotonic() - begun) * 0.08 / streams * 1e6
        out = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{command}: ended with {process.returncode}")
    return json.loads(out), running


def compare(args, streams, frame_ms, direct, routed, router, clients):
    """One round straight and one through the router."""
    one, _ = bench(args.voce, direct, streams, args.seconds, frame_ms, clients)
    before, begun = cpu(router.pid), time.monotonic()
    two, running = bench(args.voce, routed, streams, args.seconds, frame_ms, clients, router)
    used = cpu(router.pid) - before
    frames = two["frames_sent"] * frame_ms / 80
    return {
        "streams": streams, "frame_ms": frame_ms,
        "router_us_per_80ms": round(used * 1e6 / frames, 2), "router_us_per_80ms_running": round(running, 2),
        "router_cores": round(used / (time.monotonic() - begun), 3),
        "answer_ms_direct": one["answer_ms"], "answer_ms_routed": two["answer_ms"],
        "added_p50_ms": round(two["answer_ms"]["p50"] - one["answer_ms"]["p50"], 3),
        "added_p99_ms": round(two["answer_ms"]["p99"] - one["answer_ms"]["p99"], 3),
        "pace": [one["pace"], two["pace"]], "failed": [one["failed"], two["failed"]], "cpu": two["cpu"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--voce", default="target/release/voce")
    parser.add_argument("--streams", type=int, nargs="+", default=[100])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--frame-ms", type=int, nargs="+", default=[80, 20])
    parser.add_argument("--cores", nargs=3, metavar=("SERVER", "ROUTER", "CLIENTS"), help="cores of each, such as 0-3 4,5 6-9")
    args = parser.parse_args()
    places = [cores(text) for text in args.cores] if args.cores else [None] * 3
    serve = [args.voce, "--json", "serve", "--port", "0", "--no-speak", "--null-model", "--hear-slots", str(2 * max(args.streams)), "--log", "error"]
    server, direct = start(serve, places[0])
    router, routed = start([args.voce, "--json", "route", "--port", "0", "--to", direct], places[1])
    try:
        time.sleep(1)
        for streams, frame_ms, round_ in itertools.product(args.streams, args.frame_ms, range(args.rounds)):
            line = compare(args, streams, frame_ms, direct, routed, router, places[2])
            print(json.dumps(line | {
                "round": round_, "cores": os.cpu_count(), "held_to": args.cores, "load": os.getloadavg()[0],
                "date": time.strftime("%Y-%m-%d"), "system": platform.release(),
            }), flush=True)
    finally:
        for process in (router, server):
            process.terminate()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
