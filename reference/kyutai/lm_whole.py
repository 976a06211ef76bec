"""Whole model folders as they are published, small: a codec, a tokeniser, a language model and what the package says.

    NO_TORCH_COMPILE=1 python lm_whole.py --out ../../crates/voce-models/tests/fixtures/kyutai --seed 0

`talk` holds a conversation, `say` speaks texts with voices from files.
"""
import argparse
import copy
import io
import json
from pathlib import Path

import sentencepiece
import torch
from moshi.models import LMGen, loaders
from moshi.models.tts import StateMachine, TokenIds, TTSModel

import moshi_make
import tts_make
from lm_common import margin, public_names, Taps, save, save_json
from lm_common import randomise as randomise_lm
from mimi_cases import REAL_RATE
from mimi_make import make_mimi
from randomise import sound

TEXT = ("hello there, this is a tiny test of a model that speaks and listens. one two three four five six seven. "
        "the quick brown fox jumps over the lazy dog. she sells sea shells on the sea shore. what a lovely day.")


def tokenizer(path: Path, size: int):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([TEXT] * 4 + TEXT.split(". ")), model_writer=model, vocab_size=size, model_type="bpe",
        pad_id=3, character_coverage=1.0, normalization_rule_name="identity", minloglevel=2)
    path.write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def folder(out: Path, config: dict, extra: dict, seed: int, codebooks: int):
    """Writes the files of a model and reads them back by the package's own loaders."""
    gen = torch.Generator().manual_seed(seed)
    out.mkdir(parents=True, exist_ok=True)
    save_json(out / "mimi_config.json", REAL_RATE)
    make_mimi(out / "mimi.safetensors", REAL_RATE, gen)
    mimi = loaders.get_mimi(out / "mimi.safetensors", REAL_RATE, num_codebooks=codebooks)
    pieces = tokenizer(out / "tokenizer.model", config["text_card"])
    lm = loaders.get_moshi_lm(None, copy.deepcopy(config), dtype=torch.float32)
    randomise_lm(lm, gen)
    lm.text_linear.weight[[0, 3]] *= 4
    save(out / "model.safetensors", public_names(lm))
    names = {"mimi_name": "mimi.safetensors", "moshi_name": "model.safetensors", "tokenizer_name": "tokenizer.model"}
    save_json(out / "config.json", dict(config, **extra, **names))
    lm = loaders.get_moshi_lm(out / "model.safetensors", copy.deepcopy(config), dtype=torch.float32)
    return gen, mimi, pieces, lm


def converse(lm, mimi, pcm):
    """What a model says to sound, frame by frame: tokens, samples, and the least margin of its choices."""
    lm_gen, taps, told, said = LMGen(lm, use_sampling=False), Taps(lm), [], []
    with lm_gen.streaming(2), mimi.streaming(2):
        for t, chunk in enumerate(pcm.split(mimi.frame_size, dim=-1)):
            codes = mimi.encode(chunk)
            for _ in range(2 if t == 0 else 1):
                frame = lm_gen.step(codes)
            if frame is not None:
                told.append(frame.clone())
                said.append(mimi.decode(frame[:, 1:]).clone())
    taps.close()
    least = min(margin(torch.stack(taps.text)), margin(torch.stack([torch.stack(d, 1) for d in taps.depth])))
    return torch.cat(told, -1).int(), torch.cat(said, -1)[:, 0], least


def talk(out: Path, seed: int, frames: int):
    config = dict(moshi_make.CASES["moshi"], text_card=80)
    gen, mimi, pieces, lm = folder(out, config, {"model_type": "moshi"}, seed, config["n_q"] - config["dep_q"])
    pcm = sound(2, frames * mimi.frame_size, 24000, gen)
    told, said, least = converse(lm, mimi, pcm)
    words = ["".join(pieces.id_to_piece(int(t)).replace("▁", " ") for t in stream[0] if t > 3) for stream in told]
    save(out / "dump.safetensors", {"pcm": pcm[:, 0], "frames": told, "decoded": said})
    save_json(out / "trace.json", {"text": words})
    print("talk", "least margin", least, words)
    # The same weights and sound with text that comes a step late, as no published model has it.
    late = dict(config, delays=[1] + config["delays"][1:])
    lm = loaders.get_moshi_lm(out / "model.safetensors", late, dtype=torch.float32)
    told, _, least = converse(lm, mimi, pcm)
    save(out / "late.safetensors", {"frames": told})
    print("late text", "least margin", least)


def say(out: Path, seed: int):
    config = copy.deepcopy(tts_make.CASES["tts"])
    config["text_card"] = 80
    extra = {"model_type": "tts", "tts_config": tts_make.EXTRA["tts"], "model_id": {"sig": "abcd", "epoch": 7}}
    gen, mimi, pieces, lm = folder(out, config, extra, seed, config["n_q"])
    voices = []
    for name in ("anna", "ben"):
        path = out / "voices" / f"{name}.wav.abcd@7.safetensors"
        save(path, {"speaker_wavs": torch.randn(1, 12, 5, generator=gen)})
        voices.append(path)
    model = TTSModel(lm=lm, mimi=mimi, tokenizer=pieces, voice_suffix="", voice_repo="", temp=0.0, n_q=config["n_q"],
                     machine=StateMachine(TokenIds(lm.text_card + 1), 2, 8, 2), delay_steps=5, max_gen_length=400)
    dump, traces, least = {}, [], 1e9
    for run, (script, who, cfg) in enumerate([
        (["hello there, this is a tiny test"], voices[:1], 2.0),
        (["one two: <break time=\"0.4s\"/> three", "the lazy dog", "what a lovely day."], voices, 1.5),
        # As moshi-server's tts.py has a voice of a file.
        (["hello there, this is a tiny test"], [voices[0], voices[0]], 2.0),
    ]):
        taps = Taps(lm)
        result = model.generate([model.prepare_script(script, padding_between=1)],
                                [model.make_condition_attributes(who, cfg_coef=cfg)], use_sampling=False)
        taps.close()
        least = min(least, margin(torch.stack([torch.stack(d, 1) for d in taps.depth])))
        frames = torch.cat(result.frames, -1)[0, 1:, model.delay_steps:]
        with mimi.streaming(1):
            pcm = [mimi.decode(frames[None, :, t:t + 1]).clone() for t in range(frames.shape[1])]
        dump[f"frames{run}"] = frames.int()
        if run < 2:
            dump[f"decoded{run}"] = torch.cat(pcm[:10], -1)[0, 0]
        traces.append({"script": script, "voices": [v.name.split(".")[0] for v in who], "cfg": cfg, "end": result.end_steps[0],
                       "words": result.all_transcripts[0], "final_padding": model.final_padding})
    save(out / "dump.safetensors", dump)
    save_json(out / "trace.json", traces)
    print("say", "least margin", least, [t["end"] for t in traces])


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--out", type=Path, required=True)
    args.add_argument("--seed", type=int, default=0)
    a = args.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    talk(a.out / "talk", a.seed, 10)
    say(a.out / "say", a.seed)


if __name__ == "__main__":
    main()
