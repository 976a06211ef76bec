"""Random weights in which no norm, bias, scale or statistic is neutral, and the names of the published files."""

import math
from collections import defaultdict

import torch
from safetensors.torch import save_file


def randomise(model: torch.nn.Module, gen: torch.Generator):
    """Gives every parameter and statistic that begins as a constant a value of its own."""

    def normal(t, std, mean=0.0):
        return mean + std * torch.randn(t.shape, generator=gen)

    for name, p in model.named_parameters():
        if name.endswith("alpha") or ("norm" in name and name.endswith("weight")):
            p.copy_(normal(p, 0.2, 1.0))
        elif "norm" in name and name.endswith("bias"):
            p.copy_(normal(p, 0.2))
        elif name.endswith(".scale"):
            p.copy_(normal(p, 0.1, 0.5))
        elif name.endswith("bias"):
            p.copy_(normal(p, 0.03))
        elif name.endswith("conv.weight") and p.dim() == 3:
            p.copy_(normal(p, 1.5 / math.sqrt(p.shape[1] * p.shape[2])))
        elif name.endswith("convtr.weight") and p.dim() == 3:
            p.copy_(normal(p, 1.5 / math.sqrt(2 * p.shape[0] if p.shape[1] > 1 else 2)))
    for name, b in model.named_buffers():
        if name.endswith("cluster_usage"):
            b.copy_(0.3 + torch.rand(b.shape, generator=gen))
            b[1] = 1e-7  # an entry that was hardly used: the floor of 1e-5 applies
        elif name.endswith("_initialized"):
            b.fill_(1.0)


def fit_codebooks(mimi, pcm: torch.Tensor, gen: torch.Generator, decay: float):
    """Puts the entries where the latents of `pcm` are, each codebook's `decay` as far apart as the one before, so that codes
    depend on the audio."""
    latents = mimi._encode_to_unquantized_latent(pcm)
    for rvq in (mimi.quantizer.rvq_first, mimi.quantizer.rvq_rest):
        x = rvq.input_proj(latents).transpose(1, 2).flatten(0, 1)
        for i, layer in enumerate(rvq.vq.layers):
            book = layer._codebook
            entries = float(x.std(0).mean()) * decay**i * torch.randn(book.embedding_sum.shape, generator=gen)
            if i == 0:
                entries += x.mean(0)
            book.embedding_sum.copy_(entries * book.cluster_usage.clamp(min=1e-5)[:, None])
            book.register_buffer("_embedding", None, persistent=False)


def published(model: torch.nn.Module) -> dict:
    """The state under the names of the published files: projections of several weight sets are stacked."""
    out, stacked = {}, defaultdict(dict)
    for name, value in model.state_dict().items():
        for here, there in ((".in_projs.", ".in_proj_weight"), (".out_projs.", ".out_proj.weight")):
            if here in name:
                prefix, rest = name.split(here)
                stacked[prefix + there][int(rest.split(".")[0])] = value
                break
        else:
            out[name] = value
    for name, parts in stacked.items():
        out[name] = torch.cat([parts[i] for i in sorted(parts)])
    return out


def save(path, tensors: dict):
    save_file({k: v.detach().contiguous().clone() for k, v in tensors.items()}, str(path))


def sound(streams: int, samples: int, rate: int, gen: torch.Generator) -> torch.Tensor:
    """Tones that come and go over a little noise, on the grid of 16-bit samples: [streams, 1, samples]."""
    t = torch.arange(samples) / rate
    x = 0.02 * torch.randn(streams, 1, samples, generator=gen)
    for b in range(streams):
        for _ in range(5):
            f, phase, beat = torch.rand(3, generator=gen)
            loud = 0.5 + 0.5 * torch.sin(2 * math.pi * (0.3 + 2 * beat) * t)
            x[b, 0] += 0.15 * loud * torch.sin(2 * math.pi * (0.004 + 0.12 * f) * rate * t + 6.28 * phase)
    return (x.clamp(-0.99, 0.99) * 32768).round() / 32768
