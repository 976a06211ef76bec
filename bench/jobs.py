"""What a job through NATS JetStream costs beside `voce bulk` on the same recordings: processor time of the submitter, the worker
and nats-server, and the server's memory while jobs wait.

    python bench/jobs.py --voce target/release/voce --nats-server PATH --jobs 300 --seconds 0.5 5 >> bench/runs/DATE-CPU-jobs.jsonl

Everything on one machine, with the built-in recogniser. A line of JSON for each length of a recording: `over_bulk_ms` is what a
worker and the server use more than bulk does, with submitting, per job. Python 3.11 and nothing else.
"""

import argparse
import json
import math
import os
import pathlib
import platform
import random
import resource
import socket
import struct
import subprocess
import tempfile
import time

RATE = 16_000


def recording(path, seconds, seed):
    """Something with the rhythm of speech, another one for each seed."""
    noise, level = random.Random(seed), 0.0
    samples = []
    for i in range(int(seconds * RATE)):
        level = 0.995 * level + 0.005 * noise.gauss(0, 1)
        samples.append(int(12_000 * level * abs(math.sin(2 * math.pi * 3 * i / RATE))))
    data = struct.pack(f"<{len(samples)}h", *samples)
    head = struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + len(data), b"WAVE", b"fmt ", 16, 1, 1, RATE, 2 * RATE, 2, 16, b"data", len(data))
    path.write_bytes(head + data)


def run(command):
    """Seconds of processor time of a command, its children included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def used(pid):
    """Seconds of processor time and KiB of memory of a process that runs."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    memory = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), memory


def measure(args, seconds, folder):
    lists = folder / "list.jsonl"
    single = folder / "single.jsonl"
    with lists.open("w") as out:
        for job in range(args.jobs):
            path = folder / f"{job}.wav"
            recording(path, seconds, job)
            out.write(json.dumps({"id": f"{job}", "audio_filepath": str(path)}) + "\n")
    single.write_text(lists.read_text().splitlines()[0] + "\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    nats = subprocess.Popen([args.nats_server, "-js", "-a", "127.0.0.1", "-p", str(port), "-sd", str(folder / "nats")],
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        time.sleep(1)
        url = f"nats://127.0.0.1:{port}"
        model = ["--model", "nano-ear"]
        how = [*model, "--threads", "1", "--streams", str(args.streams)]
        work = [args.voce, "--quiet", "work", "--nats", url, "--until-empty", "--results", str(folder / "texts"), *how]
        bulk = [args.voce, "--quiet", "bulk", str(lists), "-o", str(folder / "bulk"), *how]
        # One job alone: what opening the model and the queue costs.
        run([args.voce, "--quiet", "jobs", "submit", str(single), "--nats", url, *model])
        work_start = run(work)
        bulk_start = run([args.voce, "--quiet", "bulk", str(single), "-o", str(folder / "one"), *how])
        begun = used(nats.pid)
        submit = run([args.voce, "--quiet", "jobs", "submit", str(lists), "--nats", url, *model])
        waiting = used(nats.pid)
        worker = run(work) - work_start
        ended = used(nats.pid)
        plain = run(bulk) - bulk_start
        texts = sum(path.is_file() for path in (folder / "texts").rglob("*"))
    finally:
        nats.terminate()
        nats.wait()
    each = lambda value: round(value * 1e3 / args.jobs, 3)
    return {
        "jobs": args.jobs, "seconds": seconds, "streams": args.streams, "texts": texts,
        "submit_ms": each(submit), "server_submit_ms": each(waiting[0] - begun[0]), "server_work_ms": each(ended[0] - waiting[0]),
        "worker_ms": each(worker), "bulk_ms": each(plain),
        "over_bulk_ms": each(submit + ended[0] - begun[0] + worker - plain),
        "server_kib_per_waiting_job": round((waiting[1] - begun[1]) / args.jobs, 2),
        "cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "load": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--voce", default="target/release/voce")
    parser.add_argument("--nats-server", default="nats-server")
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--seconds", type=float, nargs="+", default=[0.5, 5])
    args = parser.parse_args()
    for seconds in args.seconds:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(args, seconds, pathlib.Path(folder))), flush=True)


if __name__ == "__main__":
    main()
