"""Writes the fixtures of the codec: small random Mimis and what the package makes of sound and codes, in streams and slots.

    NO_TORCH_COMPILE=1 python mimi_make.py --out ../../crates/voce-models/tests/fixtures/kyutai [--seed 0]
"""

import argparse
import json
from pathlib import Path

import torch
from moshi.models import loaders

from mimi_cases import CASES
from randomise import fit_codebooks, published, randomise, save, sound

torch.set_grad_enabled(False)


def make_mimi(path: Path, config: dict, gen: torch.Generator, decay: float = 0.8):
    """A random Mimi, written in the published naming and read back by the package's own loader."""
    total = config["quantizer"]["n_q"]
    mimi = loaders.get_mimi(None, config, num_codebooks=total)
    randomise(mimi, gen)
    frame = mimi.frame_size
    fit_codebooks(mimi, sound(3, 20 * frame, config["sample_rate"], gen), gen, decay)
    last = mimi.decoder.model[-1].conv.conv
    loud = float(mimi.decode(mimi.encode(sound(2, 10 * frame, config["sample_rate"], gen))).std())
    last.weight.mul_(0.2 / loud)
    save(path, published(mimi))
    return loaders.get_mimi(path, config, num_codebooks=total)


def margins(mimi, latent: torch.Tensor) -> torch.Tensor:
    """How much farther the second nearest entry is than the nearest, for every code: [streams, codebooks, frames]."""
    out = []
    for rvq in (mimi.quantizer.rvq_first, mimi.quantizer.rvq_rest):
        x = rvq.input_proj(latent).transpose(1, 2)
        for layer in rvq.vq.layers[: rvq.n_q]:
            entries = layer._codebook.embedding
            d = torch.cdist(x, entries[None].expand(len(x), -1, -1))
            two = d.topk(2, dim=-1, largest=False).values
            out.append(two[..., 1] - two[..., 0])
            x = x - entries[d.argmin(-1)]
    return torch.stack(out, 1)


def streams(mimi, pcm: torch.Tensor, fewer: int) -> dict:
    """Every stage of streams side by side, frame by frame."""
    size = mimi.frame_size
    latent, codes, quantized, decoded, short = [], [], [], [], []
    with mimi.streaming(len(pcm)):
        for chunk in pcm.split(size, dim=-1):
            latent.append(mimi._encode_to_unquantized_latent(chunk).clone())
            codes.append(mimi.quantizer.encode(latent[-1]))
            quantized.append(mimi.decode_latent(codes[-1]))
            decoded.append(mimi.decode(codes[-1]).clone())
    with mimi.streaming(len(pcm)):
        for c in codes:
            short.append(mimi.decode(c[:, :fewer]).clone())
    latent = torch.cat(latent, -1)
    return {"pcm": pcm[:, 0], "latent": latent, "codes": torch.cat(codes, -1).int(), "margin": margins(mimi, latent),
            "quantized": torch.cat(quantized, -1), "decoded": torch.cat(decoded, -1)[:, 0],
            f"decoded_{fewer}": torch.cat(short, -1)[:, 0]}


def slots(mimi, rate: int, gen: torch.Generator, count: int = 3, frames: int = 24) -> dict:
    """Slots that are active in some frames and are started anew in the middle."""
    size, total = mimi.frame_size, mimi.num_codebooks
    pcm = sound(count, frames * size, rate, gen)
    active = torch.rand(frames, count, generator=gen) < 0.7
    reset = torch.zeros(frames, count, dtype=torch.bool)
    reset[9, 1] = reset[13, 0] = reset[14, 2] = reset[20, 1] = True
    active |= reset
    codes, margin, decoded = torch.full((frames, count, total), -1), torch.zeros(frames, count, total), torch.zeros(frames, count, size)
    with mimi.streaming(count):
        for t, chunk in enumerate(pcm.split(size, dim=-1)):
            if reset[t].any():
                mimi.reset_streaming(reset_mask=reset[t])
            mimi.set_exec_mask(active[t])
            latent = mimi._encode_to_unquantized_latent(chunk)
            found = mimi.quantizer.encode(latent)
            near, heard = margins(mimi, latent), mimi.decode(found)
            for b in range(count):
                if active[t, b]:
                    codes[t, b], margin[t, b], decoded[t, b] = found[b, :, 0], near[b, :, 0], heard[b, 0]
    out = {"pcm": pcm[:, 0], "active": active.to(torch.int32), "reset": reset.to(torch.int32), "codes": codes.int(),
           "margin": margin, "decoded": decoded}
    return {f"slots/{k}": v for k, v in out.items()}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", type=Path, required=True)
    ap.add_argument("--seed", type=int, default=0)
    a = ap.parse_args()
    torch.set_num_threads(1)
    for number, (name, (config, frames, fewer)) in enumerate(CASES.items()):
        gen = torch.Generator().manual_seed(1000 * a.seed + number)
        folder = a.out / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "mimi_config.json").write_text(json.dumps(config, indent=1) + "\n")
        mimi = make_mimi(folder / "mimi.safetensors", config, gen)
        pcm = sound(2, frames * mimi.frame_size, config["sample_rate"], gen)
        dump = streams(mimi, pcm, fewer) | slots(mimi, config["sample_rate"], gen)
        save(folder / "dump.safetensors", dump)
        print(name, "smallest margin", float(dump["margin"].min()), "different codes", int(dump["codes"].unique().numel()))


if __name__ == "__main__":
    main()
