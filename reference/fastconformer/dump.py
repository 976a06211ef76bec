"""Runs a transformers model with taps on its modules."""

import torch
from search import Transducer, greedy

Tensors = dict[str, torch.Tensor]


def encode(model, mel: torch.Tensor, layers: bool, out: Tensors | None, prefix: str, **kwargs):
    """[frames, mel] through the encoder as a whole; taps under `prefix`."""
    seen: list[torch.Tensor] = []
    tap = lambda _m, _i, o: seen.append(o.detach().clone())
    hooks = [m.register_forward_hook(tap) for m in [model.encoder.subsampling, *model.encoder.layers]]
    with torch.no_grad():
        hidden = model.encoder(mel[None], **kwargs).last_hidden_state[0]
    for h in hooks:
        h.remove()
    if out is not None:
        if layers:
            out[f"{prefix}subsampling"] = seen[0][0]
            for i, x in enumerate(seen[1:-1]):
                out[f"{prefix}layer.{i}"] = x[0]
        out[f"{prefix}encoder"] = hidden
    return hidden


def chunk_sizes(lookahead: int) -> tuple[int, int]:
    """Mel frames of the first chunk and of the others."""
    return 1 + 8 * lookahead, 8 * (lookahead + 1)


@torch.no_grad()
def stream(model, mel: torch.Tensor, lookahead: int, keep: list[int], out: Tensors, prefix: str, project):
    """Whole chunks with caches. Returns encoder frames, greedy result, sizes of the chunks in frames."""
    first, other = chunk_sizes(lookahead)
    p = Transducer(model)
    kv = conv = state = None
    pos = frame = 0
    hidden, sizes = [], []
    tokens: list[int] = []
    frames: list[int] = []
    while pos + (other if pos else first) <= mel.shape[0]:
        n = other if pos else first
        o = model.encoder(
            mel[None, pos : pos + n],
            use_cache=True,
            past_key_values=kv,
            padding_cache=conv,
            num_lookahead_tokens=lookahead,
        )
        kv, conv = o.past_key_values, o.padding_cache
        h = o.last_hidden_state[0]
        g = greedy(p, project(h), state=state, first=frame)
        state = g.state
        tokens += g.tokens
        frames += g.frames
        c = len(sizes)
        if c in keep:
            key = f"{prefix}chunk.{c}/"
            out[f"{key}encoder"] = h
            out[f"{key}joint"] = torch.stack(g.logits)
            out[f"{key}pred"], (out[f"{key}h"], out[f"{key}c"]) = state[0], (s[:, 0] for s in state[1])
            for i, layer in enumerate(kv.layers):
                out[f"{key}k.{i}"] = layer.keys[0].clone()
                out[f"{key}v.{i}"] = layer.values[0].clone()
            for name, layer in conv.layers.items():
                out[f"{key}{name}"] = layer.cache[0].clone()
        hidden.append(h)
        sizes.append(h.shape[0])
        frame += h.shape[0]
        pos += n
    return torch.cat(hidden), {"tokens": tokens, "frames": frames}, sizes
