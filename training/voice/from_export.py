"""Makes a run folder to go on from, out of an exported model and the kept encoder.

    python from_export.py --model nano-voice --encoder ../checkpoints/nano-voice-encoder.safetensors --out from

The critics and the optimiser's moments are not in there; both come back within some hundred steps.
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file

p = argparse.ArgumentParser()
p.add_argument("--model", type=Path, required=True)
p.add_argument("--encoder", type=Path, required=True)
p.add_argument("--out", type=Path, required=True)
a = p.parse_args()
a.out.mkdir(parents=True, exist_ok=True)
tensors = {k: v.float() for k, v in load_file(a.model / "model.safetensors").items()}
language = {k.removeprefix("flow_lm."): v for k, v in tensors.items() if k.startswith("flow_lm.") and "speaker_proj" not in k}
decoder = {k.removeprefix("mimi."): v for k, v in tensors.items() if k.startswith("mimi.") and not k.startswith(("mimi.encoder", "mimi.downsample"))}
torch.save(language, a.out / "lm.pt")
torch.save({"decoder": decoder, "steps": 0}, a.out / "codec.pt")
torch.save({k: v.float() for k, v in load_file(a.encoder).items()}, a.out / "encoder.pt")
