"""What abuse.py and soak.py stand on: a server of their own, plain HTTP and WebSockets, live streams whose delays are
measured, and a watch on the server's memory. Python 3.11 and nothing else."""

import base64
import contextlib
import http.client
import json
import multiprocessing
import os
import re
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time

FRAME = 0.08
RATE = 24_000
SENTENCE = "The quick brown fox jumps over the lazy dog, and the rain in Spain stays mainly in the plain."


class Server:
    """`voce serve` on a port of its own, with the built-in models and a home that nothing else uses."""

    def __init__(self, voce, flags=(), home=None, limits=None, environment=None):
        self.home = home or tempfile.mkdtemp(prefix="voce-rig-")
        self.log = tempfile.NamedTemporaryFile("w+", prefix="voce-rig-", suffix=".log", delete=False)
        environment = {**os.environ, "VOCE_HOME": self.home, "HF_HOME": self.home + "/hub", "HF_HUB_OFFLINE": "1", **(environment or {})}
        command = [voce, "serve", "--port", "0", "--log", "warn", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment, preexec_fn=limits)
        line = self.process.stdout.readline()
        found = re.search(r":(\d+)/", line)
        if not found:
            raise RuntimeError(f"the server did not start: {line!r} {self.said()[-2000:]}")
        self.port = int(found.group(1))
        self.pid = self.process.pid

    def ready(self, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                if get(self.port, "/readyz")[0] == 200:
                    return self
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}: {self.said()[-2000:]}")
            time.sleep(0.05)
        raise RuntimeError("the server is not ready")

    def rss(self):
        """Resident memory in MiB."""
        with open(f"/proc/{self.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def said(self):
        with open(self.log.name) as file:
            return file.read()

    def panics(self):
        return [line.strip() for line in self.said().splitlines() if "panicked" in line]

    def stop(self, seconds=45, how=signal.SIGTERM):
        """Ends it; its exit code and how long that took."""
        begun = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.process.stdout.close()
        return code, time.monotonic() - begun


def request(port, method, path, body=b"", headers=None, timeout=120):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def get(port, path, headers=None, timeout=30):
    return request(port, "GET", path, headers=headers, timeout=timeout)


def post_json(port, path, value, headers=None, timeout=120):
    return request(port, "POST", path, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})}, timeout)


def form(fields):
    """A multipart body and its type; bytes are files."""
    out = b""
    for name, value in fields:
        out += f'--b0b0\r\nContent-Disposition: form-data; name="{name}"'.encode()
        out += b'; filename="a.wav"\r\n\r\n' + value if isinstance(value, bytes) else b"\r\n\r\n" + value.encode()
        out += b"\r\n"
    return out + b"--b0b0--\r\n", {"Content-Type": "multipart/form-data; boundary=b0b0"}


def metric(port, name, headers=None):
    text = get(port, "/metrics", headers)[1].decode()
    found = re.search(rf"^{re.escape(name)} (\S+)", text, re.M)
    return float(found.group(1)) if found else 0.0


def wav(pcm, rate):
    return b"RIFF" + struct.pack("<I", 36 + len(pcm)) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, rate, rate * 2, 2, 16) + b"data" + struct.pack("<I", len(pcm)) + pcm


class Closed(Exception):
    """The server has closed a WebSocket; `code` says why, or is None where it said nothing."""

    def __init__(self, code, reason=""):
        super().__init__(f"closed with {code} {reason}")
        self.code, self.reason = code, reason


class Ws:
    """A WebSocket that does exactly what it is told: pings are answered only while it reads."""

    def __init__(self, port, path, headers=None, timeout=30):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        key = base64.b64encode(os.urandom(16)).decode()
        head = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}"]
        head += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self.socket.sendall(("\r\n".join(head) + "\r\n\r\n").encode())
        self.buffer = b""
        # When to stop waiting for a message, on the monotonic clock.
        self.end = None
        answer = self.until(b"\r\n\r\n")
        self.status = int(answer.split(b" ", 2)[1])
        if self.status != 101:
            self.socket.close()
            raise Closed(self.status, "no upgrade")
        self.parts = []

    def more(self):
        data = self.socket.recv(65536)
        if not data:
            raise Closed(None)
        self.buffer += data

    def until(self, end):
        while end not in self.buffer:
            self.more()
        head, _, self.buffer = self.buffer.partition(end)
        return head

    def take(self, n):
        while len(self.buffer) < n:
            self.more()
        data, self.buffer = self.buffer[:n], self.buffer[n:]
        return data

    @staticmethod
    def frame(opcode, payload, fin=True):
        """A frame under a mask of zeros, which is a mask."""
        first, n = (0x80 if fin else 0) | opcode, len(payload)
        length = bytes([0x80 | n]) if n < 126 else b"\xfe" + struct.pack(">H", n) if n < 65536 else b"\xff" + struct.pack(">Q", n)
        return bytes([first]) + length + b"\0\0\0\0" + payload

    def send(self, payload):
        opcode = 1 if isinstance(payload, str) else 2
        self.socket.sendall(self.frame(opcode, payload.encode() if isinstance(payload, str) else payload))

    def recv(self):
        """The next message."""
        while True:
            first, second = self.take(2)
            n = second & 0x7F
            if n == 126:
                (n,) = struct.unpack(">H", self.take(2))
            elif n == 127:
                (n,) = struct.unpack(">Q", self.take(8))
            payload = self.take(n)
            opcode = first & 0x0F
            if opcode == 9:
                self.socket.sendall(self.frame(10, payload))
                # Pings alone must not keep a client waiting beyond its end.
                if self.end and time.monotonic() >= self.end:
                    raise TimeoutError
            elif opcode == 8:
                with contextlib.suppress(OSError):
                    self.socket.sendall(self.frame(8, payload[:2]))
                raise Closed(struct.unpack(">H", payload[:2])[0] if payload else 1005, payload[2:].decode(errors="replace"))
            elif opcode in (0, 1, 2):
                self.parts.append(payload)
                if opcode:
                    self.kind = opcode
                if first & 0x80:
                    whole, self.parts = b"".join(self.parts), []
                    return whole.decode() if self.kind == 1 else whole

    def json(self):
        return json.loads(self.recv())

    def close(self):
        with contextlib.suppress(OSError):
            self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def pack_audio(samples):
    """moshi's `Audio` with floats."""
    return b"\x82\xa4type\xa5Audio\xa3pcm\xdc" + struct.pack(">H", len(samples)) + b"".join(b"\xca" + struct.pack(">f", s) for s in samples)


def unpack(data, at=0):
    """A value of MessagePack and where it ends; enough for what the server sends."""
    kind = data[at]
    if kind < 0x80:
        return kind, at + 1
    if kind >= 0xE0:
        return kind - 256, at + 1
    if kind < 0x90 or kind in (0xDE, 0xDF):
        count, at = (kind & 0x0F, at + 1) if kind < 0x90 else (struct.unpack_from(">H", data, at + 1)[0], at + 3)
        value = {}
        for _ in range(count):
            name, at = unpack(data, at)
            value[name], at = unpack(data, at)
        return value, at
    if kind < 0xA0 or kind == 0xDC:
        count, at = (kind & 0x0F, at + 1) if kind < 0xA0 else (struct.unpack_from(">H", data, at + 1)[0], at + 3)
        items = []
        for _ in range(count):
            item, at = unpack(data, at)
            items.append(item)
        return items, at
    if kind < 0xC0 or kind in (0xD9, 0xDA):
        n, at = {0xD9: (data[at + 1], at + 2)}.get(kind, (kind & 0x1F, at + 1)) if kind != 0xDA else (struct.unpack_from(">H", data, at + 1)[0], at + 3)
        return data[at : at + n].decode(), at + n
    if kind in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[kind], at + 1
    form = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}[kind]
    return struct.unpack_from(form, data, at + 1)[0], at + 1 + struct.calcsize(form)


def speech(port, text=SENTENCE, headers=None):
    """A sentence of the built-in voice, 24 kHz PCM16."""
    status, body = post_json(port, "/v1/audio/speech", {"input": text, "response_format": "pcm", "seed": 1}, headers)
    if status != 200:
        raise RuntimeError(f"no speech: {status} {body[:200]!r}")
    return body


def _live(port, frames, headers, out, stop):
    """One live stream: a frame each 80 ms, and how late the server's `Step` for it is."""
    try:
        with Ws(port, "/api/asr-streaming", headers) as ws:
            sent = []

            def read():
                with contextlib.suppress(Exception):
                    while not stop.is_set():
                        message, _ = unpack(ws.recv())
                        now = time.monotonic()
                        if message["type"] == "Step" and message["step_idx"] < len(sent):
                            out.put((now, now - sent[message["step_idx"]]))
                        elif message["type"] == "Error":
                            out.put((now, message["message"]))

            reader = threading.Thread(target=read, daemon=True)
            reader.start()
            begun, number = time.monotonic(), 0
            while not stop.is_set():
                due = begun + number * FRAME
                time.sleep(max(due - time.monotonic(), 0))
                sent.append(time.monotonic())
                ws.send(frames[number % len(frames)])
                number += 1
    except Exception as error:  # noqa: BLE001: a live stream that ends is a finding
        if not stop.is_set():
            out.put((time.monotonic(), f"a live stream ended: {error!r}"))


def _live_process(port, frames, headers, count, out, stop):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threads = []
    for i in range(count):
        # Not all at the same moment.
        time.sleep(FRAME / count)
        threads.append(threading.Thread(target=_live, args=(port, frames[i:] + frames[:i], headers, out, stop), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join()


def _probe_process(port, out, stop):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while not stop.is_set():
        begun = time.monotonic()
        try:
            status = get(port, "/livez", timeout=30)[0]
            out.put((begun, time.monotonic() - begun if status == 200 else f"/livez says {status}"))
        except OSError as error:
            out.put((begun, f"/livez: {error!r}"))
        time.sleep(max(begun + 0.02 - time.monotonic(), 0.005))


class Bystanders:
    """Live streams and a probe beside whatever else happens, each kind in a process of its own."""

    def __init__(self, server, count=8, headers=None):
        self.server = server
        pcm = speech(server.port, headers=headers)
        samples = [s / 32768 for (s,) in struct.iter_unpack("<h", pcm)]
        step = int(RATE * FRAME)
        frames = [pack_audio(samples[i : i + step]) for i in range(0, len(samples) - step, step)]
        context = multiprocessing.get_context("fork")
        self.stop_event, self.lags, self.probes = context.Event(), context.Queue(), context.Queue()
        self.processes = [
            context.Process(target=_live_process, args=(server.port, frames, headers, count, self.lags, self.stop_event), daemon=True),
            context.Process(target=_probe_process, args=(server.port, self.probes, self.stop_event), daemon=True),
        ]
        for process in self.processes:
            process.start()
        self.lag_events, self.probe_events, self.memory = [], [], []
        self.done = threading.Event()
        self.threads = [threading.Thread(target=self._collect, args=a, daemon=True) for a in ((self.lags, self.lag_events), (self.probes, self.probe_events))]
        self.threads.append(threading.Thread(target=self._watch, daemon=True))
        for thread in self.threads:
            thread.start()

    def _collect(self, queue, events):
        while True:
            event = queue.get()
            if event is None:
                return
            events.append(event)

    def _watch(self):
        with contextlib.suppress(OSError):
            while not self.done.wait(0.005):
                self.memory.append((time.monotonic(), self.server.rss()))

    def stop(self):
        self.stop_event.set()
        self.done.set()
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.terminate()
        self.lags.put(None)
        self.probes.put(None)

    @staticmethod
    def numbers(events, low, high):
        return sorted(v for t, v in events if low <= t < high and not isinstance(v, str))

    def complaints(self, low, high):
        return sorted({v for events in (self.lag_events, self.probe_events) for t, v in events if low <= t < high and isinstance(v, str)})

    def lag(self, low, high, q):
        return quantile(self.numbers(self.lag_events, low, high), q)

    def probe(self, low, high, q):
        return quantile(self.numbers(self.probe_events, low, high), q)

    def peak(self, low, high):
        return max((v for t, v in self.memory if low <= t < high), default=0.0)


def quantile(values, q):
    return values[min(int(len(values) * q), len(values) - 1)] if values else float("nan")
