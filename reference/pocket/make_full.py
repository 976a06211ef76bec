"""Full-size random checkpoints in the published layout, with a voice and a step-by-step dump.

    python make_full.py --config english --out DIR --seed 0 --frames 200

DIR gets config.yaml (file names relative to DIR), model.safetensors (f32), model_bf16.safetensors (the same
values), tokenizer.json, tokenizer.model, voice.safetensors, prompt.wav, dump.safetensors and dump.json. The
model never ends by itself, so every engine makes the same number of frames.
"""

import argparse
import json
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import dump
import safetensors.torch
import scipy.io.wavfile
import torch
import unigram
import yaml
from pocket_tts import TTSModel
from pocket_tts.models.model_state import export_model_state
from pocket_tts.utils.config import CONFIGS_DIR
from randomise import randomise

TEXT = "The quick brown fox jumps over the lazy dog and small speech engine runs fast enough for you and me."


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--config", required=True, help="name of a config shipped with pocket-tts")
    ap.add_argument("--out", required=True, type=Path)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--frames", type=int, default=20)
    ap.add_argument("--voice-frames", type=int, default=125)
    a = ap.parse_args()
    torch.set_num_threads(1)
    a.out.mkdir(parents=True, exist_ok=True)
    cfg = yaml.safe_load((CONFIGS_DIR / f"{a.config}.yaml").read_text())
    table = cfg["flow_lm"]["lookup_table"]
    pieces = unigram.make_pieces(table["n_bins"], a.seed)
    unigram.save_json(pieces, a.out / "tokenizer.json", "converted")
    unigram.save_model(pieces, a.out / "tokenizer.model")
    table["tokenizer_path"] = "tokenizer.json" if table["tokenizer"] == "tokenizers" else "tokenizer.model"
    cfg.pop("weights_path_without_voice_cloning", None)
    cfg.pop("weights_path", None)
    os.chdir(a.out)
    Path("config.yaml").write_text(yaml.safe_dump(cfg, allow_unicode=True, sort_keys=False))
    model = TTSModel.load_model(config="config.yaml")
    randomise(model, a.seed)
    weights = {k: v.contiguous() for k, v in model.state_dict().items()}
    safetensors.torch.save_file(weights, "model.safetensors")
    safetensors.torch.save_file({k: v.to(torch.bfloat16) for k, v in weights.items()}, "model_bf16.safetensors")
    cfg = {"weights_path": "model.safetensors"} | cfg
    Path("config.yaml").write_text(yaml.safe_dump(cfg, allow_unicode=True, sort_keys=False))

    model = TTSModel.load_model(config="config.yaml")
    out: dump.Tensors = {}
    # 15 % of the sound is a quiet tail that the package cuts before it appends 80 ms of silence.
    wav = dump.harmonic((a.voice_frames - 1) * 0.08 / 0.85, model.sample_rate, a.seed)
    scipy.io.wavfile.write("prompt.wav", model.sample_rate, (wav[0] * 32768).round().to(torch.int16).numpy())
    state = dump.voice(model, wav, out)
    export_model_state(state, "voice.safetensors")
    tokens = model.flow_lm.conditioner.prepare(TEXT)
    out["text/tokens"] = tokens[0]
    with torch.no_grad():
        out["text/emb"] = model.flow_lm.conditioner(tokens)[0]
    latents = dump.generate(model, state, tokens, a.frames, None, out, "zero", detail=2)
    gen = torch.Generator().manual_seed(a.seed + 1)
    noise = torch.randn(a.frames, model.flow_lm.ldim, generator=gen) * 0.3**0.5
    noisy = dump.generate(model, state, tokens, a.frames, noise, out, "noise", detail=1)
    n = min(a.frames, 30)
    calls = [1, 2] + [1] * (n - 3)
    out["zero/audio"] = dump.decode(model, latents[:n], calls, out, "dec", 2, 10**9)
    out["noise/audio"] = dump.decode(model, noisy[:n], calls, out, "unused", 0, 0)
    report = {
        "config": a.config,
        "seed": a.seed,
        "text": TEXT,
        "tokens": tokens[0].tolist(),
        "frames": a.frames,
        "audio_frames": n,
        "decoder_calls": calls[:2],
        "voice_positions": int(state["transformer.layers.0.self_attn"]["offset"][0]),
        "sensitivity": dump.sensitivity(model, state, tokens, noise, noisy),
        "latent_rms": float(latents.square().mean().sqrt()),
        "audio_rms": float(out["zero/audio"].square().mean().sqrt()),
    }
    safetensors.torch.save_file({k: v.contiguous().clone() for k, v in out.items()}, "dump.safetensors")
    Path("dump.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({k: v for k, v in report.items() if k != "tokens"}))


if __name__ == "__main__":
    main()
