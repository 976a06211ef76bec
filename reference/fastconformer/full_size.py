"""Full-size random checkpoints in published layout, with what transformers computes for one clip of ten seconds.

    python full_size.py --shape stream120|stream600|tdt600 --out DIR [--seed 0]

Heads are fitted for a moment, so that tokens come at the rate of speech. The folder gets the published files,
`audio.wav`, `expected.safetensors` and `expected.json` (README.md).
"""

import argparse
import json
import os
import time
import warnings
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")
import audio
import dump
import models
import numpy as np
import safetensors.torch
import search
import torch

SECONDS = 10.0
SHAPES = {
    "stream120": {
        "class": "streaming",
        "encoder": {
            "hidden_size": 512,
            "num_hidden_layers": 17,
            "num_attention_heads": 8,
            "intermediate_size": 2048,
            "num_mel_bins": 80,
            "sliding_window": 71,
            "default_num_lookahead_tokens": 13,
        },
        "model": {"decoder_hidden_size": 640, "num_decoder_layers": 1},
        "lookaheads": [13, 6, 1, 0],
    },
    "stream600": {
        "class": "streaming",
        "encoder": {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 8,
            "intermediate_size": 4096,
            "num_mel_bins": 128,
            "sliding_window": 71,
            "default_num_lookahead_tokens": 13,
        },
        "model": {"decoder_hidden_size": 640, "num_decoder_layers": 2},
        "lookaheads": [13, 6, 1, 0],
    },
    "tdt600": {
        "class": "tdt",
        "encoder": {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 8,
            "intermediate_size": 4096,
            "num_mel_bins": 128,
            "attention_bias": False,
            "convolution_bias": False,
            "scale_input": False,
        },
        "model": {"decoder_hidden_size": 640, "num_decoder_layers": 2},
        "symbols": ["<|nospeech|>", "<pad>"],
        "steps": 250,
    },
}
FIT_LOOKAHEAD = 6


def words(count: int, seed: int) -> list[str]:
    rng = np.random.RandomState(seed)
    heads, hearts, tails = (
        "b c d f g h j k l m n p r s t v w st tr pl sh".split(),
        "a e i o u ai ea ou".split(),
        "n r s t l m nd st".split(),
    )
    pick = lambda part: part[rng.randint(len(part))]
    syllable = lambda: pick(heads) + pick(hearts) + (pick(tails) if rng.rand() < 0.5 else "")
    return ["".join(syllable() for _ in range(rng.randint(1, 4))) for _ in range(count)]


@torch.no_grad()
def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--shape", required=True, choices=SHAPES)
    ap.add_argument("--out", required=True, type=Path)
    ap.add_argument("--seed", type=int, default=0)
    a = ap.parse_args()
    torch.set_num_threads(1)
    began = time.time()
    spec = {"vocabulary": 1024, "steps": 450, "lr": 1.5e-3} | SHAPES[a.shape]
    said = words(4000, a.seed)
    spec["train_text"] = [" ".join(said[i : i + 8]) for i in range(0, len(said), 8)]
    spec["text"] = " ".join(said[:16])
    spec["fit_lookaheads"] = [FIT_LOOKAHEAD]
    pcm = audio.speech(SECONDS, 11 + a.seed)
    a.out.mkdir(parents=True, exist_ok=True)
    audio.write_wav(a.out / "audio.wav", pcm)
    x = audio.read_wav(a.out / "audio.wav")
    model, pieces, _tokenizer, _spm = models.build(spec, a.out, x, a.seed)
    print(
        f"built {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters in {time.time() - began:.0f} s",
        flush=True,
    )

    mel = models.features(spec, x)
    out: dump.Tensors = {}
    report = {
        "shape": a.shape,
        "seed": a.seed,
        "audio": "audio.wav",
        "mel_frames": mel.shape[0],
        "pieces": pieces.size,
        "blank": pieces.size,
    }
    p = search.Transducer(model)

    def taps(prefix: str, **kwargs) -> torch.Tensor:
        seen: dump.Tensors = {}
        hidden = dump.encode(model, mel, True, seen, prefix, **kwargs)
        middle = spec["encoder"]["num_hidden_layers"] // 2
        for key in ("subsampling", "layer.0", f"layer.{middle}", "encoder"):
            out[prefix + key] = seen[prefix + key]
        moved = dump.encode(
            model,
            mel + 1e-5 * torch.randn(mel.shape, generator=torch.Generator().manual_seed(1)),
            False,
            None,
            "",
            **kwargs,
        )
        report.setdefault("sensitivity", {})[prefix or "offline"] = float((moved - hidden).abs().max()) / 1e-5
        return hidden

    def rate(hidden: torch.Tensor) -> float:
        return len(search.greedy(p, model.encoder_projector(hidden)).tokens) / (hidden.shape[0] * 0.08)

    other = models.features(spec, audio.speech(SECONDS, 99).astype(np.float32) / 32768.0)
    if models.is_streaming(spec):
        r = FIT_LOOKAHEAD
        hidden = taps(f"R{r}/", num_lookahead_tokens=r)
        enc = model.encoder_projector(hidden)
        g = search.greedy(p, enc)
        streamed, found, sizes = dump.stream(model, mel, r, [], {}, "", model.encoder_projector)
        out[f"R{r}/enc_proj"] = enc
        report |= {
            "left": spec["encoder"]["sliding_window"] - 1,
            "lookahead": r,
            "chunks": sizes,
            "stream_error": float((streamed - hidden[: streamed.shape[0]]).abs().max()),
            "stream": found,
        }
        report["other_clip_tokens_per_second"] = rate(
            dump.encode(model, other, False, None, "", num_lookahead_tokens=r)
        )
    else:
        hidden = taps("")
        enc = model.encoder_projector(hidden)
        g = search.greedy(p, enc)
        out["enc_proj"] = enc
        report["other_clip_tokens_per_second"] = rate(dump.encode(model, other, False, None, ""))
    report |= {"greedy": g.report(), "margin": g.margin, "text": pieces.decode(g.tokens), "fitted_to": spec["text"]}
    safetensors.torch.save_file({k: v.contiguous().clone() for k, v in out.items()}, a.out / "expected.safetensors")
    (a.out / "expected.json").write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n")
    brief = {
        k: report.get(k)
        for k in ("text", "fitted_to", "margin", "stream_error", "sensitivity", "other_clip_tokens_per_second")
    }
    print(json.dumps(brief | {"seconds": round(time.time() - began)}, ensure_ascii=False, indent=1))


if __name__ == "__main__":
    main()
