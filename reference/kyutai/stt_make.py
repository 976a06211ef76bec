"""Writes the fixtures of the recogniser: model folders as published, and what the package hears in a recording.

    NO_TORCH_COMPILE=1 python stt_make.py --out ../../crates/voce-models/tests/fixtures/kyutai [--seed 0]
"""

import argparse
import json
import math
import wave
from pathlib import Path

import sentencepiece
import torch
from moshi.models import LMGen, loaders

from mimi_cases import CASES, REAL_RATE
from mimi_make import make_mimi, margins
from randomise import published, randomise, save, sound

torch.set_grad_enabled(False)

COMMON = {
    "hidden_scale": 4.125, "causal": True, "layer_scale": None, "gating": "silu", "norm": "rms_norm_f32",
    "positional_embedding": "rope", "existing_text_padding_id": 3, "dep_q": 0, "max_period": 100000.0,
}
# name: the language model, stt_config, tokens of the delay, the codec, frames of the recording
STT = {
    # As stt-1b: four heads that foresee pauses, no silence before, 24 kHz.
    "stt_heads": (
        dict(COMMON, dim=32, text_card=48, n_q=8, card=24, num_heads=2, num_layers=2, context=10, delays=[0] * 9,
             extra_heads_num_heads=4, extra_heads_dim=6),
        {"audio_delay_seconds": 0.5, "audio_silence_prefix_seconds": 0.0}, 6, REAL_RATE, 32),
    # As stt-2.6b: no heads, silence before that ends within a frame, fewer codebooks than the codec has.
    "stt_late": (
        dict(COMMON, dim=48, text_card=40, n_q=5, card=32, num_heads=3, num_layers=3, context=7, delays=[0] * 6),
        {"audio_delay_seconds": 0.96, "audio_silence_prefix_seconds": 0.2}, 12, CASES["mimi_plain"][0], 60),
}


def tokenizer(folder: Path, size: int) -> str:
    """A SentencePiece model of `size` pieces with the published special tokens."""
    name = f"tokenizer_small_{size}.model"
    text = folder / "text.txt"
    words = ("they hear the rain on a stone roof and then nothing more is said for a while because somebody quickly "
             "walks over the bridge with five large jars, puzzled by voices from below").split()
    text.write_text("\n".join(" ".join(words[i:] + words[:i]) for i in range(len(words))) + "\n")
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / "tmp"), vocab_size=size, model_type="unigram", unk_id=0, bos_id=1,
        eos_id=2, pad_id=3, hard_vocab_limit=True, minloglevel=2, normalization_rule_name="identity")
    (folder / "tmp.model").rename(folder / name)
    (folder / "tmp.vocab").unlink()
    text.unlink()
    return name


class Words:
    """The words that Kyutai's server makes of tokens, in tokens and seconds."""

    def __init__(self, delay: int):
        self.delay, self.step, self.word, self.unended, self.stop = delay, 0, [], False, 0.0

    def push(self, token: int) -> list:
        self.step += 1
        out = []
        if self.step < self.delay:
            return out
        if token not in (0, 3):
            self.word.append(token)
        elif self.word:
            out.append({"type": "Word", "tokens": self.word, "start_time": self.stop})
            self.word, self.unended = [], True
        if token == 0:
            stop = (self.step - self.delay) / 12.5
            if self.unended:
                out.append({"type": "EndWord", "stop_time": stop})
            self.unended, self.stop = False, stop
        return out


def make_lm(path: Path, config: dict, gen: torch.Generator):
    lm = loaders.get_moshi_lm(None, dict(config), dtype=torch.float32)
    randomise(lm, gen)
    for table in lm.emb:
        table.weight.mul_(2.5)
    lm.text_emb.weight.mul_(0.6)
    # So that pauses and starts of words are frequent.
    lm.text_linear.weight[0] *= 2.0
    lm.text_linear.weight[3] *= 3.0
    for p in lm.extra_heads.parameters():
        p.copy_(0.3 * torch.randn(p.shape, generator=gen))
    save(path, published(lm))
    return loaders.get_moshi_lm(path, dict(config), dtype=torch.float32)


def hear(lm, codes: list, temperature: float = 0.0) -> dict:
    """Every step of streams side by side; step 0 sees the initial tokens alone."""
    inputs, hidden, logits, heads, tokens = [], [], [], [], []
    original = lm.forward_text

    def tapped(sequence, *args, **kwargs):
        h, t = original(sequence, *args, **kwargs)
        inputs.append(sequence[..., 0].clone()), hidden.append(h[:, 0].clone()), logits.append(t[:, 0, 0].clone())
        return h, t

    lm.forward_text = tapped
    gen = LMGen(lm, temp=temperature, temp_text=temperature)
    with gen.streaming(len(codes[0])):
        for c in [codes[0], *codes]:
            if len(lm.extra_heads):
                out, h = gen.step_with_extra_heads(c)
                heads.append(torch.stack([x[:, 0] for x in h], 1))
            else:
                out = gen.step(c)
            tokens.append(out[:, 0, 0].clone())
    lm.forward_text = original
    logits = torch.stack(logits)
    two = logits.topk(2, dim=-1).values
    found = {"inputs": torch.stack(inputs).int(), "hidden": torch.stack(hidden), "logits": logits,
             "margin": two[..., 0] - two[..., 1], "tokens": torch.stack(tokens).int()}
    return found | ({"heads": torch.stack(heads)} if heads else {})


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", type=Path, required=True)
    ap.add_argument("--seed", type=int, default=0)
    a = ap.parse_args()
    torch.set_num_threads(1)
    for number, (name, (config, stt, delay, mimi_config, frames)) in enumerate(STT.items()):
        for attempt in range(50):
            gen = torch.Generator().manual_seed(1000 * a.seed + 100 * attempt + 50 + number)
            folder = a.out / name
            folder.mkdir(parents=True, exist_ok=True)
            mimi = make_mimi(folder / "mimi-small@1.safetensors", mimi_config, gen)
            mimi.set_num_codebooks(config["n_q"])
            lm = make_lm(folder / "model.safetensors", config, gen)
            rate, size = mimi_config["sample_rate"], mimi.frame_size
            # The last frame of the recording is short.
            pcm = sound(1, frames * size - size // 3, rate, gen)
            before = int(stt["audio_silence_prefix_seconds"] * rate)
            whole = math.ceil((before + pcm.shape[-1]) / size) + delay
            padded = torch.zeros(1, 1, whole * size)
            padded[..., before:before + pcm.shape[-1]] = pcm
            codes, near = [], []
            with mimi.streaming(1):
                for chunk in padded.split(size, dim=-1):
                    latent = mimi._encode_to_unquantized_latent(chunk)
                    codes.append(mimi.quantizer.encode(latent)), near.append(margins(mimi, latent))
            run = hear(lm, codes)
            words, messages = Words(delay), []
            for step, token in enumerate(run["tokens"][:, 0].tolist()):
                messages += [dict(m, step=step) for m in words.push(token)]
            closest = min(float(run["margin"].min()), float(torch.cat(near, -1).min()))
            told = sum(m["type"] == "Word" for m in messages)
            drawn = run["tokens"][:, 0].tolist()
            if closest > 5e-4 and told >= 5 and len(set(drawn)) > 8 and drawn.count(3) > 4:
                break
        else:
            raise SystemExit(f"{name}: no seed without a near tie")
        spm = tokenizer(folder, config["text_card"])
        (folder / "config.json").write_text(json.dumps(dict(
            config, model_type="stt", stt_config=stt, mimi_name="mimi-small@1.safetensors", tokenizer_name=spm,
            mimi_config_name="mimi_config.json"), indent=1) + "\n")
        (folder / "mimi_config.json").write_text(json.dumps(mimi_config, indent=1) + "\n")
        with wave.open(str(folder / "audio.wav"), "wb") as f:
            f.setnchannels(1), f.setsampwidth(2), f.setframerate(rate)
            f.writeframes((pcm[0, 0] * 32768).short().numpy().tobytes())
        save(folder / "dump.safetensors", {k: v[:, 0] for k, v in run.items()} | {"codes": torch.cat(codes, -1)[0].int()})
        (folder / "messages.json").write_text(json.dumps({"delay": delay, "messages": messages}, indent=1) + "\n")
        print(name, "attempt", attempt, "closest", closest, "words", told, run["tokens"][:, 0].tolist())


if __name__ == "__main__":
    main()
