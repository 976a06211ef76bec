"""Speaks a list of sentences with the teacher and writes audio shards.

    python synth.py --texts texts/train.txt --out shards --workers 14

Shard k holds lines [k*SIZE, (k+1)*SIZE) of the list: one int16 stream at 24 kHz (K.npy) and its
index (K.npz, written last). Every utterance
starts 40 ms before its first sound, ends in TAIL frames of silence, and fills whole 80 ms frames.
The sound depends only on the line's number and text, so shards need not be kept.
"""

import argparse
import multiprocessing
import os
import time
from pathlib import Path

import numpy as np

RATE, FRAME, TAIL, SIZE = 24000, 1920, 4, 128
GAIN, FLOOR, EDGE, GAP = 1.5, 5e-4, 960, 8400


def trim(wave: np.ndarray) -> np.ndarray:
    blocks = wave[: len(wave) // 240 * 240].reshape(-1, 240)
    loud = np.flatnonzero(np.sqrt((blocks**2).mean(1)) > FLOOR)
    if not len(loud):
        return wave[:0]
    return wave[max(0, loud[0] * 240 - EDGE): (loud[-1] + 1) * 240 + EDGE]


def speak(teacher, text: str, seed: int) -> tuple[np.ndarray, int] | None:
    """(int16 samples in whole frames, count of frames before the silent tail)."""
    rng = np.random.default_rng(seed)
    parts = []
    for phonemes in teacher.phonemize(text):
        if parts:
            parts.append(np.zeros(GAP, np.float32))
        parts.append(trim(teacher.from_ids(teacher.ids(phonemes), 1.0, rng)))
    wave = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    spoken = -(-len(wave) // FRAME)
    if not 2 <= spoken <= 236:
        return None
    out = np.zeros((spoken + TAIL) * FRAME, np.int16)
    out[: len(wave)] = np.clip(wave * GAIN * 32767, -32767, 32767).astype(np.int16)
    return out, spoken


def shard(teacher, lines: list[str], first: int, path: Path) -> float:
    audio, frames, spoken, index = [], [], [], []
    for number, line in enumerate(lines, first):
        try:
            made = speak(teacher, line, number)
        except Exception as error:  # the teacher's reader fails on odd lines: leave them out
            print("left out", number, repr(error)[:80], flush=True)
            made = None
        if made is None:
            continue
        audio.append(made[0])
        frames.append(len(made[0]) // FRAME)
        spoken.append(made[1])
        index.append(number)
    whole = np.concatenate(audio) if audio else np.zeros(0, np.int16)
    np.save(path.with_suffix(".npy"), whole)
    temporary = path.with_suffix(".part.npz")
    np.savez(temporary, frames=np.array(frames, np.int32), spoken=np.array(spoken, np.int32), index=np.array(index, np.int64))
    os.replace(temporary, path)
    return len(whole) / RATE


def work(task) -> None:
    own, workers, lines, out = task
    os.nice(5)
    from hibari import Hibari

    teacher = Hibari(threads=1)
    for k in range(own, -(-len(lines) // SIZE), workers):
        path = out / f"{k:05d}.npz"
        if not path.exists():
            shard(teacher, lines[k * SIZE: (k + 1) * SIZE], k * SIZE, path)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--texts", type=Path, required=True)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--workers", type=int, default=1)
    arguments.add_argument("--limit", type=int, default=0, help="stop after this many lines")
    a = arguments.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    lines = a.texts.read_text(encoding="utf-8").splitlines()
    lines = lines[: a.limit or None]
    start = time.time()
    tasks = [(w, a.workers, lines, a.out) for w in range(a.workers)]
    if a.workers == 1:
        work(tasks[0])
    else:
        with multiprocessing.get_context("spawn").Pool(a.workers) as pool:
            pool.map(work, tasks, chunksize=1)
    (a.out / "done").touch()
    print(f"synthesis finished in {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
