"""What hostile clients do to `voce serve`, at full size, beside eight live streams: each attack that ever worked is run
against a server with the built-in models, and fails where it adds more than 64 MiB, delays `/livez` by more than 20 ms, or
moves the others' p99 by more than a frame. Prints a table, and one JSON object with --json.

    python bench/abuse.py --voce target/release/voce
    python bench/abuse.py --voce target/debug/voce --scale 0.001 --seconds 2      # a try of the script itself
    python bench/abuse.py --only 'ogg|keywords' --json bench/runs/abuse.json

A machine that does other things meanwhile shows in the delays. Python 3.11 and nothing else.
"""

import argparse
import json
import math
import multiprocessing
import os
import platform
import re
import sys
import time

import attacks
import rig

MEMORY_MIB, LIVEZ_MS, FRAME_MS = 64, 20, 80
# How long live streams run alone before and after an attack, in seconds.
REST = 5.0


def run_attack(attack, arguments, out):
    context = attacks.Context(*arguments)
    try:
        out.put(attack(context))
    except Exception as error:  # noqa: BLE001: what went wrong is told, not hidden
        out.put({"problems": [f"the attack itself failed: {error!r}"]})


def warm(port, slots, pcm, headers):
    """Every slot is used once: what a model keeps for its streams is not the attack's doing."""

    def hear(_):
        with rig.Ws(port, "/v1/listen?encoding=linear16&sample_rate=24000", headers) as ws:
            ws.send(pcm)
            ws.send('{"type": "CloseStream"}')
            while True:
                ws.recv()

    attacks.threads(slots, hear)
    attacks.threads(8, lambda _: rig.speech(port, headers=headers))


def beside(args, name, flags, slots, attack):
    """An attack beside live streams: what was noticed, and what it moved."""
    headers = {"Authorization": f"Bearer {attacks.KEY_A}"} if "--api-key" in flags else None
    server = rig.Server(args.voce, ["--hear-slots", str(slots), "--speak-slots", "8", *flags]).ready()
    others = None
    try:
        pcm = rig.speech(server.port, headers=headers)
        warm(server.port, slots, pcm, headers)
        others = rig.Bystanders(server, args.live, headers)
        rest = REST if args.seconds >= 5 else args.seconds
        # The first seconds of a stream are not like the others.
        time.sleep(2 + rest)
        calm = (time.monotonic() - rest, time.monotonic())
        base = server.rss()
        context = multiprocessing.get_context("fork")
        out = context.Queue()
        process = context.Process(target=run_attack, args=(attack, (server.port, server.pid, args.scale, args.seconds, pcm, slots - args.live), out))
        process.start()
        try:
            noticed = out.get(timeout=args.seconds + 120)
        except Exception:  # noqa: BLE001: queue.Empty
            noticed = {"problems": ["the attack did not end"]}
        # An attack may be over at once; what it moved is measured for some seconds all the same.
        time.sleep(max(calm[1] + 3 - time.monotonic(), 0))
        busy = (calm[1], time.monotonic())
        process.join(5)
        if process.is_alive():
            process.terminate()
        time.sleep(1)
        alive = rig.get(server.port, "/livez")[0] == 200
        others.stop()
    except RuntimeError as error:
        noticed, busy, alive = {"problems": [str(error)]}, None, False
    finally:
        if others:
            others.stop()
        code, _ = server.stop()
    result = {"attack": name, **noticed}
    problems = list(noticed["problems"])
    if busy:
        figures = {
            "memory_mib": others.peak(*busy) - base,
            "livez_ms": (others.probe(*busy, 0.99) - others.probe(*calm, 0.99)) * 1e3,
            "livez_max_ms": others.probe(*busy, 1.0) * 1e3,
            "live_p99_ms": others.lag(*calm, 0.99) * 1e3,
            "live_p99_moved_ms": (others.lag(*busy, 0.99) - others.lag(*calm, 0.99)) * 1e3,
        }
        result |= {k: round(v, 1) for k, v in figures.items()}
        for key, most in (("memory_mib", MEMORY_MIB), ("livez_ms", LIVEZ_MS), ("live_p99_moved_ms", FRAME_MS)):
            if not figures[key] <= most:
                problems.append(f"{key} is {figures[key]:.1f}, more than {most}" if not math.isnan(figures[key]) else f"{key} was not measured")
        problems += others.complaints(*busy)
    if not alive:
        problems.append("the server is gone")
    problems += server.panics()[:3]
    if code not in (0, None) and alive:
        problems.append(f"the server ended with {code}")
    result["problems"] = problems
    return result


def main(args):
    wanted = re.compile(args.only, re.I) if args.only else None
    results = []

    def tell(result):
        results.append(result)
        figures = [f"{result[k]:>8}" if k in result else " " * 8 for k in ("memory_mib", "livez_ms", "live_p99_ms", "live_p99_moved_ms")]
        verdict = "ok" if not result["problems"] else "FAILED"
        print(f"{result['attack']:<40}", *figures, "", result.get("skipped", verdict), flush=True)
        for problem in result["problems"]:
            print(f"    {problem}", flush=True)

    print(f"{'attack':<40} {'MiB':>8} {'livez':>8} {'p99':>8} {'moved':>8}   (bounds: {MEMORY_MIB} MiB, {LIVEZ_MS} ms, {FRAME_MS} ms)")
    for name, flags, slots, attack in attacks.BESIDE:
        if not wanted or wanted.search(name):
            tell(beside(args, name, flags, slots, attack))
    for name, attack in attacks.ALONE:
        if not wanted or wanted.search(name):
            try:
                tell({"attack": name, **attack(args.voce)})
            except Exception as error:  # noqa: BLE001: what went wrong is told, not hidden
                tell({"attack": name, "problems": [repr(error)]})
    for name, why in attacks.SKIPPED.items():
        if not wanted or wanted.search(name):
            tell({"attack": name, "skipped": f"skipped: {why}", "problems": []})
    failed = [r["attack"] for r in results if r["problems"]]
    if args.json:
        record = {
            "what": "abuse", "date": time.strftime("%Y-%m-%d"), "machine": platform.processor() or platform.machine(), "cores": os.cpu_count(),
            "scale": args.scale, "seconds": args.seconds, "live_streams": args.live, "bounds": {"memory_mib": MEMORY_MIB, "livez_ms": LIVEZ_MS, "live_p99_moved_ms": FRAME_MS},
            "failed": failed, "attacks": results,
        }
        with open(args.json, "w") as file:
            json.dump(record, file, indent=1)
            file.write("\n")
    print(f"{len(results) - len(failed)} of {len(results)} held" + (f"; not: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--voce", default="target/release/voce")
    parser.add_argument("--only", help="attacks whose name this expression finds")
    parser.add_argument("--scale", type=float, default=1.0, help="part of an attack's full size")
    parser.add_argument("--seconds", type=float, default=30, help="how long each attack lasts")
    parser.add_argument("--live", type=int, default=8, help="live streams beside each attack")
    parser.add_argument("--json", help="writes the result here")
    sys.exit(main(parser.parse_args()))
