"""Loads the small folders again and compares; the quick test that a checkout of the fixtures is whole.

python check.py DIR
"""

import json
import os
import sys
import warnings
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")
import audio
import dump
import models
import search
import torch
from cases import CASES
from safetensors.torch import load_file
from transformers import AutoTokenizer


def near(label: str, a: torch.Tensor, b: torch.Tensor) -> bool:
    error = float((a - b).abs().max()) if a.shape == b.shape else float("inf")
    print(f"{'ok  ' if error < 1e-5 else 'FAIL'} {label} {error:.1e}")
    return error < 1e-5


@torch.no_grad()
def main(root: Path) -> bool:
    torch.set_num_threads(1)
    good = True
    for name, spec in CASES.items():
        folder = root / name
        report = json.loads((folder / "expected.json").read_text())
        want = load_file(folder / "expected.safetensors")
        model = (
            models.FORMS[spec["class"]][1]
            .from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
            .eval()
        )
        mel = models.features(spec, audio.read_wav(root / report["audio"]))
        if models.is_streaming(spec):
            for r in spec["lookaheads"]:
                good &= near(
                    f"{name} R{r}",
                    dump.encode(model, mel, False, None, "", num_lookahead_tokens=r),
                    want[f"R{r}/encoder"],
                )
        else:
            good &= near(name, dump.encode(model, mel, False, None, ""), want["encoder"])
        runs = report.get("runs", [report])
        tok = AutoTokenizer.from_pretrained(folder)
        for run in runs:
            text = tok.decode(run["greedy"]["tokens"], group_tokens=False)
            same = text == run["text"]
            print(f"{'ok  ' if same else 'FAIL'} {name} text {run['text']!r} {'' if same else repr(text)}")
            good &= same
        if (folder / "search.json").exists() and spec["class"] != "ctc":
            found = json.loads((folder / "search.json").read_text())
            nbest = search.malsd_nbest(search.Transducer(model), want[found["input"]], 4)
            kept = next(r for r in found["runs"] if r["name"] == "malsd4")["nbest"]
            same = [h["tokens"] for h in nbest] == [h["tokens"] for h in kept]
            print(f"{'ok  ' if same else 'FAIL'} {name} malsd4")
            good &= same
    return good


if __name__ == "__main__":
    sys.exit(not main(Path(sys.argv[1])))
