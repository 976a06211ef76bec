"""Shared by the generators of the language models: random weights that hide nothing, public names, taps."""
import collections
import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file

torch.set_grad_enabled(False)


def randomise(model: torch.nn.Module, gen: torch.Generator) -> None:
    """No weight is neutral: norms are not one, biases and scales are not nothing."""
    for name, p in model.named_parameters():
        if name.endswith("alpha") or ("norm" in name and name.endswith("weight")):
            p.copy_(0.5 + torch.rand(p.shape, generator=gen))
        elif "norm" in name and name.endswith("bias"):
            p.copy_(0.2 * torch.randn(p.shape, generator=gen))
        elif name.endswith(".scale"):
            p.copy_(0.3 + 0.4 * torch.rand(p.shape, generator=gen))
        elif name.endswith("bias"):
            p.copy_(0.1 * torch.randn(p.shape, generator=gen))
        elif "learnt_padding" in name:
            p.copy_(0.5 * torch.randn(p.shape, generator=gen))
        else:
            spread = 1.0 if "emb" in name else 1.3
            p.copy_(spread * torch.randn(p.shape, generator=gen) / math.sqrt(p.shape[-1]))


def public_names(model: torch.nn.Module) -> dict:
    """The names of released files, in which the weights of all steps are one tensor."""
    out, groups = {}, collections.defaultdict(dict)
    for key, value in model.state_dict().items():
        for one, all_ in ((".in_projs.", ".in_proj_weight"), (".out_projs.", ".out_proj.weight")):
            if one in key:
                prefix, rest = key.split(one)
                groups[prefix + all_][int(rest.split(".")[0])] = value
                break
        else:
            out[key] = value
    for key, parts in groups.items():
        out[key] = torch.cat([parts[i] for i in range(len(parts))], 0)
    return {k: v.detach().clone().contiguous() for k, v in sorted(out.items())}


def candle_names(pt: dict, schedule: list, layers: int) -> dict:
    """The names of the crate `moshi`: everything of a depth step under its number."""
    kept = ("text_emb", "text_linear", "out_norm", "emb.", "transformer.", "extra_heads", "condition_provider.")
    out = {k: v for k, v in pt.items() if k.startswith(kept)}
    sets = max(schedule) + 1
    for step, own in enumerate(schedule):
        to = f"depformer.{step}."
        out[to + "linear_in.weight"] = pt[f"depformer_in.{own}.weight"]
        out[to + "linear_out.weight"] = pt[f"linears.{step}.weight"]
        source = "depformer_text_emb" if step == 0 else f"depformer_emb.{step - 1}"
        for key in [k for k in pt if k.startswith(source + ".")]:
            out[to + "emb" + key[len(source):]] = pt[key]
        for layer in range(layers):
            a, b = f"depformer.layers.{layer}.", f"{to}transformer.layers.{layer}."
            for w in ("self_attn.in_proj_weight", "self_attn.out_proj.weight"):
                out[b + w] = pt[a + w].chunk(sets)[own]
            for w in ("norm1.alpha", "norm2.alpha"):
                out[b + w] = pt[a + w]
            for w in ("linear_in", "linear_out"):
                out[b + f"gating.{w}.weight"] = pt[a + f"gating.{own}.{w}.weight"]
    return {k: v.clone().contiguous() for k, v in out.items()}


def save(path: Path, tensors: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({k: v.contiguous().clone() for k, v in tensors.items()}, str(path))


def save_json(path: Path, value) -> None:
    path.write_text(json.dumps(value) + "\n")


def margin(logits: torch.Tensor) -> float:
    """The least distance between the two best of any row."""
    top = logits.float().topk(2, dim=-1).values
    return float((top[..., 0] - top[..., 1]).min())


class Taps:
    """Inputs, normed rows and logits of every step of a language model."""

    def __init__(self, lm):
        self.lm, self.inputs, self.hidden, self.text, self.depth = lm, [], [], [], []
        text, depth = lm.forward_text, lm.forward_depformer

        def forward_text(tokens, *args, **kwargs):
            hidden, logits = text(tokens, *args, **kwargs)
            self.inputs.append(tokens[..., 0].clone())
            self.hidden.append(hidden[:, 0].clone())
            self.text.append(logits[:, 0, 0].clone())
            return hidden, logits

        def forward_depformer(step, *args, **kwargs):
            logits = depth(step, *args, **kwargs)
            if step == 0:
                self.depth.append([])
            self.depth[-1].append(logits[:, 0, 0].clone())
            return logits

        lm.forward_text, lm.forward_depformer = forward_text, forward_depformer

    def close(self):
        del self.lm.forward_text, self.lm.forward_depformer

    def tensors(self) -> dict:
        out = {"inputs": torch.stack(self.inputs).int(), "hidden": torch.stack(self.hidden),
               "text_logits": torch.stack(self.text)}
        if self.depth:
            out["depth_logits"] = torch.stack([torch.stack(step, 1) for step in self.depth])
        return out
