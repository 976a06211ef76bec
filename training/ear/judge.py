"""Word error rates of an exported folder, greedy, with the streaming masks of each look-ahead.

    python judge.py --model nano-ear --packs dev=packs/dev.npz voice=packs/voice.npz [--ahead 0 1 6 13] [--heard DIR]

int8 folders are judged with their weights multiplied out. Text is compared in the ear's own form (text.py).
"""

import argparse
from pathlib import Path

import numpy as np
import sentencepiece
import torch
from safetensors.torch import load_file

from decode import errors, greedy
from export import dequantised
from model import Ear
from opus import library, read_pack
from sound import HOP, Sound


def load(folder: Path) -> Ear:
    ear = Ear()
    ear.load_shipped(dequantised(load_file(folder / "model.safetensors")))
    return ear.eval()


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--model", type=Path, required=True)
    p.add_argument("--packs", nargs="+", required=True, help="NAME=PACK")
    p.add_argument("--ahead", type=int, nargs="+", default=[0, 1, 6, 13])
    p.add_argument("--limit", type=int, default=0)
    p.add_argument("--heard", type=Path, help="folder for what was heard")
    p.add_argument("--libopus")
    a = p.parse_args()
    ear = load(a.model)
    sp = sentencepiece.SentencePieceProcessor(model_file=str(a.model / "tokenizer.model"))
    sound = Sound(torch.device("cpu"), 16000)
    for name, path in (x.split("=") for x in a.packs):
        items = sorted(read_pack(Path(path), library(a.libopus)), key=lambda x: len(x[0]))
        items = items[:: max(1, len(items) // a.limit)][: a.limit] if a.limit else items
        features = [sound.mel(torch.from_numpy(w.astype(np.float32) / 32768)[None, : len(w) // HOP * HOP], torch.tensor([len(w) // HOP * HOP])) for w, _ in items]
        line = []
        for ahead in a.ahead:
            wrong = words = 0
            heard = []
            for i in range(0, len(items), 8):
                part = features[i: i + 8]
                n = torch.cat([f for _, f in part])
                mel = torch.zeros(len(part), int(n.max()), 80)
                for r, (m, f) in enumerate(part):
                    mel[r, : int(f)] = m[0, : int(f)]
                with torch.no_grad():
                    x, lengths = ear.encoder(mel, n, torch.full((len(part),), ahead))
                for (_, text), tokens in zip(items[i: i + 8], greedy(ear, x, lengths)):
                    got = sp.decode(tokens)
                    heard.append(f"{text}\t{got}")
                    wrong += errors(text.split(), got.split())
                    words += len(text.split())
            line.append(f"R={ahead} {100 * wrong / words:.1f} %")
            if a.heard:
                a.heard.mkdir(parents=True, exist_ok=True)
                (a.heard / f"{name}-{ahead}.tsv").write_text("\n".join(heard) + "\n")
        print(name, len(items), "utterances", words, "words:", ", ".join(line), flush=True)


if __name__ == "__main__":
    main()
