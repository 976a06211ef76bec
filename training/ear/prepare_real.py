"""Packs the recorded corpora as Opus (see opus.py).

    python prepare_real.py --speech speech/train --speechocean repo.git --an4 repo.git --ljspeech repo.git --out packs

`--speech` is a folder with transcripts.tsv and Ogg Opus files (kept packet for packet); the others are bare
Git repositories of the public corpora, read with `git cat-file`. A recording whose text is a line of `--unseen` is left out.
"""

import argparse
import csv
import io
import re
import subprocess
from math import gcd
from pathlib import Path

import numpy as np
import soundfile
from scipy.signal import resample_poly

from opus import RATE, encode, from_ogg, library, write_pack
from text import plain


class Repository:
    def __init__(self, path: Path):
        self.process = subprocess.Popen(["git", "-C", str(path), "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def read(self, name: str) -> bytes:
        self.process.stdin.write(f"HEAD:{name}\n".encode())
        self.process.stdin.flush()
        head = self.process.stdout.readline().split()
        if len(head) < 3:
            raise FileNotFoundError(name)
        body = self.process.stdout.read(int(head[2]))
        self.process.stdout.read(1)
        return body


def samples(raw: bytes) -> np.ndarray:
    wave, rate = soundfile.read(io.BytesIO(raw), dtype="float32")
    if wave.ndim > 1:
        wave = wave.mean(1)
    if rate != RATE:
        g = gcd(rate, RATE)
        wave = resample_poly(wave, RATE // g, rate // g)
    return np.clip(wave * 32767, -32767, 32767).astype(np.int16)


def spoken(lib, read, names_and_texts, rate: int):
    items, missing = [], 0
    for name, text in names_and_texts:
        text = plain(text)
        try:
            wave = samples(read(name))
        except Exception:
            missing += 1
            continue
        if not text or not 0.4 * RATE < len(wave) < 17.4 * RATE:
            continue
        packets, skip = encode(lib, wave, rate)
        items.append((packets, skip, len(wave), text))
    print("left out", missing)
    return items


def main() -> None:
    p = argparse.ArgumentParser()
    for name in ("speech", "speechocean", "an4", "ljspeech", "out"):
        p.add_argument("--" + name, type=Path, required=name == "out")
    p.add_argument("--unseen", type=Path, nargs="*", default=[])
    p.add_argument("--rate", type=int, default=12000)
    a = p.parse_args()
    unseen = {plain(line.split("\t")[-1]) for path in a.unseen for line in path.read_text(encoding="utf-8").splitlines()}
    a.out.mkdir(parents=True, exist_ok=True)
    lib = library()

    def put(name: str, items) -> None:
        items = [item for item in items if item[3] not in unseen]
        write_pack(a.out / f"{name}.npz", items)
        print(name, len(items), f"{sum(n for _, _, n, _ in items) / RATE / 3600:.2f} h", (a.out / f"{name}.npz").stat().st_size // 1000, "kB", flush=True)

    if a.speech:
        items = []
        for line in (a.speech / "transcripts.tsv").read_text().splitlines():
            name, text = line.split("\t")
            items.append((*from_ogg(a.speech / name), plain(text)))
        put("libri-a", items[0::2])
        put("libri-b", items[1::2])
    if a.speechocean:
        repo = Repository(a.speechocean)
        pairs = []
        for part in ("train", "test"):
            where = dict(line.split() for line in repo.read(f"{part}/wav.scp").decode().splitlines())
            pairs += [(where[k], t) for k, t in (line.split("\t") for line in repo.read(f"{part}/text").decode().splitlines())]
        put("speechocean", spoken(lib, repo.read, pairs, a.rate))
    if a.an4:
        repo, pairs = Repository(a.an4), []
        for part in ("train", "test"):
            names = repo.read(f"an4/etc/an4_{part}.fileids").decode().splitlines()
            texts = repo.read(f"an4/etc/an4_{part}.transcription").decode().splitlines()
            pairs += [(f"an4/wav/{n}.sph", re.sub(r"</?s>|\(.*\)", "", t)) for n, t in zip(names, texts)]
        put("an4", spoken(lib, repo.read, pairs, a.rate))
    if a.ljspeech:
        repo = Repository(a.ljspeech)
        rows = csv.reader(io.StringIO(repo.read("LJSpeech-1.1/metadata.csv").decode()), delimiter="|", quoting=csv.QUOTE_NONE)
        put("ljspeech", spoken(lib, repo.read, [(f"LJSpeech-1.1/wavs/{r[0]}.wav", r[-1]) for r in rows], a.rate))


if __name__ == "__main__":
    main()
