"""Made-up speech at 16 kHz, 16 bit: gliding harmonics, noise bursts and pauses from a seed."""

import wave
from pathlib import Path

import numpy as np

RATE = 16000
CLIPS = {"a.wav": (2.83, 1), "b.wav": (1.51, 2), "long.wav": (6.97, 3)}  # name: seconds, seed


def speech(seconds: float, seed: int) -> np.ndarray:
    rng = np.random.RandomState(seed)
    n = int(seconds * RATE)
    out = np.zeros(n)
    start = 0.1
    while start < seconds - 0.15:
        length = rng.uniform(0.1, 0.32)
        lo, hi = int(start * RATE), min(n, int((start + length) * RATE))
        t = np.arange(hi - lo) / RATE
        pitch = rng.uniform(90, 240) * (1 + rng.uniform(-0.3, 0.3) * t)
        phase = 2 * np.pi * np.cumsum(pitch) / RATE
        tone = sum(np.sin(h * phase) * rng.uniform(0, 1) / h for h in range(1, 14))
        noise = rng.randn(hi - lo) * rng.uniform(0, 0.08)
        out[lo:hi] += np.hanning(hi - lo) * (0.15 * tone + noise)
        start += length + rng.uniform(0, 0.22)
    out += rng.randn(n) * 1e-3
    return np.round(np.clip(out, -1, 1) * 32767).astype(np.int16)


def write_wav(path: Path, pcm: np.ndarray):
    with wave.open(str(path), "wb") as w:
        w.setnchannels(1)
        w.setsampwidth(2)
        w.setframerate(RATE)
        w.writeframes(pcm.astype("<i2").tobytes())


def read_wav(path: Path) -> np.ndarray:
    """Samples as f32 in [-1, 1), the integer divided by 32768."""
    with wave.open(str(path), "rb") as w:
        return np.frombuffer(w.readframes(w.getnframes()), "<i2").astype(np.float32) / 32768.0


def write_clips(folder: Path):
    folder.mkdir(parents=True, exist_ok=True)
    for name, (seconds, seed) in CLIPS.items():
        write_wav(folder / name, speech(seconds, seed))
