"""Opus packets through libopus, and packs of many utterances in one file.

A pack is an .npz: `data` (all packets one after the other), `sizes` (bytes of each packet), `counts`
(packets of each utterance), `skips` and `samples` (at 16 kHz), `texts`.
"""

import ctypes
import ctypes.util
from pathlib import Path

import numpy as np

RATE = 16000


def library(path: str | None = None):
    lib = ctypes.CDLL(path or ctypes.util.find_library("opus") or "libopus.so.0")
    lib.opus_decoder_create.restype = lib.opus_encoder_create.restype = ctypes.c_void_p
    return lib


def decode(lib, packets: list[bytes], skip: int, samples: int) -> np.ndarray:
    error = ctypes.c_int()
    state = ctypes.c_void_p(lib.opus_decoder_create(RATE, 1, ctypes.byref(error)))
    buffer = np.zeros(RATE * 120 // 1000, np.int16)
    out = []
    for p in packets:
        n = lib.opus_decode(state, p, len(p), buffer.ctypes.data_as(ctypes.c_void_p), len(buffer), 0)
        if n > 0:
            out.append(buffer[:n].copy())
    lib.opus_decoder_destroy(state)
    return np.concatenate(out)[skip: skip + samples] if out else np.zeros(0, np.int16)


def encode(lib, wave: np.ndarray, rate: int) -> tuple[list[bytes], int]:
    """Packets of 20 ms at `rate` bits a second, and the samples to skip."""
    error = ctypes.c_int()
    state = ctypes.c_void_p(lib.opus_encoder_create(RATE, 1, 2048, ctypes.byref(error)))  # VOIP
    lib.opus_encoder_ctl(state, 4002, rate)
    lib.opus_encoder_ctl(state, 4010, 5)
    ahead = ctypes.c_int()
    lib.opus_encoder_ctl(state, 4027, ctypes.byref(ahead))
    padded = np.zeros(-(-(len(wave) + ahead.value) // 320) * 320, np.int16)
    padded[: len(wave)] = wave
    room = ctypes.create_string_buffer(1500)
    packets = []
    for i in range(0, len(padded), 320):
        part = np.ascontiguousarray(padded[i: i + 320])
        n = lib.opus_encode(state, part.ctypes.data_as(ctypes.c_void_p), 320, room, 1500)
        packets.append(room.raw[:n])
    lib.opus_encoder_destroy(state)
    return packets, ahead.value


def from_ogg(path: Path) -> tuple[list[bytes], int, int]:
    """(packets, samples to skip, samples), the last two at 16 kHz."""
    raw, at, packets, held, last = path.read_bytes(), 0, [], b"", 0
    while at < len(raw):
        granule, segments = int.from_bytes(raw[at + 6: at + 14], "little"), raw[at + 26]
        table = raw[at + 27: at + 27 + segments]
        at += 27 + segments
        for size in table:
            held += raw[at: at + size]
            at += size
            if size < 255:
                packets.append(held)
                held = b""
        last = granule
    skip = int.from_bytes(packets[0][10:12], "little")
    return packets[2:], skip // 3, (last - skip) // 3


def write_pack(path: Path, items: list[tuple[list[bytes], int, int, str]]) -> None:
    sizes = np.array([len(p) for packets, *_ in items for p in packets], np.uint16)
    np.savez(path, data=np.frombuffer(b"".join(p for packets, *_ in items for p in packets), np.uint8), sizes=sizes,
             counts=np.array([len(packets) for packets, *_ in items], np.int32), skips=np.array([s for _, s, _, _ in items], np.int32),
             samples=np.array([n for _, _, n, _ in items], np.int32), texts=np.array([t for *_, t in items]))


def read_pack(path: Path, lib):
    """Yields (int16 wave at 16 kHz, text)."""
    with np.load(path) as pack:
        data, sizes, counts, skips, samples, texts = (pack[k] for k in ("data", "sizes", "counts", "skips", "samples", "texts"))
    edges = np.concatenate([[0], np.cumsum(sizes.astype(np.int64))])
    p = 0
    for count, skip, n, text in zip(counts, skips, samples, texts):
        packets = [data[edges[i]: edges[i + 1]].tobytes() for i in range(p, p + count)]
        p += count
        yield decode(lib, packets, int(skip), int(n)), str(text)
