"""Runs the published package step by step and keeps what every stage computes.

Everything is float32 on one thread. Tensors lose their batch axis of one; the names are listed in README.md.
"""

import contextlib
import copy
import math
import threading

import torch
from pocket_tts.data.audio_utils import end_on_pause
from pocket_tts.models.text_chunking import prepare_text_prompt, split_into_best_sentences
from pocket_tts.modules.stateful_module import increment_steps, init_states

Tensors = dict[str, torch.Tensor]


@contextlib.contextmanager
def taps(modules: dict[str, torch.nn.Module]):
    """Collect the outputs of modules by name: a list with one entry per call."""
    seen: dict[str, list[torch.Tensor]] = {name: [] for name in modules}

    def keep(name):
        def hook(_module, _inputs, output):
            out = output[0] if isinstance(output, (list, tuple)) else output
            seen[name].append(out.detach().clone())

        return hook

    handles = [m.register_forward_hook(keep(n)) for n, m in modules.items()]
    try:
        yield seen
    finally:
        for h in handles:
            h.remove()


@contextlib.contextmanager
def given_noise(rows: torch.Tensor | None):
    """Let the sampler read its noise from `rows`, one row a call; zeros when None (temperature 0)."""
    original, at = torch.nn.init.normal_, [0]

    def fill(tensor, mean=0.0, std=1.0, generator=None):
        with torch.no_grad():
            if rows is None:
                return tensor.zero_()
            tensor.copy_(rows[at[0]].reshape(tensor.shape))
            at[0] += 1
            return tensor

    torch.nn.init.normal_ = fill
    try:
        yield
    finally:
        torch.nn.init.normal_ = original


def harmonic(seconds: float, sample_rate: int, seed: int) -> torch.Tensor:
    """A voice-like sound [1, T]: harmonics under a moving envelope, a quiet tail, values exact in 16 bits."""
    gen = torch.Generator().manual_seed(seed)
    n = int(seconds * sample_rate)
    t = torch.arange(n, dtype=torch.float64) / sample_rate
    f0 = 0.02 * sample_rate * 0.25 * (1 + 0.1 * torch.sin(2 * math.pi * 2.3 * t))
    phase = 2 * math.pi * torch.cumsum(f0, 0) / sample_rate
    gains = torch.rand(8, generator=gen, dtype=torch.float64)
    x = sum(g / (k + 1) * torch.sin((k + 1) * phase) for k, g in enumerate(gains))
    x = x + 0.05 * torch.randn(n, generator=gen, dtype=torch.float64)
    x = x * (0.6 + 0.4 * torch.sin(2 * math.pi * 3.1 * t)) * 0.3
    x[int(0.85 * n) :] *= 0.002  # below the pause floor: the package cuts it
    return (torch.round(x.clamp(-0.99, 0.99) * 32768) / 32768).to(torch.float32)[None]


def backbone_layers(model) -> dict[str, torch.nn.Module]:
    return {f"layer.{i}": layer for i, layer in enumerate(model.flow_lm.transformer.layers)}


@torch.no_grad()
def voice(model, wav: torch.Tensor, out: Tensors, columns: int = 64):
    """Encode a prompt; returns the package's own voice state."""
    mimi = model.mimi
    modules = {f"enc/seanet.{i}": m for i, m in enumerate(mimi.encoder.model) if not isinstance(m, torch.nn.ELU)}
    modules |= {f"enc/transformer.{i}": m for i, m in enumerate(mimi.encoder_transformer.transformer.layers)}
    modules |= {"enc/seanet": mimi.encoder, "enc/transformer": mimi.encoder_transformer}
    layers = {f"voice/{k}": m for k, m in backbone_layers(model).items()}
    with taps(modules | layers) as seen, given_noise(None):
        state = model.get_state_for_audio_prompt(wav)
    ended = end_on_pause(wav, model.sample_rate)
    out["voice/ended"] = ended[0]
    for name, calls in seen.items():
        x = calls[0][0]
        if name.startswith("enc/seanet."):
            x = x[:, :columns]
        elif name.startswith("enc/transformer."):
            x = x[:columns]
        out[name] = x.contiguous()
    out["enc/latents"] = mimi.encode_to_latent(ended[None])[0]
    out["voice/emb"] = model._encode_audio(ended[None])[0]
    return state


@torch.no_grad()
def generate(model, state, tokens, frames: int, noise, out: Tensors, tag: str, detail: int, keep_c: int = 10**9):
    """`frames` autoregressive steps with no regard for EOS. Returns the latents [frames, latent]."""
    flow = model.flow_lm
    state = copy.deepcopy(state)
    model._expand_kv_cache(state, model._flow_lm_current_end(state) + tokens.shape[1] + frames)
    logits, latents = [], []
    with given_noise(None), taps(backbone_layers(model)) as seen:
        model._run_flow_lm_and_increment_step(model_state=state, text_tokens=tokens)
    if detail and noise is None:  # the prefill does not depend on the noise
        for name, calls in seen.items():
            out[f"prefill/{name}"] = calls[0][0]
    head = {"head/cond": flow.flow_net.cond_embed, "head/in": flow.flow_net.input_proj}
    head |= {f"head/time.{i}": m for i, m in enumerate(flow.flow_net.time_embed)}
    head |= {f"head/block.{i}": m for i, m in enumerate(flow.flow_net.res_blocks)}
    head |= {"head/out": flow.flow_net.final_layer}
    x = torch.full((1, 1, flow.ldim), float("nan"), dtype=flow.bos_emb.dtype)
    conds, steps = [], {name: [] for name in backbone_layers(model)}
    with given_noise(noise):
        for i in range(frames):
            want = (backbone_layers(model) if i < detail else {}) | (head if i == 0 else {})
            with taps({"eos": flow.out_eos} | want) as seen, taps_input(flow.out_eos) as cond:
                x, _ = model._run_flow_lm_and_increment_step(model_state=state, backbone_input_latents=x)
            logits.append(seen["eos"][0].reshape(()))
            conds.append(cond[0].reshape(-1))
            latents.append(x.reshape(-1))
            if i < detail:
                for name in steps:
                    steps[name].append(seen[name][0].reshape(-1))
            if i == 0 and detail:  # one row per sampler step
                for name in head:
                    out[f"{tag}/{name}"] = torch.stack([c.reshape(-1) for c in seen[name]])
    if detail:
        for name, rows in steps.items():
            out[f"{tag}/step/{name}"] = torch.stack(rows)
    if noise is not None:
        out[f"{tag}/noise"] = noise[:frames]
    out[f"{tag}/cond"] = torch.stack(conds)[:keep_c]
    out[f"{tag}/eos"] = torch.stack(logits)
    out[f"{tag}/latent"] = torch.stack(latents)
    return out[f"{tag}/latent"]


@contextlib.contextmanager
def taps_input(module):
    seen = []
    handle = module.register_forward_pre_hook(lambda _m, args: seen.append(args[0].detach().clone()))
    try:
        yield seen
    finally:
        handle.remove()


@torch.no_grad()
def sensitivity(model, state, tokens, noise, latents) -> float:
    """Largest change of any latent when the voice cache moves by one part in a million: what rounding may cost."""
    gen = torch.Generator().manual_seed(1)
    moved = copy.deepcopy(state)
    for part in moved.values():
        part["cache"] *= 1 + 1e-6 * torch.randn(part["cache"].shape, generator=gen)
    other = generate(model, moved, tokens, len(latents), noise, {}, "moved", 0)
    return float((other - latents).abs().max())


@torch.no_grad()
def decode(model, latents: torch.Tensor, calls: list[int], out: Tensors, tag: str, detail_calls: int, columns: int):
    """Decode latents, `calls[i]` frames in call i, keeping every stage of the first calls. Returns audio, no fade."""
    mimi = model.mimi
    per_frame = int(mimi.encoder_frame_rate / mimi.frame_rate)
    state = init_states(mimi, 1, len(latents) * per_frame)
    modules = {"quantizer": mimi.quantizer, "transformer": mimi.decoder_transformer}
    if hasattr(mimi, "upsample"):
        modules["upsample"] = mimi.upsample
    modules |= {f"transformer.{i}": m for i, m in enumerate(mimi.decoder_transformer.transformer.layers)}
    modules |= {f"seanet.{i}": m for i, m in enumerate(mimi.decoder.model) if not isinstance(m, torch.nn.ELU)}
    at, audio = 0, []
    for i, n in enumerate(calls):
        z = latents[None, at : at + n] * model.flow_lm.emb_std + model.flow_lm.emb_mean
        with taps(modules if i < detail_calls else {}) as seen:
            y = mimi.decode_from_latent(z, state)
        increment_steps(mimi, state, per_frame * n)
        audio.append(y[0, 0])
        at += n
        if i < detail_calls:
            out[f"{tag}/call.{i}/input"] = z[0]
            for name, got in seen.items():
                x = got[0][0]
                out[f"{tag}/call.{i}/{name}"] = x[:, :columns].contiguous() if name.startswith("seanet") else x
    return torch.cat(audio)


@torch.no_grad()
def say(model, state, text: str, out: Tensors, tag: str, **options) -> dict:
    """The package's whole path at temperature 0, one frame per decoder call; returns what it decided."""
    rules = (
        model.pad_with_spaces_for_short_inputs,
        model.remove_semicolons,
        model.append_terminal_punctuation,
        model.capitalize_first_letter,
        model.replace_characters,
    )
    tok = model.flow_lm.conditioner.tokenizer
    chunks = []
    for chunk in split_into_best_sentences(tok, text, options.get("max_tokens", 50), *rules):
        prepared, guess = prepare_text_prompt(chunk, *rules)
        chosen = options.get("frames_after_eos", model.model_recommended_frames_after_eos)
        ids = tok.encode(prepared)
        chunks.append(
            {
                "chunk": chunk,
                "prepared": prepared,
                "tokens": ids,
                "frames_after_eos": guess + 2 if chosen is None else chosen,
                "max_frames": model._estimate_max_gen_len(len(ids)),
            }
        )
    model.max_decoder_frames_per_call = 1
    temp, model.temp = model.temp, 0.0
    marks: list[list[float]] = []
    original = model._autoregressive_generation

    def watched(*args, **kwargs):
        marks.append([])
        original(*args, **kwargs)

    def keep(_module, _inputs, output):
        # The steps run in a thread of their own; the text prefill, which has no say in EOS, in this one.
        if threading.current_thread() is not threading.main_thread():
            marks[-1].append(float(output))

    model._autoregressive_generation = watched
    handle = model.flow_lm.out_eos.register_forward_hook(keep)
    pieces = list(model.generate_audio_stream(state, text, **options))
    handle.remove()
    del model._autoregressive_generation
    model.temp = temp
    for c, logits in zip(chunks, marks, strict=True):
        hits = [i for i, x in enumerate(logits) if x > model.eos_threshold and i >= 6]
        c["eos_step"] = hits[0] if hits else None
        stop = None if not hits else hits[0] + c["frames_after_eos"]
        c["frames"] = c["max_frames"] if stop is None or stop >= c["max_frames"] else stop
        c["early_eos"] = [i for i, x in enumerate(logits[:6]) if x > model.eos_threshold]
        c["eos_margin"] = min(abs(x - model.eos_threshold) for x in logits)
    assert sum(c["frames"] for c in chunks) == len(pieces), (chunks, len(pieces))
    out[f"{tag}/audio"] = torch.cat(pieces)
    samples = int(out[f"{tag}/audio"].numel())
    return {"text": text, "options": options, "chunks": chunks, "samples": samples, "logits": marks}
