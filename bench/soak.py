"""A long mixed load on `voce serve`: 70 % recognition, 20 % speech, 10 % what clients should not do. The server's memory,
file descriptors and threads are read from /proc, and must not grow; a leak that is planted must be seen.

    python bench/soak.py --voce target/release/voce --minutes 30 --hear MODEL --out bench/runs/soak.jsonl
    python bench/soak.py --voce target/release/voce --minutes 3 --plant sockets     # must fail, and exits with 1

Needs the packages `websockets` and `msgpack`.
"""

import argparse
import asyncio
import base64
import json
import math
import os
import platform
import random
import re
import statistics
import struct
import subprocess
import sys
import time

import msgpack
import websockets

# What a short run may grow by, beside what a day may: allocators settle for minutes.
RSS_MIB, RSS_MIB_PER_HOUR, FDS, THREADS = 6.0, 1.0, 6, 4


def pcm(seconds, rate, seed=0):
    chance = random.Random(seed)
    out = bytearray()
    for i in range(int(seconds * rate)):
        loud = 0.3 if int(i / rate * 2) % 3 else 0.0
        out += struct.pack("<h", int(32767 * loud * (math.sin(i * 0.05) * 0.5 + chance.uniform(-0.3, 0.3))))
    return bytes(out)


AUDIO = {rate: pcm(3, rate) for rate in (8_000, 16_000, 24_000)}
FLOATS = [s / 32768 for (s,) in struct.iter_unpack("<h", AUDIO[24_000])]


def wav(rate=16_000):
    data = AUDIO[rate]
    return b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, rate, rate * 2, 2, 16) + b"data" + struct.pack("<I", len(data)) + data


class Load:
    def __init__(self, port, plant):
        self.port, self.plant = port, plant
        self.url = f"ws://127.0.0.1:{port}"
        self.held = []
        self.counts, self.failures, self.times = {}, {}, {}
        self.running = True

    async def http(self, method, path, body=b"", headers=(), read=True):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            head = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", "Connection: close", *headers]
            writer.write(("\r\n".join(head) + "\r\n\r\n").encode() + body)
            await writer.drain()
            if not read:
                return 0, await reader.read(random.randrange(1, 4096))
            answer = await reader.read(-1)
            return int(answer.split(b" ", 2)[1]), answer.partition(b"\r\n\r\n")[2]
        finally:
            writer.close()

    def socket(self, path):
        return websockets.connect(self.url + path, max_size=None, open_timeout=30)

    # Recognition.

    async def stt_file(self):
        body = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + wav() + b"\r\n--b--\r\n"
        code, _ = await self.http("POST", "/v1/audio/transcriptions", body, ["Content-Type: multipart/form-data; boundary=b"])
        assert code in (200, 429), code

    async def stt_realtime(self):
        async with self.socket("/v1/realtime?intent=transcription") as ws:
            first = json.loads(await ws.recv())
            if first["type"] == "error":
                assert first["error"]["code"] == "busy", first
                return
            for i in range(0, len(AUDIO[24_000]), 9600):
                chunk = base64.b64encode(AUDIO[24_000][i : i + 9600]).decode()
                await ws.send(json.dumps({"type": "input_audio_buffer.append", "audio": chunk}))
                await asyncio.sleep(0.01)
            await ws.send('{"type": "input_audio_buffer.commit"}')
            while json.loads(await ws.recv())["type"] != "input_audio_buffer.committed":
                pass
            if self.plant == "sockets" and random.random() < 0.3:
                # A client that stays, and answers pings, is a socket and a slot that do not come back.
                kept = await websockets.connect(self.url + "/v1/realtime?intent=transcription")
                self.held.append(kept)

    async def stt_moshi(self):
        async with self.socket("/api/asr-streaming") as ws:
            pack = lambda m: msgpack.packb(m, use_single_float=True)
            for i in range(0, len(FLOATS), 1920):
                await ws.send(pack({"type": "Audio", "pcm": FLOATS[i : i + 1920]}))
                await asyncio.sleep(0.005)
            await ws.send(pack({"type": "Marker", "id": 1}))
            async for data in ws:
                message = msgpack.unpackb(data)
                if message["type"] in ("Marker", "Error"):
                    assert message.get("message", "no free channels") == "no free channels", message
                    return

    async def stt_deepgram(self):
        async with self.socket("/v1/listen?encoding=linear16&sample_rate=16000&interim_results=true") as ws:
            for i in range(0, len(AUDIO[16_000]), 3200):
                await ws.send(AUDIO[16_000][i : i + 3200])
            await ws.send('{"type": "CloseStream"}')
            async for _ in ws:
                pass

    # Speech.

    async def tts(self):
        form = random.choice(["mp3", "wav", "pcm", "flac", "opus"])
        body = json.dumps({"input": "Hello there. This is a soak.", "response_format": form}).encode()
        code, audio = await self.http("POST", "/v1/audio/speech", body)
        assert code in (200, 429), (code, audio[:200])

    async def tts_moshi(self):
        async with self.socket(f"/api/tts_streaming?format={random.choice(['PcmMessagePack', 'OggOpus'])}") as ws:
            await ws.send("Hello there.")
            await ws.send(b"\0")
            async for _ in ws:
                pass

    # What clients should not do.

    async def gone_in_the_middle(self):
        body = json.dumps({"input": "A long sentence that nobody will hear to its end. " * 5, "response_format": "pcm"}).encode()
        await self.http("POST", "/v1/audio/speech", body, read=False)

    async def gone_without_a_word(self):
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(random.choice([b"", b"GET /liv", b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"]))
        await asyncio.sleep(random.random())
        writer.transport.abort()

    async def noise(self):
        path = random.choice(["/v1/realtime", "/api/asr-streaming", "/api/tts_streaming", "/v1/listen?encoding=linear16", "/v2/decode/stream/x"])
        async with self.socket(path) as ws:
            for _ in range(random.randrange(20)):
                data = random.randbytes(random.randrange(200))
                await ws.send(data if random.random() < 0.5 else data.decode("latin-1"))

    async def bad_requests(self):
        flac = b"fLaC\x80\x00\x00\x22\x10\x00\x10\x00" + b"\0" * 6 + b"\x9f\xff\x6f\xf0\xff\xff\xff\xff" + b"\0" * 16
        for path, body in [
            ("/v1/audio/speech", b"[" * 100_000),
            ("/v1/audio/speech", b'{"input": ""}'),
            ("/v1/listen", flac),
            ("/api/asr-streaming", b"ID3\x04\x00\x00\x00\x00\x00\x17TIT2\x00\x00\x00\x0d\x00\x00\x03aaaaaaaaaa"),
            ("/nothing", b"x" * 1000),
        ]:
            code, _ = await self.http("POST", path, body)
            assert 400 <= code < 500, (path, code)

    async def never_reads(self):
        _, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1024)
        body = json.dumps({"input": "Words that nobody takes. " * 40, "response_format": "pcm"})
        writer.write(f"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        writer.transport.pause_reading()
        await asyncio.sleep(2)
        writer.transport.abort()

    async def work(self, seed):
        chance = random.Random(seed)
        kinds = {
            0.7: [self.stt_file, self.stt_realtime, self.stt_moshi, self.stt_deepgram],
            0.2: [self.tts, self.tts_moshi],
            0.1: [self.gone_in_the_middle, self.gone_without_a_word, self.noise, self.bad_requests, self.never_reads],
        }
        while self.running:
            (jobs,) = chance.choices(list(kinds.values()), list(kinds))
            job = chance.choice(jobs)
            begun = time.monotonic()
            try:
                await asyncio.wait_for(job(), 60)
                self.counts[job.__name__] = self.counts.get(job.__name__, 0) + 1
                self.times.setdefault(job.__name__, []).append((begun, time.monotonic() - begun))
            except (websockets.ConnectionClosed, websockets.InvalidStatus, ConnectionError, asyncio.IncompleteReadError):
                # A socket that is refused or closed is an answer.
                self.counts["closed"] = self.counts.get("closed", 0) + 1
                await asyncio.sleep(0.01)
            except Exception as error:  # noqa: BLE001: every other end is a finding
                key = f"{job.__name__}: {error!r}"[:200]
                self.failures[key] = self.failures.get(key, 0) + 1
                await asyncio.sleep(0.1)


def sample(pid):
    with open(f"/proc/{pid}/statm") as file:
        pages = int(file.read().split()[1])
    with open(f"/proc/{pid}/status") as file:
        threads = int(re.search(r"Threads:\s*(\d+)", file.read()).group(1))
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, len(os.listdir(f"/proc/{pid}/fd")), threads


def slope(points):
    """Least squares, per hour."""
    mean_x, mean_y = statistics.mean(p[0] for p in points), statistics.mean(p[1] for p in points)
    over = sum((x - mean_x) * (y - mean_y) for x, y in points)
    under = sum((x - mean_x) ** 2 for x, _ in points)
    return over / under * 3600 if under else 0.0


def verdict(samples, begun, end, hours):
    """What grew: medians of the first and of the last quarter after the warm-up, so that no single sample counts."""
    rest = [s for s in samples if s[0] >= begun]
    quarter = max(len(rest) // 4, 1)
    out, problems = {}, []
    for name, at, allowed in [("rss_mib", 1, RSS_MIB + RSS_MIB_PER_HOUR * hours), ("fds", 2, FDS), ("threads", 3, THREADS)]:
        first = statistics.median(s[at] for s in rest[:quarter])
        last = statistics.median(s[at] for s in rest[-quarter:])
        out[name] = {"first": round(first, 1), "last": round(last, 1), "per_hour": round(slope([(s[0], s[at]) for s in rest]), 2), "allowed": round(allowed, 1)}
        if last - first > allowed:
            problems.append(f"{name} grew from {first:.1f} to {last:.1f}")
    return out, problems


def percentiles(times, begun, end):
    half = (begun + end) / 2
    out = {}
    for name, events in sorted(times.items()):
        halves = [sorted(t for at, t in events if low <= at < high) for low, high in ((begun, half), (half, end))]
        if min(map(len, halves)) >= 20:
            out[name] = [round(h[int(len(h) * 0.99)] * 1e3, 1) for h in halves]
    return out


async def metric(load, name):
    _, text = await load.http("GET", "/metrics")
    found = re.search(rf"^{re.escape(name)} (\S+)", re.sub(r"\r\n[0-9a-f]+\r\n", "", text.decode()), re.M)
    return float(found.group(1)) if found else 0.0


async def main(args):
    command = [args.voce, "serve", "--port", "0", "--hear-slots", str(args.slots), "--speak-slots", "4", "--log", "warn"]
    command += ["--hear", args.hear] if args.hear else ["--null-model"]
    log = open(args.log, "w")
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        port = int(re.search(r":(\d+)/", server.stdout.readline()).group(1))
        load = Load(port, args.plant)
        workers = [asyncio.create_task(load.work(seed)) for seed in range(args.clients)]
        start = time.monotonic()
        end = start + args.minutes * 60
        samples = []
        while (now := time.monotonic()) < end:
            samples.append((now - start, *sample(server.pid)))
            if len(samples) % 60 == 0:
                print(f"{now - start:6.0f} s  rss {samples[-1][1]:.1f} MiB  fds {samples[-1][2]}  threads {samples[-1][3]}  {sum(load.counts.values())} done", file=sys.stderr)
            await asyncio.sleep(1)
        load.running = False
        await asyncio.gather(*workers)
        problems = [f"{n} times {what}" for what, n in load.failures.items()]
        warm = args.minutes * 60 * 0.25
        grown, more = verdict(samples, warm, end, args.minutes / 60)
        problems += more
        for kept in load.held:
            await kept.close()
        await asyncio.sleep(3)
        for kind in ("speech", "recognition"):
            used = await metric(load, f'voce_streams_active{{kind="{kind}"}}')
            if used:
                problems.append(f"{used:.0f} {kind} slots are still taken")
        if faults := await metric(load, 'voce_errors_total{type="internal"}'):
            problems.append(f"{faults:.0f} internal errors")
        if server.poll() is not None:
            problems.append(f"the server ended with {server.returncode}")
        server.terminate()
        code = server.wait(45)
        if code:
            problems.append(f"the server ended with {code}")
    finally:
        server.kill()
        log.close()
    with open(args.log) as file:
        panics = sum("panicked" in line for line in file)
    if panics:
        problems.append(f"{panics} panics in {args.log}")
    result = {
        "what": "soak", "date": time.strftime("%Y-%m-%d"), "machine": platform.processor() or platform.machine(), "cores": os.cpu_count(),
        "minutes": args.minutes, "clients": args.clients, "hear": args.hear or "null-model", "plant": args.plant,
        "done": dict(sorted(load.counts.items())), "p99_ms_by_half": percentiles(load.times, start + warm, end),
        "grown": grown, "samples": [[round(t), round(r, 1), f, h] for t, r, f, h in samples[::10]], "problems": problems,
    }
    line = json.dumps(result)
    if args.out:
        with open(args.out, "a") as file:
            file.write(line + "\n")
    print(json.dumps({k: v for k, v in result.items() if k != "samples"}, indent=1))
    return 1 if problems else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--voce", default="target/release/voce")
    parser.add_argument("--hear", help="a recogniser; without one, one that discards audio")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--plant", choices=["sockets"], help="plants a leak, which must be seen")
    parser.add_argument("--out", help="appends the result here")
    parser.add_argument("--log", default="/tmp/voce-soak.log")
    sys.exit(asyncio.run(main(parser.parse_args())))
