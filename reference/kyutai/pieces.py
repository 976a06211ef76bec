"""A made-up SentencePiece model of any size: letters, syllables and the published special tokens."""

import random
import string
import struct
from pathlib import Path

SPACE = "▁"
SPECIAL = [("<unk>", 2), ("<s>", 3), ("</s>", 3), ("<pad>", 3)]  # kinds: unknown, control


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _field(number: int, value) -> bytes:
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def write(path: Path, size: int, seed: int = 0):
    """Writes `size` pieces of a unigram model; the order is the id."""
    rng = random.Random(seed)
    names = dict.fromkeys(SPACE + string.ascii_letters + string.digits + ".,!?;:'-\"")
    while len(names) < size - len(SPECIAL):
        letters = "".join(rng.choice(string.ascii_lowercase) for _ in range(rng.choice([2, 2, 3, 3, 4])))
        names.setdefault(rng.choice(["", SPACE]) + letters)
    rows = [(name, 0.0, kind) for name, kind in SPECIAL]
    rows += [(name, -(6.0 if len(name) == 1 else 9.0) - rng.random(), 1) for name in names]
    body = b"".join(_field(1, _field(1, n) + _field(2, s) + _field(3, k)) for n, s, k in rows)
    trainer = _field(3, 1) + _field(4, size) + _field(40, 0) + _field(41, 1) + _field(42, 2) + _field(43, 3)
    path.write_bytes(body + _field(2, trainer) + _field(3, _field(1, "identity") + _field(3, 1) + _field(4, 1) + _field(5, 1)))
