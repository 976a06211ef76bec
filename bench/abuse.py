"""What hostile clients cost `voce serve`: memory and the time of a probe while thousands of sockets say half a request, and
while single requests unpack to much more than they are. Prints one JSON object.

    python bench/abuse.py --voce target/release/voce
"""

import argparse
import json
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib

HALF_OPEN = 5_000
RSS_HALF_OPEN, RSS_REQUEST, PROBE_MS = 100, 320, 20


def rss(pid, field="VmRSS"):
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(rf"{field}:\s*(\d+)", file.read()).group(1)) / 1024


def connect(port):
    return socket.create_connection(("127.0.0.1", port))


def request(port, method, path, body=b"", head=""):
    with connect(port) as s:
        s.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n{head}\r\n".encode() + body)
        answer = b""
        while chunk := s.recv(65536):
            answer += chunk
    return int(answer.split(b" ", 2)[1])


def probe(port, n=50):
    times = []
    for _ in range(n):
        begun = time.perf_counter()
        assert request(port, "GET", "/livez") == 200
        times.append((time.perf_counter() - begun) * 1e3)
    return sorted(times)


def flac(seconds):
    """Silence: constant subframes, 12 bytes for 65,535 samples of 8 channels."""
    def crc(data, poly, bits):
        value, top = 0, 1 << (bits - 1)
        for byte in data:
            value ^= byte << (bits - 8)
            for _ in range(8):
                value = (value << 1 ^ poly if value & top else value << 1) & ((1 << bits) - 1)
        return value

    rate, block = 48_000, 65_535
    info = struct.pack(">HHHHHH", block, block, 0, 0, 0, 0)[:4] + b"\0" * 6
    info += (rate << 44 | 7 << 41 | 15 << 36).to_bytes(8, "big") + b"\0" * 16
    out = bytearray(b"fLaC\x80\x00\x00\x22" + info)
    for number in range(seconds * rate // block + 1):
        coded = chr(number).encode("utf-8", "surrogatepass") if number > 127 else bytes([number])
        head = b"\xff\xf8" + bytes([0x7A, 0x78]) + coded + struct.pack(">H", block - 1)
        frame = head + bytes([crc(head, 0x07, 8)]) + b"\0\0\0" * 8
        out += frame + struct.pack(">H", crc(frame, 0x8005, 16))
    return bytes(out)


def main(args):
    command = [args.voce, "serve", "--port", "0", "--null-model", "--speak-slots", "4", "--log", "error"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    result, problems = {"what": "abuse", "date": time.strftime("%Y-%m-%d")}, []

    def check(name, value, most):
        result[name] = {"value": round(value, 1), "most": most}
        if value > most:
            problems.append(name)

    try:
        port = int(re.search(r":(\d+)/", server.stdout.readline()).group(1))
        probe(port)
        before = rss(server.pid)
        result["rss_mib"] = round(before, 1)

        sockets = []
        for i in range(HALF_OPEN):
            s = connect(port)
            s.sendall([b"", b"GET /liv", b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nX-"][i % 3])
            sockets.append(s)
        times = probe(port)
        check("half_open_probe_ms_p50", times[len(times) // 2], PROBE_MS)
        check("half_open_rss_mib", rss(server.pid) - before, RSS_HALF_OPEN)
        begun = time.monotonic()
        closed = 0
        for s in sockets:
            s.settimeout(max(15 - (time.monotonic() - begun), 0.1))
            try:
                while s.recv(4096):
                    pass
                closed += 1
            except ConnectionError:
                closed += 1
            except TimeoutError:
                pass
            s.close()
        check("half_open_left_after_15_s", HALF_OPEN - closed, 0)

        bombs = {
            "flac_601_s_8_channels": ("/v1/listen", flac(601), ""),
            "gzip_of_16_mib": ("/v1/audio/speech", zlib.compress(b"\0" * (1 << 24), 9, 31), "Content-Encoding: gzip\r\n"),
            "25_mib_of_zeros": ("/v1/listen?encoding=mulaw&sample_rate=8000", b"\0" * (25 << 20), ""),
            "deep_json": ("/v1/audio/speech", b"[" * (1 << 20), ""),
        }
        for name, (path, body, head) in bombs.items():
            peak, done = [rss(server.pid)], threading.Event()

            def watch(peak=peak, done=done):
                while not done.wait(0.002):
                    peak.append(rss(server.pid))

            thread = threading.Thread(target=watch)
            thread.start()
            code = request(port, "POST", path, body, head)
            done.set()
            thread.join()
            check(f"{name}_rss_mib", max(peak) - peak[0], RSS_REQUEST)
            result[name] = {"bytes": len(body), "status": code}
            if code >= 500 or code < 400:
                problems.append(name)
        assert request(port, "GET", "/readyz") == 200
    finally:
        server.terminate()
        server.wait(45)
    result["problems"] = problems
    print(json.dumps(result, indent=1))
    return 1 if problems else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--voce", default="target/release/voce")
    sys.exit(main(parser.parse_args()))
