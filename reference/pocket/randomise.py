"""Random weights in which nothing is neutral.

Every norm, bias, layer scale and statistic gets a value that changes the output, so that a missing or
misplaced one shows. All values are rounded to bfloat16, as in the published files, and kept as float32.
"""

import math

import torch

NEVER = -32.0  # an EOS bias that no logit overcomes, small enough to leave the logit its digits


def randomise(model: torch.nn.Module, seed: int, latent_gain: float = 0.7, eos_bias: float = NEVER):
    """Fill every tensor of `model.state_dict()` in place."""
    gen = torch.Generator().manual_seed(seed)

    def normal(t, std, mean=0.0):
        t.copy_(torch.randn(t.shape, generator=gen) * std + mean)

    def uniform(t, lo, hi):
        t.copy_(torch.rand(t.shape, generator=gen) * (hi - lo) + lo)

    with torch.no_grad():
        for name, t in model.state_dict().items():
            leaf = name.rsplit(".", 1)[-1]
            if leaf == "freqs":
                pass
            elif name.endswith("emb_std"):
                uniform(t, 0.5, 1.5)
            elif name.endswith("emb_mean"):
                normal(t, 0.3)
            elif name.endswith("bos_emb"):
                normal(t, 1.0)
            elif name.endswith("bos_before_voice") or "conditioner.embed" in name:
                normal(t, 0.5)
            elif name.endswith("speaker_proj_weight"):
                normal(t, 0.5 / math.sqrt(t.shape[1]))
            elif name.endswith("out_eos.bias"):
                t.fill_(eos_bias)
            elif "layer_scale" in name:
                uniform(t, 0.1, 0.6)
            elif leaf == "alpha" or ("norm" in name or "in_ln" in name) and leaf == "weight":
                normal(t, 0.2, 1.0)
            elif leaf == "bias" and name.startswith("mimi.decoder.model") and t.numel() == 1:
                normal(t, 0.01)
            elif leaf == "bias":
                normal(t, 0.1)
            elif "convtr" in name:  # [in, out/groups, kernel]: two taps of every input reach an output
                fan = 2 * t.shape[0] / (t.shape[0] if "upsample" in name else 1)
                normal(t, 1.3 / math.sqrt(fan))
            elif "adaLN_modulation" in name:
                normal(t, 0.4 / math.sqrt(t.shape[1]))
            elif "final_layer.linear" in name:
                normal(t, latent_gain / math.sqrt(t.shape[1]))
            elif name.startswith("mimi.decoder.model") and t.shape[0] == 1:  # the last layer: audible, not clipped
                normal(t, 0.05 / math.sqrt(t[0].numel()))
            else:
                normal(t, 1.2 / math.sqrt(t[0].numel()))
            t.copy_(t.to(torch.bfloat16).to(torch.float32))
