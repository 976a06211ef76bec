"""Loads every fixture again through the package's own doors and compares.

    python check.py DIR

The prompt file gives the stored voice; both voice formats agree; the chunks, remade one by one and decoded in one
call each, give the audio of the whole run. Prints the largest difference per case; fails above 1e-5.
"""

import json
import logging
import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import dump
import safetensors.torch
import torch
from pocket_tts import TTSModel

LIMIT = 1e-5


def check(folder: Path) -> float:
    os.chdir(folder)
    report = json.loads(Path("dump.json").read_text())
    stored = safetensors.torch.load_file("dump.safetensors")
    steps = report["sampler_decode_steps"]
    model = TTSModel.load_model(config="config.yaml", sampler_decode_steps=steps, temp=report["temperature"])
    voice = model.get_state_for_audio_prompt("voice.safetensors")
    others = [model.get_state_for_audio_prompt(Path("prompt.wav"))]
    if Path("voice_old.safetensors").exists():
        others.append(model.get_state_for_audio_prompt("voice_old.safetensors"))
    worst = 0.0
    for other in others:
        for name, part in voice.items():
            assert torch.equal(part["offset"], other[name]["offset"]), name
            worst = max(worst, float((part["cache"] - other[name]["cache"]).abs().max()))
    n = report["audio_frames"]
    whole = dump.decode(model, stored["zero/latent"][:n], [n], {}, "", 0, 0)
    worst = max(worst, float((whole - stored["zero/audio"]).abs().max()))
    parts = []
    for chunk in report.get("say", {}).get("chunks", []):
        tokens = torch.tensor([chunk["tokens"]])
        latents = dump.generate(model, voice, tokens, chunk["frames"], None, {}, "", 0)
        audio = dump.decode(model, latents, [chunk["frames"]], {}, "", 0, 0)
        fade = model.sample_rate // 200
        audio[:fade] *= torch.linspace(0, 1, fade)
        parts.append(audio)
    if parts:
        worst = max(worst, float((torch.cat(parts) - stored["say/audio"]).abs().max()))
    return worst


def main():
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    folders = sorted(p for p in Path(sys.argv[1]).resolve().iterdir() if (p / "dump.json").exists())
    worst = {p.name: check(p) for p in folders}
    for name, value in worst.items():
        print(f"{name:14s} {value:.1e}")
    if not worst or max(worst.values()) > LIMIT:
        sys.exit(f"above {LIMIT} or nothing to check")


if __name__ == "__main__":
    main()
