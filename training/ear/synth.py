"""Fills shard folders with speech at 16 kHz: recorded packs, and text spoken by several synthesisers.

    python synth.py packs   --packs packs --out shards --workers 4
    python synth.py kokoro  --texts texts --kokoro kokoro --hibari DIR --out shards --workers 6
    python synth.py hibari  --texts texts --hibari DIR --out shards --workers 5
    python synth.py nano    --texts texts --voce voce --model nano-voice --out shards --workers 2
    python synth.py flite   --texts texts --flite DIR --out shards --workers 1

Shard OUT/SOURCE/K.npz: `audio` (int16, utterances end to end), `lengths`, `texts`. What a line sounds like
depends only on the source, the line's number and its text. `--offset` leaves out lines that were spoken before; nano-voice
reads nano.txt where there is one (make_texts.py joins sentences in it), else short.txt.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import time
import wave as wave_file
from pathlib import Path

import numpy as np

from text import plain

RATE, SIZE, LONGEST = 16000, 64, int(17.2 * 16000)
FLITE = ("awb", "kal16", "rms", "slt")


def write(path: Path, waves: list[np.ndarray], texts: list[str]) -> None:
    temporary = path.with_name(path.stem + ".part.npz")
    np.savez(temporary, audio=np.concatenate(waves) if waves else np.zeros(0, np.int16),
             lengths=np.array([len(w) for w in waves], np.int64), texts=np.array(texts if texts else [""])[: len(texts)])
    os.replace(temporary, path)


def filters(half: int = 30):
    """Two phases of a low-pass at 7.7 kHz for 24 kHz -> 16 kHz."""
    out = []
    for shift in (0.0, 1.5):
        t = np.arange(-half, half + 1) - shift
        cut = 7700 / 12000
        out.append(cut * np.sinc(cut * t) * np.cos(np.pi * np.clip(t / (half + 2), -1, 1) / 2) ** 2)
    return np.stack(out).astype(np.float32)


def down(wave, torch, kernel):
    """24 kHz -> 16 kHz, a float tensor."""
    x = torch.nn.functional.pad(wave[None, None], (30, 33))
    return torch.nn.functional.conv1d(x, kernel[:, None], stride=3)[0].T.reshape(-1)[: len(wave) * 2 // 3]


def pcm(wave: np.ndarray, level: float = 0.9) -> np.ndarray:
    return (np.clip(wave * level, -1, 1) * 32767).astype(np.int16)


def read_wav(path: Path) -> tuple[np.ndarray, int]:
    with wave_file.open(str(path)) as f:
        return np.frombuffer(f.readframes(f.getnframes()), "<i2"), f.getframerate()


class Kokoro:
    size = 24

    def __init__(self, a):
        import torch
        sys.path.insert(0, str(a.hibari))
        from kokoro import Kokoro as Network
        torch.set_num_threads(1)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = False
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.torch, self.net = torch, Network(a.kokoro, device, torch.float32 if a.full else None)
        self.again = lambda: Network(a.kokoro, device, torch.float32)
        self.vocabulary = json.loads((a.hibari / "hibari/assets/vocab.json").read_text())
        self.phonemes = (a.texts / "long.ph").read_text(encoding="utf-8").splitlines()
        self.kernel = torch.from_numpy(filters()).to(device)
        english = [i for i, n in enumerate(self.net.names) if n[0] in "ab"]
        self.english, self.other = english, [i for i in range(len(self.net.names)) if i not in english]

    def __call__(self, number: int, line: str):
        ids = [0, *[self.vocabulary[c] for c in self.phonemes[number] if c in self.vocabulary], 0]
        if not 6 <= len(ids) <= 400:
            return None
        rng = np.random.default_rng(number)
        pick = lambda: int(rng.choice(self.english if rng.random() < 0.8 else self.other))
        place = min(len(ids) // 8, 49)
        style = self.net.voices[pick(), place]
        if rng.random() < 0.55:
            part = float(rng.uniform(0.25, 0.75))
            style = part * style + (1 - part) * self.net.voices[pick(), place]
        wave = self.net(ids, style, float(rng.uniform(0.82, 1.28)))
        wave = down(wave, self.torch, self.kernel).cpu().numpy()
        if not np.isfinite(wave).all():
            if self.net.half != self.torch.float32:
                self.net = self.again()
            raise ValueError("not finite")
        return pcm(wave)


class Hibari:
    size = 128

    def __init__(self, a):
        import torch
        sys.path.insert(0, str(a.hibari))
        from hibari import Hibari as Teacher
        torch.set_num_threads(1)
        self.torch, self.teacher, self.kernel = torch, Teacher(threads=1), torch.from_numpy(filters())

    def __call__(self, number: int, line: str):
        rng = np.random.default_rng(number)
        speed = float(rng.uniform(0.85, 1.2))
        parts = []
        for phonemes in self.teacher.phonemize(line):
            if parts:
                parts.append(np.zeros(int(24000 * rng.uniform(0.05, 0.4)), np.float32))
            parts.append(self.teacher.from_ids(self.teacher.ids(phonemes), speed, rng))
        if not parts:
            return None
        return pcm(down(self.torch.from_numpy(np.concatenate(parts)), self.torch, self.kernel).numpy() * 1.4)


class Nano:
    size = 128

    def __init__(self, a):
        import torch
        torch.set_num_threads(1)
        self.torch, self.kernel, self.voce = torch, torch.from_numpy(filters()), str(a.voce.resolve())
        self.model = ["-m", str(a.model.resolve())] if a.model else []

    def __call__(self, number: int, line: str):
        raw = subprocess.run([self.voce, "say", line, "-o", "-", "--format", "pcm", "--threads", "1", "--seed", str(number), "-q", *self.model],
                             capture_output=True, timeout=30).stdout
        wave = np.frombuffer(raw[: len(raw) // 2 * 2], "<i2").astype(np.float32) / 32768
        return pcm(down(self.torch.from_numpy(wave), self.torch, self.kernel).numpy(), 1.0) if len(wave) > 4000 else None


class Flite:
    size = 128

    def __init__(self, a):
        self.folder, self.scratch = a.flite, a.out / f"flite-{os.getpid()}.wav"

    def __call__(self, number: int, line: str):
        rng = np.random.default_rng(number)
        voice = FLITE[number % len(FLITE)]
        subprocess.run([str(self.folder / f"flite_cmu_us_{voice}"), "--setf", f"duration_stretch={rng.uniform(0.85, 1.3):.2f}",
                        "-t", line, "-o", str(self.scratch)], env={"LD_LIBRARY_PATH": str(self.folder)}, capture_output=True, timeout=30)
        wave, rate = read_wav(self.scratch)
        return wave if rate == RATE else None


def speak(task) -> None:
    kind, own, a = task
    os.nice(10)
    voice = {"kokoro": Kokoro, "hibari": Hibari, "nano": Nano, "flite": Flite}[kind](a)
    name = "long" if kind == "kokoro" else "nano" if kind == "nano" and (a.texts / "nano.txt").exists() else "short"
    lines = (a.texts / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    order = list(range(len(lines)))
    offset = a.offset if a.offset >= 0 else {"kokoro": 0, "hibari": 0, "nano": len(lines) // 2, "flite": len(lines) * 3 // 4}[kind]
    order = (order[offset:] + order[:offset])[: a.limit or None]
    out = a.out / kind
    failed = 0
    for k in range(own, -(-len(order) // voice.size), a.workers):
        if a.deadline and time.time() > a.deadline:
            return
        path = out / f"{k:05d}.npz"
        if path.exists():
            continue
        waves, texts = [], []
        for number in order[k * voice.size: (k + 1) * voice.size]:
            label = plain(lines[number])
            try:
                wave = voice(number, lines[number]) if label else None
            except Exception as error:  # a synthesiser may fail on an odd line: leave it out
                failed += 1
                if failed < 4:
                    print(kind, "left out", number, repr(error)[:200], flush=True)
                continue
            if wave is not None and 4000 < len(wave) <= LONGEST:
                waves.append(wave)
                texts.append(label)
        write(path, waves, texts)


def unpack(task) -> None:
    path, a = task
    from opus import library, read_pack
    source = path.stem.split("-")[0]
    (a.out / source).mkdir(parents=True, exist_ok=True)
    waves, texts, k = [], [], 0
    for wave, text in read_pack(path, library(a.libopus)):
        if len(wave) <= LONGEST + 4000 and text:
            waves.append(wave)
            texts.append(text)
        if len(waves) == SIZE:
            write(a.out / source / f"{path.stem}-{k:05d}.npz", waves, texts)
            waves, texts, k = [], [], k + 1
    if waves:
        write(a.out / source / f"{path.stem}-{k:05d}.npz", waves, texts)


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("kind", choices=["packs", "kokoro", "hibari", "nano", "flite"])
    for name in ("texts", "packs", "kokoro", "hibari", "voce", "model", "flite"):
        p.add_argument("--" + name, type=Path)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--libopus")
    p.add_argument("--workers", type=int, default=1)
    p.add_argument("--limit", type=int, default=0, help="stop after this many lines")
    p.add_argument("--offset", type=int, default=-1, help="the line to begin with (each source has its own)")
    p.add_argument("--deadline", type=float, default=0, help="stop at this Unix time")
    p.add_argument("--full", action="store_true", help="Kokoro in float32")
    a = p.parse_args()
    began = time.time()
    if a.kind == "packs":
        tasks, work = [(path, a) for path in sorted(a.packs.glob("*.npz"))], unpack
    else:
        (a.out / a.kind).mkdir(parents=True, exist_ok=True)
        tasks, work = [(a.kind, w, a) for w in range(a.workers)], speak
    if a.workers == 1:
        for task in tasks:
            work(task)
    else:
        with multiprocessing.get_context("spawn").Pool(a.workers) as pool:
            pool.map(work, tasks, chunksize=1)
    print(f"{a.kind} finished in {time.time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
