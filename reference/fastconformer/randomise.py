"""Weights in which no norm, bias or statistic is neutral."""

import math

import torch


@torch.no_grad()
def randomise(model, seed: int, gain: float = 1.6):
    g = torch.Generator().manual_seed(seed)
    draw = lambda p: torch.randn(p.shape, generator=g)
    for name, p in model.named_parameters():
        if "norm" in name:
            p.copy_(1 + 0.2 * draw(p) if name.endswith("weight") else 0.1 * draw(p))
        elif p.ndim == 1 or name.endswith(("bias_u", "bias_v")):
            p.copy_(0.1 * draw(p))
        else:
            p.copy_(draw(p) * gain / math.sqrt(p[0].numel()))
    for name, b in model.named_buffers():
        if name.endswith("running_mean"):
            b.copy_(0.3 * draw(b))
        elif name.endswith("running_var"):
            b.copy_(0.5 + torch.rand(b.shape, generator=g))
        elif name.endswith("num_batches_tracked"):
            b.fill_(1000)
    sub = model.encoder.subsampling
    stem = sub.conv_in if hasattr(sub, "conv_in") else sub.layers[0]
    # A raw log-mel has a large constant part; without this it would drown the signal.
    stem.weight.sub_(stem.weight.mean((2, 3), keepdim=True)).mul_(3.0)
    if not model.encoder.config.scale_input:
        sub.linear.weight.mul_(2.0)
    if hasattr(model, "decoder"):
        model.decoder.embedding.weight[model.config.blank_token_id].zero_()
    return model.eval()


@torch.no_grad()
def round_bf16(model):
    for t in [*model.parameters(), *model.buffers()]:
        if t.is_floating_point():
            t.copy_(t.to(torch.bfloat16).float())
