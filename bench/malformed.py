"""A collection of broken audio, sent through a running `voce serve`: every container that the decoder knows, truncated,
flipped, spliced, with headers that lie. Every file must be answered with 2xx or 4xx, and nothing may panic.

    python bench/malformed.py --voce target/release/voce                      # 20,000 files
    python bench/malformed.py --voce target/debug/voce --count 500 --seed 7
    python bench/malformed.py --write FOLDER --count 1000                     # only make them

The files are the same for the same seed and fixtures. Needs Python 3.11 and nothing else.
"""

import argparse
import collections
import concurrent.futures
import http.client
import json
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import threading
import time

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "crates/voce-audio/tests/fixtures"
KINDS = (".mp3", ".m4a", ".aac", ".ogg", ".opus", ".webm", ".aiff", ".flac", ".wav")
SHARP = [0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1]


def wav(bits, tag, channels, rate, frames):
    width = bits // 8 * channels
    data = bytes(i * 37 % 251 for i in range(frames * width))
    head = struct.pack("<HHIIHH", tag, channels, rate, rate * width, width, bits)
    return b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " + struct.pack("<I", 16) + head + b"data" + struct.pack("<I", len(data)) + data


def seeds():
    files = {p.name: p.read_bytes() for p in sorted(FIXTURES.iterdir()) if p.suffix in KINDS}
    for name, bits, tag, channels in [("u8", 8, 1, 1), ("s16", 16, 1, 2), ("s24", 24, 1, 1), ("s32", 32, 1, 8), ("f32", 32, 3, 1), ("f64", 64, 3, 2)]:
        files[f"made_{name}.wav"] = wav(bits, tag, channels, 16_000, 2_000)
    return files


def ogg_pages(data):
    """Offsets of pages, as far as they are whole."""
    at = data.find(b"OggS")
    while at >= 0 and at + 27 <= len(data):
        lacing = data[at + 27 : at + 27 + data[at + 26]]
        end = at + 27 + len(lacing) + sum(lacing)
        if end > len(data):
            return
        yield at, end
        at = data.find(b"OggS", end)


TABLE = []
for n in range(256):
    crc = n << 24
    for _ in range(8):
        crc = (crc << 1 ^ 0x04C11DB7 if crc & 0x80000000 else crc << 1) & 0xFFFFFFFF
    TABLE.append(crc)


def mend_ogg(data):
    """New checksums, so that what is broken is looked at."""
    data = bytearray(data)
    for at, end in list(ogg_pages(data)):
        data[at + 22 : at + 26] = bytes(4)
        crc = 0
        for byte in data[at:end]:
            crc = (crc << 8 & 0xFFFFFFFF) ^ TABLE[crc >> 24 ^ byte]
        data[at + 22 : at + 26] = struct.pack("<I", crc)
    return bytes(data)


def sharp(dice, size):
    value = dice.choice(SHARP) & (1 << 8 * size) - 1
    return value.to_bytes(size, dice.choice(["little", "big"]))


def places(data):
    """Where a header has its numbers: after the names of chunks, boxes, elements and pages."""
    found = [i for i in range(min(len(data), 64))]
    for match in re.finditer(
        rb"RIFF|WAVE|fmt |data|FORM|COMM|SSND|fLaC|OggS|OpusHead|OpusTags|\x01vorbis|\x05vorbis|BCV|moov|mdat|stsz|stts|stsc|stco|stsd|esds|mp4a|trak|"
        rb"\x1a\x45\xdf\xa3|\x18\x53\x80\x67|\x1f\x43\xb6\x75|\x16\x54\xae\x6b|\xa3|\xff[\xe0-\xff]",
        data[:65536],
    ):
        found += range(max(match.start() - 8, 0), min(match.end() + 24, len(data)))
    return found or [0]


def damage(dice, files, names):
    name = dice.choice(names)
    data = bytearray(files[name])
    kind = dice.choice(["cut", "flip", "lie", "lie", "splice", "repeat", "drop", "graft", "pad", "many"])
    where = places(bytes(data))
    if kind == "cut":
        data = data[: dice.randrange(len(data))]
    elif kind == "flip":
        for _ in range(dice.randint(1, 20)):
            at = dice.choice(where) if dice.random() < 0.6 else dice.randrange(len(data))
            data[at] ^= 1 << dice.randrange(8)
    elif kind == "lie":
        for _ in range(dice.randint(1, 3)):
            at, size = dice.choice(where), dice.choice([1, 2, 4, 8])
            data[at : at + size] = sharp(dice, size)
    elif kind == "splice":
        other = files[dice.choice(names)]
        at, start = dice.randrange(len(data)), dice.randrange(len(other))
        data = data[:at] + other[start:]
    elif kind == "repeat":
        start = dice.randrange(len(data))
        data[start:start] = data[start : start + dice.randrange(2_000)] * dice.randint(1, 50)
    elif kind == "drop":
        start = dice.randrange(len(data))
        del data[start : start + dice.randrange(1, 500)]
    elif kind == "graft":
        other = files[dice.choice(names)]
        data = bytearray(other[: dice.randrange(1, 100)]) + data
    elif kind == "pad":
        at = dice.randrange(len(data) + 1)
        data[at:at] = bytes([dice.choice([0, 0xFF, 0x55])]) * dice.randrange(100_000)
    else:
        for _ in range(dice.randint(2, 6)):
            at, size = dice.choice(where), dice.choice([1, 2, 4])
            data[at : at + size] = sharp(dice, size)
        data = data[: dice.randrange(len(data) // 2, len(data)) + 1]
    if b"OggS" in data[:4] and dice.random() < 0.7:
        data = mend_ogg(data)
    return name, kind, bytes(data)


def collection(count, seed):
    files = seeds()
    names = sorted(files)
    for number in range(count):
        dice = random.Random(f"{seed}/{number}")
        yield number, *damage(dice, files, names)


DOORS = ["/v1/listen", "/api/asr-streaming", "/v1/audio/transcriptions", "/v1/listen?encoding=linear16&sample_rate=44100&channels=2"]


def send(port, door, data):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {"Content-Type": "audio/x"}
    if door.endswith("transcriptions"):
        headers = {"Content-Type": "multipart/form-data; boundary=b0b0"}
        data = b'--b0b0\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + data + b"\r\n--b0b0--\r\n"
    try:
        connection.request("POST", door, data, headers)
        response = connection.getresponse()
        body = response.read()
        return response.status, body
    finally:
        connection.close()


def main(args):
    if args.write:
        folder = pathlib.Path(args.write)
        folder.mkdir(parents=True, exist_ok=True)
        for number, name, kind, data in collection(args.count, args.seed):
            (folder / f"{number:05}-{kind}-{name}").write_bytes(data)
        return 0
    log = tempfile.NamedTemporaryFile("w+", suffix=".log", prefix="voce-malformed-")
    command = [args.voce, "serve", "--port", "0", "--null-model", "--no-speak", "--hear-slots", "16", "--log", "warn"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    problems, statuses, codes, lock = [], collections.Counter(), collections.Counter(), threading.Lock()
    begun = time.monotonic()
    try:
        port = int(re.search(r":(\d+)/", server.stdout.readline()).group(1))

        def one(item):
            number, name, kind, data = item
            door = DOORS[number % len(DOORS)]
            try:
                status, body = send(port, door, data)
            except OSError as error:
                status, body = 0, str(error).encode()
            with lock:
                statuses[status] += 1
                if 400 <= status < 500:
                    codes[json.loads(body)["error"]["code"]] += 1
                if not (200 <= status < 300 or 400 <= status < 500):
                    problems.append(f"file {number} ({kind} of {name}) at {door}: {status} {body[:200]!r}")

        with concurrent.futures.ThreadPoolExecutor(args.clients) as pool:
            for _ in pool.map(one, collection(args.count, args.seed)):
                pass
        if server.poll() is not None:
            problems.append(f"the server ended with {server.returncode}")
        if send(port, "/v1/listen", wav(16, 1, 1, 16_000, 16_000))[0] != 200:
            problems.append("a sound file is no longer taken")
    finally:
        server.terminate()
        server.wait(45)
    log.seek(0)
    panics = [line.strip() for line in log if "panicked" in line]
    problems += [f"panic: {line}" for line in panics[:20]]
    faults = codes.get("decoder_fault", 0)
    if faults:
        problems.append(f"{faults} files made a decoder panic")
    result = {
        "what": "malformed", "date": time.strftime("%Y-%m-%d"), "files": args.count, "seed": args.seed, "seconds": round(time.monotonic() - begun, 1),
        "statuses": dict(sorted(statuses.items())), "codes": dict(codes.most_common()), "problems": problems[:50],
    }
    print(json.dumps(result, indent=1))
    return 1 if problems else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--voce", default="target/release/voce")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--write", metavar="FOLDER", help="write the files and send nothing")
    sys.exit(main(parser.parse_args()))
