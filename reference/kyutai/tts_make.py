"""Small random models that speak, and what the published package makes of texts: the machine's trace, tokens, logits.

    NO_TORCH_COMPILE=1 python tts_make.py --out ../../crates/voce-models/tests/fixtures/kyutai --seed 0
"""
import argparse
import copy
import json
from pathlib import Path

import torch
from moshi.conditioners import ConditionAttributes, TensorCondition
from moshi.models import loaders
from moshi.models.tts import StateMachine, TokenIds, TTSModel

from lm_common import Taps, candle_names, margin, public_names, randomise, save, save_json

COMMON = {
    "card": 24, "hidden_scale": 4.125, "causal": True, "layer_scale": None, "gating": "silu", "norm": "rms_norm_f32",
    "positional_embedding": "rope", "existing_text_padding_id": 3, "depformer_multi_linear": True,
    "depformer_pos_emb": "none", "depformer_weights_per_step": True,
}
SPOKEN = ["1.0", "1.5", "2.0", "2.5", "3.0"]
CASES = {
    # As the model of 1.6B: sources to look at, two texts, shared sets, low ranks, a table of guidance.
    "tts": dict(
        COMMON, dim=32, text_card=40, n_q=6, dep_q=6, delays=[0, 0] + [2] * 5, num_heads=2, num_layers=2, context=16,
        max_period=10000.0, cross_attention=True, demux_second_stream=True, depformer_dim=16, depformer_num_heads=2,
        depformer_num_layers=2, depformer_dim_feedforward=48,
        depformer_weights_per_step_schedule=[0, 1, 2, 2, 3, 3], depformer_low_rank_embeddings=8,
        conditioners={
            "speaker_wavs": {"type": "tensor", "tensor": {"dim": 12}},
            "cfg": {"type": "lut", "lut": {"n_bins": 5, "dim": 4, "tokenizer": "noop", "possible_values": SPOKEN}},
            "control": {"type": "lut", "lut": {"n_bins": 1, "dim": 32, "tokenizer": "noop",
                                               "possible_values": ["ok"]}},
        },
        fuser={"cross_attention_pos_emb": True, "cross_attention_pos_emb_scale": 1, "sum": ["control", "cfg"],
               "prepend": [], "cross": ["speaker_wavs"]}),
    # As the public model of 0.75B: one text, a voice by its codes, guidance by a second pass without text.
    "tts_prefix": dict(
        COMMON, dim=24, text_card=37, n_q=5, dep_q=5, delays=[0, 0] + [1] * 4, num_heads=2, num_layers=2, context=20,
        max_period=10000.0, depformer_dim=16, depformer_num_heads=2, depformer_num_layers=1, conditioners={},
        fuser={"sum": [], "prepend": [], "cross": []}),
}
EXTRA = {
    "tts": {"audio_delay": 0.4, "second_stream_ahead": 2},
    "tts_prefix": {"audio_delay": 0.24, "second_stream_ahead": 0},
}
SPEAKERS, POSITIONS = 3, 5
MACHINE = {"max_padding": 6, "initial_padding": 2, "final_padding": 3}
SCRIPTS = {
    "tts": [["Hello world this is a tiny test"],
            ["One more (shorter) text: <break time=\"0.4s\"/> ok", "and another speaker’s turn", "back again"]],
    "tts_prefix": [["Hello world this is a tiny test"], ["Another one: with a <break time=\"0.2s\"/> break"]],
}


class Pieces:
    """Stands for SentencePiece: a word is one to three pieces, found by its letters."""

    def __init__(self, card):
        self.card = card

    def encode(self, word):
        h = sum((i + 1) * ord(c) for i, c in enumerate(word))
        return [4 + (h * (k + 3) + 7 * k) % (self.card - 4) for k in range(1 + len(word) % 3)]


class Silent:
    """Stands for Mimi where no audio is made."""
    frame_rate = 12.5
    sample_rate = 24000


def make(out: Path, name: str, config: dict, seed: int, codebooks: int | None) -> float:
    gen = torch.Generator().manual_seed(seed)
    lm = loaders.get_moshi_lm(None, copy.deepcopy(config), dtype=torch.float32)
    randomise(lm, gen)
    lm.text_linear.weight[[0, 3]] *= 6  # so that words and pads both come
    weights = public_names(lm)
    schedule = config.get("depformer_weights_per_step_schedule", list(range(config["dep_q"])))
    save(out / name / "model.safetensors", weights)
    if name == "tts":
        save(out / name / "candle.safetensors", candle_names(weights, schedule, config["depformer_num_layers"]))
    save_json(out / name / "config.json", dict(config, model_type="tts", tts_config=EXTRA[name],
                                               model_id={"sig": "abcd", "epoch": 7}))
    dumps, traces, least = {}, [], 1e9
    runs = [("", config["n_q"], 1.0)]
    if name == "tts_prefix":
        runs += [("cfg_", config["n_q"], 2.0)]
    else:
        runs += [("few_", codebooks or config["n_q"] - 2, 1.0)]
    voices = torch.randn(2, 2, 12, POSITIONS, generator=gen)
    prefixes = [torch.randint(0, config["card"], (config["n_q"], n), generator=gen) for n in (4, 3)]
    for prefix, n_q, guidance in runs:
        lm = loaders.get_moshi_lm(out / name / "model.safetensors", copy.deepcopy(config), dtype=torch.float32)
        machine = StateMachine(TokenIds(lm.text_card + 1), EXTRA[name]["second_stream_ahead"],
                               MACHINE["max_padding"], MACHINE["initial_padding"])
        model = TTSModel(lm=lm, mimi=Silent(), tokenizer=Pieces(config["text_card"]), voice_suffix="", voice_repo="",
                         machine=machine, delay_steps=int(EXTRA[name]["audio_delay"] * 12.5), max_speakers=SPEAKERS,
                         temp=0.0, n_q=n_q, cfg_coef=guidance, final_padding=MACHINE["final_padding"],
                         max_gen_length=150)
        entries = [model.prepare_script(s, padding_between=1) for s in SCRIPTS[name]]
        words = [[{"tokens": e.tokens, "text": e.text, "padding": e.padding} for e in es] for es in entries]
        attributes, given = [], None
        if name == "tts":
            for voice, cfg in zip(voices, ["2.0", "1.5"]):
                n, width, length = voice.shape
                rows, mask = torch.zeros(1, SPEAKERS, length, width), torch.zeros(1, SPEAKERS, length, dtype=torch.bool)
                rows[0, :n], mask[0, :n] = voice.transpose(1, 2), True
                attributes.append(ConditionAttributes(
                    text={"control": "ok", "cfg": cfg},
                    tensor={"speaker_wavs": TensorCondition(rows.view(1, -1, width), mask.view(1, -1))}))
        else:
            given = [torch.cat([torch.full_like(p[:1], -1), p]) for p in prefixes]
        taps = Taps(lm)
        result = model.generate(entries, attributes, prefixes=given, use_sampling=False)
        taps.close()
        dump = dict(taps.tensors(), frames=torch.cat(result.frames, -1).int())
        if attributes:
            conditions = lm.condition_provider.prepare_and_provide(attributes)
            dump["source"] = lm.fuser.get_cross(conditions)
        # Logits of one run are enough: the others show their tokens.
        kept = dump if not prefix else {k: dump[k] for k in ("inputs", "frames")}
        dumps |= {prefix + k: v for k, v in kept.items()}
        traces.append({
            "prefix": prefix, "codebooks": n_q, "guidance": guidance, "entries": words, "end_steps": result.end_steps,
            "transcripts": result.all_transcripts, "times": result.all_consumption_times,
            "text": result.logged_text_tokens})
        least = min(least, margin(dump["depth_logits"]))
    dumps["voices"] = voices
    for i, p in enumerate(prefixes):
        dumps[f"prefix{i}"] = p.int()
    save(out / name / "dump.safetensors", dumps)
    save_json(out / name / "trace.json", dict(
        MACHINE, scripts=SCRIPTS[name], speakers=SPEAKERS, delay_steps=int(EXTRA[name]["audio_delay"] * 12.5),
        second_stream_ahead=EXTRA[name]["second_stream_ahead"], card=config["text_card"], cfg=["2.0", "1.5"], runs=traces))
    return least


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--out", type=Path, required=True)
    args.add_argument("--seed", type=int, default=0)
    args.add_argument("--codebooks", type=int)
    a = args.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    for name, config in CASES.items():
        print(name, "least margin", make(a.out, name, config, a.seed, a.codebooks))


if __name__ == "__main__":
    main()
