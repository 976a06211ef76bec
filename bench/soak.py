"""Hours of what happens to a server, by one command: a mixed load on the built-in models at their capacity, clients killed at
random points, restarts under load, readers that stall, a full disk, no descriptors left, steps of the clock. Memory,
descriptors and threads are read from /proc and must not grow, and a leak that is planted must be seen. Prints JSON; every
phase has its problems.

    python bench/soak.py --voce target/release/voce --minutes 60 --out bench/runs/soak.jsonl
    python bench/soak.py --voce target/debug/voce --minutes 0.2 --kills 20 --restarts 2      # a try of the script itself
    python bench/soak.py --phases load,leak --minutes 30

Half of --minutes is the mixed load; kills and restarts take as long as they take. Python 3.11 and nothing else.
"""

import argparse
import base64
import contextlib
import email.utils
import glob
import http.client
import json
import os
import platform
import random
import re
import resource
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

import rig
from rig import Closed, Ws, post_json, request

# What a short run may grow by, beside what an hour may: allocators settle for minutes.
RSS_MIB, RSS_MIB_PER_HOUR, FDS, THREADS = 8.0, 1.0, 8, 6
SLOTS = 8


class Load:
    """Clients of every kind; what they did and what went wrong."""

    def __init__(self, server, pcm, plant=False):
        self.server, self.pcm, self.plant = server, pcm, plant
        self.counts, self.failures, self.times = {}, {}, {}
        self.lock, self.running, self.held = threading.Lock(), True, []
        floats = [s / 32768 for (s,) in struct.iter_unpack("<h", pcm)]
        self.frames = [rig.pack_audio(floats[i : i + 1920]) for i in range(0, len(floats) - 1920, 1920)]

    @property
    def port(self):
        return self.server.port

    # Recognition.

    def stt_file(self, dice):
        body, headers = rig.form([("file", rig.wav(self.pcm, 24_000))])
        status, _ = request(self.port, "POST", "/v1/audio/transcriptions", body, headers)
        assert status in (200, 429, 503), status

    def stt_realtime(self, dice):
        with Ws(self.port, "/v1/realtime?intent=transcription") as ws:
            if ws.json()["type"] == "error":
                return
            for i in range(0, len(self.pcm), 9600):
                ws.send(json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(self.pcm[i : i + 9600]).decode()}))
            ws.send('{"type": "input_audio_buffer.commit"}')
            while ws.json()["type"] not in ("conversation.item.input_audio_transcription.completed", "error"):
                pass
        if self.plant:
            # A connection that its client keeps in use is a descriptor and a task that do not come back.
            with contextlib.suppress(OSError):
                kept = socket.create_connection(("127.0.0.1", self.port), timeout=5)
                with self.lock:
                    self.held.append(kept)

    def stt_moshi(self, dice):
        with Ws(self.port, "/api/asr-streaming") as ws:
            for frame in self.frames:
                ws.send(frame)
            ws.send(b"\x82\xa4type\xa6Marker\xa2id\x01")
            while rig.unpack(ws.recv())[0]["type"] not in ("Marker", "Error"):
                pass

    def stt_deepgram(self, dice):
        with Ws(self.port, "/v1/listen?encoding=linear16&sample_rate=24000&interim_results=true") as ws:
            for i in range(0, len(self.pcm), 4800):
                ws.send(self.pcm[i : i + 4800])
            ws.send('{"type": "CloseStream"}')
            with contextlib.suppress(Closed):
                while True:
                    ws.recv()

    # Speech.

    def tts(self, dice):
        form = dice.choice(["mp3", "wav", "pcm", "flac", "opus"])
        status, body = post_json(self.port, "/v1/audio/speech", {"input": "Hello there. This is a soak.", "response_format": form})
        assert status in (200, 429, 503), (status, body[:200])

    def tts_moshi(self, dice):
        with Ws(self.port, f"/api/tts_streaming?format={dice.choice(['PcmMessagePack', 'OggOpus'])}") as ws:
            ws.send("Hello there.")
            ws.send(b"\0")
            with contextlib.suppress(Closed):
                while True:
                    ws.recv()

    # What clients should not do.

    def gone_in_the_middle(self, dice):
        kill_at_random(self.port, dice, self.pcm)

    def noise(self, dice):
        path = dice.choice(["/v1/realtime", "/api/asr-streaming", "/api/tts_streaming", "/v1/listen?encoding=linear16", "/v2/decode/stream/x"])
        with Ws(self.port, path) as ws:
            for _ in range(dice.randrange(20)):
                data = dice.randbytes(dice.randrange(200))
                ws.send(data if dice.random() < 0.5 else data.decode("latin-1"))

    def bad_requests(self, dice):
        flac = b"fLaC\x80\x00\x00\x22\x10\x00\x10\x00" + b"\0" * 6 + b"\x9f\xff\x6f\xf0\xff\xff\xff\xff" + b"\0" * 16
        for path, body in [("/v1/audio/speech", b"[" * 100_000), ("/v1/audio/speech", b'{"input": ""}'), ("/v1/listen", flac), ("/nothing", b"x" * 1000)]:
            status, _ = request(self.port, "POST", path, body)
            assert 400 <= status < 500 or status == 503, (path, status)

    def never_reads(self, dice):
        with stalled(self.port, 30):
            time.sleep(1)

    def keep(self):
        """Keeps the planted connections in use."""
        while self.running:
            for kept in list(self.held):
                with contextlib.suppress(OSError):
                    kept.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    kept.recv(4096)
            time.sleep(1)

    def work(self, seed):
        dice = random.Random(seed)
        kinds = {
            0.7: [self.stt_file, self.stt_realtime, self.stt_moshi, self.stt_deepgram],
            0.2: [self.tts, self.tts_moshi],
            0.1: [self.gone_in_the_middle, self.noise, self.bad_requests, self.never_reads],
        }
        while self.running:
            (jobs,) = dice.choices(list(kinds.values()), list(kinds))
            job = dice.choice(jobs)
            begun = time.monotonic()
            try:
                job(dice)
                with self.lock:
                    self.counts[job.__name__] = self.counts.get(job.__name__, 0) + 1
                    self.times.setdefault(job.__name__, []).append((begun, time.monotonic() - begun))
            except (Closed, ConnectionError):
                # A socket that is refused or closed is an answer.
                with self.lock:
                    self.counts["closed"] = self.counts.get("closed", 0) + 1
                time.sleep(0.01)
            except Exception as error:  # noqa: BLE001: every other end is a finding
                with self.lock:
                    key = f"{job.__name__}: {error!r}"[:200]
                    self.failures[key] = self.failures.get(key, 0) + 1
                time.sleep(0.1)

    def start(self, clients):
        self.threads = [threading.Thread(target=self.work, args=(seed,), daemon=True) for seed in range(clients)]
        if self.plant:
            self.threads.append(threading.Thread(target=self.keep, daemon=True))
        for thread in self.threads:
            thread.start()

    def stop(self):
        self.running = False
        for thread in self.threads:
            thread.join(60)


@contextlib.contextmanager
def stalled(port, pauses):
    """A reader of speech that reads nothing."""
    body = json.dumps({"input": "[pause:10s]" * min(pauses, 30) + " The end.", "response_format": "wav"})
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    try:
        s.settimeout(30)
        s.connect(("127.0.0.1", port))
        s.sendall(f"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        yield s
    finally:
        s.close()


def kill_at_random(port, dice, pcm):
    """A client that is gone at some point: in its head, in its body, between messages, in an answer. No goodbye."""
    speech = json.dumps({"input": "A long sentence that nobody will hear to its end. " * 3, "response_format": dice.choice(["pcm", "opus"])})
    append = json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(pcm[:48_000]).decode()})
    key = "dGhlIHNhbXBsZSBub25jZQ=="
    upgrade = lambda path: f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()  # noqa: E731
    talk = dice.choice([
        f"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(speech)}\r\n\r\n{speech}".encode(),
        b"POST /v1/listen HTTP/1.1\r\nHost: localhost\r\nContent-Type: audio/wav\r\nContent-Length: %d\r\n\r\n" % (len(pcm) + 44) + rig.wav(pcm, 24_000),
        upgrade("/v1/realtime?intent=transcription") + Ws.frame(1, append.encode()) * 4 + Ws.frame(1, b'{"type": "input_audio_buffer.commit"}'),
        upgrade("/v1/listen?encoding=linear16&sample_rate=24000") + Ws.frame(2, pcm[:9600]) * 10,
        upgrade("/api/tts_streaming?format=Pcm") + Ws.frame(1, b"Hello there, you who will not hear this. "),
    ])
    s = socket.create_connection(("127.0.0.1", port), timeout=30)
    # A reset and no goodbye.
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    try:
        s.sendall(talk[: dice.randrange(1, len(talk) + 1)])
        if dice.random() < 0.5:
            s.settimeout(dice.random() * 0.2)
            with contextlib.suppress(TimeoutError):
                s.recv(dice.randrange(1, 4096))
    finally:
        s.close()


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


def verdict(samples, warm, hours):
    """What grew: medians of the first and of the last quarter after the warm-up, so that no single sample counts."""
    rest = [s for s in samples if s[0] >= warm] or samples
    quarter = max(len(rest) // 4, 1)
    out, problems = {}, []
    for name, at, allowed in [("rss_mib", 1, RSS_MIB + RSS_MIB_PER_HOUR * hours), ("fds", 2, FDS), ("threads", 3, THREADS)]:
        first = statistics.median(s[at] for s in rest[:quarter])
        last = statistics.median(s[at] for s in rest[-quarter:])
        out[name] = {"first": round(first, 1), "last": round(last, 1), "per_hour": round(slope([(s[0], s[at]) for s in rest]), 2), "allowed": round(allowed, 1)}
        if last - first > allowed:
            problems.append(f"{name} grew from {first:.1f} to {last:.1f}")
    return out, problems


def percentiles(times, low, high):
    """The p99 of each job in the first and in the second half."""
    half, out = (low + high) / 2, {}
    for name, events in sorted(times.items()):
        halves = [sorted(t for at, t in events if a <= at < b) for a, b in ((low, half), (half, high))]
        if min(map(len, halves)) >= 20:
            out[name] = [round(rig.quantile(h, 0.99) * 1e3, 1) for h in halves]
    return out


def settled(server, seconds=15):
    """Waits until no slot is taken; what still is."""
    end = time.monotonic() + seconds
    while True:
        used = {k: rig.metric(server.port, f'voce_streams_active{{kind="{k}"}}') for k in ("speech", "recognition")}
        taken = [f"{n:.0f} {kind} slots are still taken" for kind, n in used.items() if n]
        if not taken or time.monotonic() > end:
            return taken
        time.sleep(0.2)


def health(server):
    """What is wrong with a server that should be as it was."""
    problems = settled(server)
    if faults := rig.metric(server.port, 'voce_errors_total{type="internal"}'):
        problems.append(f"{faults:.0f} internal errors")
    try:
        rig.speech(server.port, "Still here.")
    except (RuntimeError, OSError) as error:
        problems.append(f"it does not speak any more: {error}")
    return problems


def end(server):
    """Stops a server; what was wrong with that."""
    code, seconds = server.stop()
    problems = [f"panic: {line}" for line in server.panics()[:5]]
    if code:
        problems.append(f"the server ended with {code}")
    if seconds > 35:
        problems.append(f"the server took {seconds:.1f} s to end")
    return problems


def begin(args, flags=(), **more):
    flags = ["--hear-slots", str(SLOTS), "--speak-slots", str(SLOTS), *flags]
    return rig.Server(args.voce, flags, **more).ready()


def phase_load(args, minutes=None, plant=False):
    """The mixed load, with as many clients as there are slots and half as many again."""
    minutes = minutes or args.minutes / 2
    server = begin(args)
    load = Load(server, rig.speech(server.port), plant)
    load.start(args.clients)
    start, samples = time.monotonic(), []
    while (now := time.monotonic()) < start + minutes * 60:
        samples.append((now - start, *sample(server.pid)))
        if len(samples) % 60 == 0:
            print(f"{now - start:6.0f} s  rss {samples[-1][1]:.1f} MiB  fds {samples[-1][2]}  threads {samples[-1][3]}  {sum(load.counts.values())} done", file=sys.stderr)
        time.sleep(1 if minutes >= 1 else 0.1)
    load.stop()
    warm = minutes * 60 * 0.25
    grown, problems = verdict(samples, warm, minutes / 60)
    problems += [f"{n} times {what}" for what, n in load.failures.items()]
    p99 = percentiles(load.times, start + warm, time.monotonic())
    for kept in load.held:
        kept.close()
    problems += health(server) + end(server)
    return {"minutes": minutes, "done": dict(sorted(load.counts.items())), "p99_ms_by_half": p99, "grown": grown, "samples": [[round(t), round(r, 1), f, n] for t, r, f, n in samples[::10]], "problems": problems}


def phase_leak(args):
    """The same with a leak that is planted: a connection stays behind each Realtime conversation. It must be seen."""
    result = phase_load(args, max(args.minutes / 10, 0.1), plant=True)
    seen = [p for p in result["problems"] if "grew" in p]
    return {"minutes": result["minutes"], "seen": seen, "grown": result["grown"], "problems": [] if seen else ["the planted leak was not seen"]}


def phase_kills(args):
    """Clients that are gone at random points."""
    server = begin(args)
    pcm = rig.speech(server.port)
    before, refused, lock = sample(server.pid), [0], threading.Lock()

    def work(seed):
        dice = random.Random(f"kill/{seed}")
        for _ in range(args.kills // args.clients + 1):
            try:
                kill_at_random(server.port, dice, pcm)
            except OSError:
                with lock:
                    refused[0] += 1

    running = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(args.clients)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    problems = health(server)
    after = sample(server.pid)
    if after[1] - before[1] > FDS:
        problems.append(f"{after[1] - before[1]} descriptors are still open")
    if after[0] - before[0] > 64:
        problems.append(f"{after[0] - before[0]:.1f} MiB more than before")
    return {"kills": args.kills, "errors": refused[0], "rss_mib": [round(before[0], 1), round(after[0], 1)], "problems": problems + end(server)}


def phase_restarts(args):
    """Stops and kills under load: each time the server comes back, on a home that is whole."""
    problems, times, home = [], [], tempfile.mkdtemp(prefix="voce-soak-")
    capture = os.path.join(home, "capture")
    os.makedirs(capture)
    flags = ["--drain", "2s", "--capture-audio", capture, "--log-tokens", capture]
    server = begin(args, flags, home=home)
    load = Load(server, rig.speech(server.port))
    load.start(args.clients)
    dice = random.Random("restarts")
    for number in range(args.restarts):
        time.sleep(dice.random() * 1.5)
        how = dice.choice([signal.SIGTERM, signal.SIGTERM, signal.SIGKILL])
        code, seconds = server.stop(20, how)
        times.append(seconds)
        if how == signal.SIGTERM and (code or seconds > 2 + 5):
            problems.append(f"restart {number}: ended with {code} after {seconds:.1f} s")
        problems += [f"restart {number}: {line}" for line in server.panics()[:1]]
        try:
            server = begin(args, flags, home=home)
        except RuntimeError as error:
            problems.append(f"restart {number}: {error}")
            break
        load.server = server
        if left := [f for f in os.listdir(capture) if f.endswith(".part")]:
            # Streams of the new server may have begun: only what is old counts.
            old = [f for f in left if time.time() - os.path.getmtime(os.path.join(capture, f)) > 30]
            if old:
                problems.append(f"restart {number}: {len(old)} half files are left")
    load.stop()
    # A client whose server is gone is refused, or sees that its answer is not whole.
    expected = ("Refused", "timed out", "IncompleteRead")
    cut = sum(n for what, n in load.failures.items() if "IncompleteRead" in what)
    problems += [f"{n} times {what}" for what, n in load.failures.items() if not any(word in what for word in expected)]
    problems += health(server) + end(server)
    shutil.rmtree(home, ignore_errors=True)
    return {"restarts": args.restarts, "slowest_s": round(max(times, default=0), 1), "done": sum(load.counts.values()), "cut_and_told": cut, "problems": problems[:20]}


def phase_stalled(args):
    """Readers that take nothing, far more than there are slots: cut off, and cheap."""
    server = begin(args)
    rig.speech(server.port)
    before, problems = server.rss(), []
    with contextlib.ExitStack() as stack:
        sockets = []
        for _ in range(200):
            with contextlib.suppress(OSError):
                sockets.append(stack.enter_context(stalled(server.port, 30)))
        peak, deadline, closed = 0.0, time.monotonic() + 25, 0
        while time.monotonic() < deadline and rig.metric(server.port, 'voce_streams_active{kind="speech"}'):
            peak = max(peak, server.rss())
            time.sleep(0.1)
        for s in sockets:
            s.settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                try:
                    while s.recv(65536):
                        pass
                    closed += 1
                except ConnectionError:
                    closed += 1
        if peak - before > 250:
            problems.append(f"{len(sockets)} stalled readers cost {peak - before:.1f} MiB")
    problems += health(server)
    return {"readers": len(sockets), "closed": closed, "added_mib": round(peak - before, 1), "problems": problems + end(server)}


def small_disk(folder):
    """A disk of one MiB where this may be mounted, else a limit on the size of files: how it is undone, and the limit."""
    if os.geteuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True).returncode == 0:
        return "tmpfs", lambda: subprocess.run(["umount", "-l", folder], capture_output=True), None

    def limit():
        # An ignored signal stays ignored: writes fail instead.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, 64 * 1024))

    return "RLIMIT_FSIZE", lambda: None, limit


def phase_disk(args):
    """No room for what is kept: streams go on, adding a voice is an error, and half files do not stay."""
    home, folder = tempfile.mkdtemp(prefix="voce-soak-"), tempfile.mkdtemp(prefix="voce-full-")
    # Models are laid out while there is room.
    begin(args, home=home).stop()
    kind, undo, limit = small_disk(folder)
    problems = []
    try:
        server = begin(args, ["--capture-audio", folder, "--log-tokens", folder], home=home, limits=limit)
        pcm = rig.speech(server.port)
        statuses = set()
        for _ in range(10):
            statuses.add(request(server.port, "POST", "/v1/listen", rig.wav(pcm * 4, 24_000), {"Content-Type": "audio/wav"})[0])
            statuses.add(post_json(server.port, "/v1/audio/speech", {"input": rig.SENTENCE * 3, "response_format": "wav"})[0])
        if statuses != {200}:
            problems.append(f"streams were answered with {sorted(statuses)}")
        body, headers = rig.form([("name", "full"), ("audio_sample", rig.wav(pcm, 24_000))])
        voice, _ = request(server.port, "POST", "/v1/audio/voices", body, headers)
        problems += settled(server) + [f"panic: {line}" for line in server.panics()[:3]]
        code, _ = server.stop()
        if code:
            problems.append(f"the server ended with {code}")
    finally:
        undo()
        shutil.rmtree(home, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
    return {"how": kind, "streams": sorted(statuses), "adding_a_voice": voice, "problems": problems}


def phase_descriptors(args):
    """No descriptors left: those inside are served, those outside wait or are turned away, and it ends well."""

    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    server = begin(args, limits=limit)
    rig.speech(server.port)
    sockets, problems = [], []
    for _ in range(200):
        with contextlib.suppress(OSError):
            s = socket.create_connection(("127.0.0.1", server.port), timeout=2)
            s.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            sockets.append(s)
    held = len(os.listdir(f"/proc/{server.pid}/fd"))
    time.sleep(min(args.minutes * 60, 5))
    for s in sockets:
        s.close()
    begun = time.monotonic()
    while True:
        try:
            if rig.get(server.port, "/livez", timeout=5)[0] == 200:
                break
        except OSError:
            pass
        if time.monotonic() - begun > 30:
            problems.append("no answer 30 s after the descriptors came back")
            break
    problems += health(server)
    return {"descriptors_at_most": held, "back_after_s": round(time.monotonic() - begun, 1), "problems": problems + end(server)}


def phase_clock(args):
    """Steps of the clock on the wall, an hour on and a day back, while clients of every kind are served."""
    library = next(iter(sorted(glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1"))), None)
    if not library:
        return {"skipped": "libfaketime is not installed (Debian: faketime)", "problems": []}
    folder = tempfile.mkdtemp(prefix="voce-clock-")
    clock = os.path.join(folder, "offset")

    def step(offset):
        with open(clock + ".new", "w") as file:
            file.write(offset + "\n")
        os.replace(clock + ".new", clock)

    step("+0")
    fake = {"LD_PRELOAD": library, "FAKETIME_TIMESTAMP_FILE": clock, "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    try:
        server = begin(args, environment=fake)
        load = Load(server, rig.speech(server.port))
        load.start(args.clients)
        steps, missed, latest = ["+3600", "-86400", "+0", "+86400", "-3600", "+0", "+172800", "-172800", "+0"], [], 0.0
        for offset in steps:
            step(offset)
            time.sleep(min(args.minutes, 10))
            # A step to where the clock has not been yet shows in the Date of an answer, which is kept while it is in the future.
            if float(offset) > latest:
                latest = float(offset)
                if abs(server_clock(server.port) - time.time() - latest) > 5:
                    missed.append(offset)
        load.stop()
        problems = [f"{n} times {what}" for what, n in load.failures.items()]
        if missed:
            problems.append(f"the steps {missed} did not reach the server")
        problems += health(server) + end(server)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {"steps": steps, "done": dict(sorted(load.counts.items())), "problems": problems}


def server_clock(port):
    """The server's own time, from the head of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/livez")
        return email.utils.parsedate_to_datetime(connection.getresponse().getheader("Date")).timestamp()
    finally:
        connection.close()


PHASES = {
    "load": phase_load, "leak": phase_leak, "kills": phase_kills, "restarts": phase_restarts, "stalled": phase_stalled,
    "disk": phase_disk, "descriptors": phase_descriptors, "clock": phase_clock,
}


def main(args):
    names = args.phases.split(",") if args.phases else list(PHASES)
    failed = []
    for name in names:
        begun = time.monotonic()
        try:
            result = PHASES[name](args)
        except Exception as error:  # noqa: BLE001: what went wrong is told, not hidden
            result = {"problems": [f"the phase itself failed: {error!r}"]}
        record = {
            "what": "soak", "phase": name, "date": time.strftime("%Y-%m-%d"), "machine": platform.processor() or platform.machine(), "cores": os.cpu_count(),
            "models": "nano-voice, nano-ear", "clients": args.clients, "seconds": round(time.monotonic() - begun, 1), **result,
        }
        if result["problems"]:
            failed.append(name)
        if args.out:
            with open(args.out, "a") as file:
                file.write(json.dumps(record) + "\n")
        print(json.dumps({k: v for k, v in record.items() if k != "samples"}, indent=1), flush=True)
    print(f"{len(names) - len(failed)} of {len(names)} phases held" + (f"; not: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--voce", default="target/release/voce")
    parser.add_argument("--minutes", type=float, default=60, help="half of it is the mixed load")
    parser.add_argument("--clients", type=int, default=SLOTS + SLOTS // 2)
    parser.add_argument("--kills", type=int, default=10_000)
    parser.add_argument("--restarts", type=int, default=200)
    parser.add_argument("--phases", help=f"some of {','.join(PHASES)}")
    parser.add_argument("--out", help="appends each phase's result here, as a line of JSON")
    sys.exit(main(parser.parse_args()))
