"""Full-size random checkpoints in the published layout, with what the published package computes from them.

    NO_TORCH_COMPILE=1 python full_size.py --model mimi|stt-1b|stt-2.6b|tts-1.6b --out DIR [--seed 0] [--frames N] [--threads 1]

A folder is one of those that the other scripts make (README.md), with the published sizes; weights are bf16, as published,
those of the codec and of conditions f32. Choices are no farther apart than chance has them: `margin` says how far.
Memory: 2 GiB for the codec, 7 GiB for stt-1b; with mapped files 15 GiB for tts-1.6b and 21 GiB for stt-2.6b.
"""

import argparse
import copy
import gc
import json
import wave
from pathlib import Path

import sentencepiece
import torch
from moshi.conditioners import ConditionAttributes, TensorCondition
from moshi.models import loaders
from moshi.models.tts import StateMachine, TokenIds, TTSModel
from safetensors.torch import save_file

import pieces
from lm_common import Taps, margin, save, save_json
from lm_common import randomise as randomise_lm
from mimi_cases import with_changes
from mimi_make import make_mimi, streams
from randomise import published, randomise, sound
from stt_make import COMMON, Words, hear
from tts_make import COMMON as TTS_COMMON
from tts_make import Pieces, Silent

torch.set_grad_enabled(False)

MIMI = with_changes(
    512, sample_rate=24000, seanet={"ratios": [8, 6, 5, 4], "n_filters": 64}, quantizer={"dimension": 256, "n_q": 32, "bins": 2048},
    transformer={"num_heads": 8, "num_layers": 8, "context": 250, "dim_feedforward": 2048})
STT_1B = dict(COMMON, dim=2048, text_card=8000, n_q=32, card=2048, num_heads=16, num_layers=16, context=750, delays=[0] * 33,
              extra_heads_num_heads=4, extra_heads_dim=6)
STT = {
    "stt-1b": (STT_1B, {"audio_delay_seconds": 0.5, "audio_silence_prefix_seconds": 0.0}, 6),
    "stt-2.6b": (dict(STT_1B, text_card=4000, num_heads=32, num_layers=48, context=375, extra_heads_num_heads=0),
                 {"audio_delay_seconds": 2.5, "audio_silence_prefix_seconds": 1.0}, 31),
}
CFG = ["1.0", "1.5", "2.0", "2.5", "3.0", "3.5", "4.0"]
TTS = dict(
    TTS_COMMON, card=2048, n_q=32, dep_q=32, delays=[0, 0] + [2] * 31, dim=2048, text_card=8000, num_heads=16, num_layers=16,
    context=500, max_period=10000.0, depformer_dim=1024, depformer_num_heads=16, depformer_num_layers=4,
    depformer_dim_feedforward=3072, depformer_low_rank_embeddings=128, demux_second_stream=True, cross_attention=True,
    depformer_weights_per_step_schedule=[*range(8), *[8] * 8, *[9] * 8, *[10] * 8],
    conditioners={
        "speaker_wavs": {"type": "tensor", "tensor": {"dim": 512}},
        "cfg": {"type": "lut", "lut": {"n_bins": 7, "dim": 16, "tokenizer": "noop", "possible_values": CFG}},
        "control": {"type": "lut", "lut": {"n_bins": 1, "dim": 2048, "tokenizer": "noop", "possible_values": ["ok"]}},
    },
    fuser={"cross_attention_pos_emb": True, "cross_attention_pos_emb_scale": 1, "sum": ["control", "cfg"], "prepend": [],
           "cross": ["speaker_wavs"]})
TTS_EXTRA = {"audio_delay": 1.28, "second_stream_ahead": 2}
SPEAKERS, POSITIONS = 5, 125
TEXT = "Hello there, a tiny test."
NAMES = {"mimi_name": "mimi.safetensors", "moshi_name": "model.safetensors", "tokenizer_name": "tokenizer.model"}


def codec(out: Path, gen: torch.Generator):
    """The codec alone: its file, its configuration and the package's own reading of them."""
    (out / "mimi_config.json").write_text(json.dumps(MIMI, indent=1) + "\n")
    return make_mimi(out / "mimi.safetensors", MIMI, gen, decay=0.93)


def save_bf16(lm, path: Path):
    """Writes the language model as it is published."""
    weights = published(lm)
    for name in list(weights):
        kept = name.startswith("condition_provider")
        weights[name] = (weights[name] if kept else weights[name].bfloat16()).contiguous()
    save_file(weights, str(path))


def mimi(out: Path, gen: torch.Generator, frames: int) -> dict:
    model = codec(out, gen)
    dump = streams(model, sound(1, frames * model.frame_size, 24000, gen), 8)
    save(out / "dump.safetensors", dump)
    return {"frames": frames, "margin": float(dump["margin"].min())}


def stt(out: Path, name: str, gen: torch.Generator, frames: int) -> dict:
    config, extra, delay = STT[name]
    model = codec(out, gen)
    model.set_num_codebooks(config["n_q"])
    lm = loaders.get_moshi_lm(None, dict(config), dtype=torch.float32)
    randomise(lm, gen)
    for table in lm.emb:
        table.weight.mul_(2.5)
    lm.text_linear.weight[0] *= 2.0
    lm.text_linear.weight[3] *= 3.0
    for p in lm.extra_heads.parameters():
        p.copy_(0.3 * torch.randn(p.shape, generator=gen))
    save_bf16(lm, out / "model.safetensors")
    del lm
    gc.collect()
    lm = loaders.get_moshi_lm(out / "model.safetensors", dict(config), dtype=torch.float32)
    size = model.frame_size
    before = int(extra["audio_silence_prefix_seconds"] * 24000)
    pcm = sound(1, frames * size, 24000, gen)
    whole = -(-(before + pcm.shape[-1]) // size) + delay
    padded = torch.zeros(1, 1, whole * size)
    padded[..., before:before + pcm.shape[-1]] = pcm
    with model.streaming(1):
        codes = [model.encode(chunk) for chunk in padded.split(size, dim=-1)]
    run = hear(lm, codes)
    words, messages = Words(delay), []
    for step, token in enumerate(run["tokens"][:, 0].tolist()):
        messages += [dict(m, step=step) for m in words.push(token)]
    pieces.write(out / "tokenizer.model", config["text_card"])
    save_json(out / "config.json", dict(config, **NAMES, model_type="stt", stt_config=extra, mimi_config_name="mimi_config.json"))
    with wave.open(str(out / "audio.wav"), "wb") as f:
        f.setnchannels(1), f.setsampwidth(2), f.setframerate(24000)
        f.writeframes((pcm[0, 0] * 32768).short().numpy().tobytes())
    save(out / "dump.safetensors", {k: v[:, 0] for k, v in run.items()} | {"codes": torch.cat(codes, -1)[0].int()})
    save_json(out / "messages.json", {"delay": delay, "messages": messages})
    return {"steps": len(run["tokens"]), "margin": float(run["margin"].min())}


def say(lm, sound_model, tokenizer: Path, voice: Path, delay: int) -> dict:
    """A whole text with a voice's file, with the package's own settings: codes, the margin of each, samples."""
    sound_model.set_num_codebooks(TTS["n_q"])
    model = TTSModel(lm=lm, mimi=sound_model, tokenizer=sentencepiece.SentencePieceProcessor(str(tokenizer)), voice_suffix="",
                     voice_repo="", machine=StateMachine(TokenIds(lm.text_card + 1), TTS_EXTRA["second_stream_ahead"], 8, 2),
                     delay_steps=delay, temp=0.0, n_q=TTS["n_q"], max_gen_length=200)
    taps = Taps(lm)
    result = model.generate([model.prepare_script([TEXT], padding_between=1)],
                            [model.make_condition_attributes([voice], cfg_coef=2.0)], use_sampling=False)
    taps.close()
    codes = torch.cat(result.frames, -1)[0, 1:, delay:]
    logits = torch.stack([torch.stack(step, 1) for step in taps.depth])[:, 0]
    # Code `k` of a frame is drawn as many steps after it as its delay has.
    delays, frames = TTS["delays"][1:], codes.shape[-1]
    drawn = torch.stack([logits[late:late + frames, k] for k, late in enumerate(delays)])
    assert torch.equal(drawn.argmax(-1), codes), "these are not the logits of the codes"
    two = drawn.topk(2, dim=-1).values
    with sound_model.streaming(1):
        pcm = [sound_model.decode(codes[None, :, t:t + 1]).clone() for t in range(frames)]
    return {"say/codes": codes.int(), "say/margin": two[..., 0] - two[..., 1], "say/audio": torch.cat(pcm, -1)[0, 0]}


def tts(out: Path, gen: torch.Generator, frames: int) -> dict:
    sound_model = codec(out, gen)
    lm = loaders.get_moshi_lm(None, copy.deepcopy(TTS), dtype=torch.float32)
    randomise_lm(lm, gen)
    lm.text_linear.weight[[0, 3]] *= 6
    save_bf16(lm, out / "model.safetensors")
    del lm
    gc.collect()
    lm = loaders.get_moshi_lm(out / "model.safetensors", copy.deepcopy(TTS), dtype=torch.float32)
    delay = int(TTS_EXTRA["audio_delay"] * 12.5)
    model = TTSModel(lm=lm, mimi=Silent(), tokenizer=Pieces(TTS["text_card"]), voice_suffix="", voice_repo="",
                     machine=StateMachine(TokenIds(lm.text_card + 1), TTS_EXTRA["second_stream_ahead"], 6, 2), delay_steps=delay,
                     max_speakers=SPEAKERS, temp=0.0, n_q=TTS["n_q"], cfg_coef=1.0, final_padding=3, max_gen_length=delay + frames)
    voice = torch.randn(2, 512, POSITIONS, generator=gen)
    rows, mask = torch.zeros(1, SPEAKERS, POSITIONS, 512), torch.zeros(1, SPEAKERS, POSITIONS, dtype=torch.bool)
    rows[0, :2], mask[0, :2] = voice.transpose(1, 2), True
    attributes = [ConditionAttributes(text={"control": "ok", "cfg": "2.0"},
                                      tensor={"speaker_wavs": TensorCondition(rows.view(1, -1, 512), mask.view(1, -1))})]
    taps = Taps(lm)
    result = model.generate([model.prepare_script(["Hello world this is a tiny test"], padding_between=1)], attributes,
                            use_sampling=False)
    taps.close()
    dump = dict(taps.tensors(), frames=torch.cat(result.frames, -1).int())
    dump["source"] = lm.fuser.get_cross(lm.condition_provider.prepare_and_provide(attributes))
    anna = out / "voices" / "anna.wav.abcd@7.safetensors"
    save(anna, {"speaker_wavs": voice[:1]})
    pieces.write(out / "tokenizer.model", TTS["text_card"])
    said = say(lm, sound_model, out / "tokenizer.model", anna, delay)
    save(out / "dump.safetensors", dump | said)
    save_json(out / "config.json", dict(TTS, **NAMES, model_type="tts", tts_config=TTS_EXTRA, model_id={"sig": "abcd", "epoch": 7},
                                        mimi_config_name="mimi_config.json"))
    save_json(out / "trace.json", {"delay_steps": delay, "cfg": ["2.0"], "text": TEXT})
    return {"steps": len(dump["inputs"]), "margin": margin(dump["depth_logits"]), "said": said["say/codes"].shape[-1],
            "say_margin": float(said["say/margin"].min())}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", required=True, choices=["mimi", *STT, "tts-1.6b"])
    ap.add_argument("--out", required=True, type=Path)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--frames", type=int, help="of sound: 130 for the codec, whose window has then wrapped, 25 for the others")
    ap.add_argument("--threads", type=int, default=1)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(a.seed)
    gen = torch.Generator().manual_seed(a.seed)
    out = a.out / a.model
    out.mkdir(parents=True, exist_ok=True)
    if a.model == "mimi":
        report = mimi(out, gen, a.frames or 130)
    elif a.model in STT:
        report = stt(out, a.model, gen, a.frames or 25)
    else:
        report = tts(out, gen, a.frames or 25)
    print(json.dumps({"model": a.model, "seed": a.seed} | report))


if __name__ == "__main__":
    main()
