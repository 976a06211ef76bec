"""Loud and quiet halves of a second, for a recogniser that counts the loud ones: `#` is loud."""

import io
import math
import struct
import wave


def samples(pattern, rate):
    out = []
    for letter in pattern:
        for i in range(rate // 2):
            out.append(0.4 * math.sin(i * 0.3) if letter == "#" else 0.0)
    return out


def pcm(pattern, rate):
    return b"".join(struct.pack("<h", int(s * 32767)) for s in samples(pattern, rate))


def wav(pattern, rate):
    file = io.BytesIO()
    with wave.open(file, "wb") as w:
        w.setnchannels(1)
        w.setsampwidth(2)
        w.setframerate(rate)
        w.writeframes(pcm(pattern, rate))
    return file.getvalue()
