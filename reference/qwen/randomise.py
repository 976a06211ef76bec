"""Random weights in which no norm, bias, scale or statistic is neutral."""

import math

import torch


def randomise(model: torch.nn.Module, seed: int, bf16: bool):
    """Fills every parameter and codebook buffer in place; `bf16` rounds the values as the published files do."""
    gen = torch.Generator().manual_seed(seed)
    statistics = [(n, b) for n, b in model.named_buffers() if n.endswith(("cluster_usage", "embed_sum"))]
    with torch.no_grad():
        for name, t in [*model.named_parameters(), *statistics]:
            value = draw(name, t, gen)
            t.copy_(value.bfloat16().float() if bf16 else value)


def draw(name: str, t: torch.Tensor, gen) -> torch.Tensor:
    def normal(std, mean=0.0):
        return torch.randn(t.shape, generator=gen) * std + mean

    if name.endswith("cluster_usage"):
        usage = torch.rand(t.shape, generator=gen) * 2.5 + 0.5
        usage[1] = 1e-7  # an entry that was hardly used: the floor of 1e-5 applies
        return usage
    if name.endswith(("embedding_sum", "embed_sum")):
        value = normal(1.0)
        value[1] *= 1e-5
        return value
    if name.endswith((".alpha", ".beta")):
        return normal(0.3)
    if "layer_scale" in name or name.endswith("gamma"):
        return normal(0.2, 0.5)
    if "norm" in name and t.ndim == 1:
        return normal(0.1, 1.0) if name.endswith("weight") else normal(0.1)
    if "embedding" in name and t.ndim == 2:
        return normal(0.7)
    if t.ndim == 1:
        return normal(0.05)
    std = 1.0 / math.sqrt(t[0].numel())
    if "decoder.decoder." in name or name.startswith("decoder."):
        if ".conv2." in name:
            std *= 0.4
        if t.shape[0] == 1:  # the last layer: audible, seldom clipped
            std *= 0.1
    if "codec_head" in name or "lm_head" in name:
        std *= 2.5
    return normal(std)
