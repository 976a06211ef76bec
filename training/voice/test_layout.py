"""Checks that the training form and the original package compute the same thing.

    python test_layout.py MODEL_FOLDER

Compares, on the same weights: the decoder's sound for random latents, and the language model's
first outputs, whole-sequence here against step by step there.
"""

import os
import sys
from pathlib import Path

import torch
import yaml

from model import LATENT, Decoder, FlowLM

folder = Path(sys.argv[1]).resolve()
config = yaml.safe_load((folder / "config.yaml").read_text())
os.chdir(folder)
from pocket_tts import TTSModel  # noqa: E402
from pocket_tts.modules.stateful_module import increment_steps, init_states  # noqa: E402

original = TTSModel.load_model(config="config.yaml", temp=0.0)
lm, decoder = FlowLM(config["flow_lm"]), Decoder(config["mimi"])
lm.load_state_dict({k: v for k, v in original.flow_lm.state_dict().items() if k != "speaker_proj_weight"})
decoder.load_state_dict({k: v for k, v in original.mimi.state_dict().items() if not k.startswith(("encoder", "downsample"))})
torch.manual_seed(1)
with torch.no_grad():
    latents = torch.randn(1, 30, LATENT)
    state = init_states(original.mimi, 1, 30 * 16)
    pieces = []
    for i in range(0, 30, 3):
        pieces.append(original.mimi.decode_from_latent(latents[:, i: i + 3], state))
        increment_steps(original.mimi, state, 16 * 3)
    there, here = torch.cat(pieces, -1)[0, 0], decoder(latents)[0]
    print("decoder", float((there - here).abs().max()), "of", float(here.abs().max()))
    assert (there - here).abs().max() < 1e-3 * here.abs().max() + 1e-5

    voice = original.get_state_for_audio_prompt("voice.safetensors")
    tokens = original.flow_lm.conditioner.prepare("hello there, this is a test.")
    original._expand_kv_cache(voice, sequence_length=1 + tokens.shape[1] + 8)
    original._run_flow_lm_and_increment_step(model_state=voice, text_tokens=tokens)
    given = torch.full((1, 1, LATENT), float("nan"))
    made = []
    for _ in range(8):
        given, _ = original._run_flow_lm_and_increment_step(model_state=voice, backbone_input_latents=given)
        given = given.view(1, 1, LATENT)
        made.append(given)
    made = torch.cat(made, 1)
    previous = torch.cat([torch.zeros(1, 1, LATENT), made[:, :-1]], 1)
    h = lm.hidden(tokens, torch.tensor([tokens.shape[1]]), previous)
    ours = lm.flow_net(h, torch.zeros(1, 8, LATENT))
    print("language model", float((ours - made).abs().max()), "of", float(made.abs().max()))
    assert (ours - made).abs().max() < 1e-3 * made.abs().max() + 1e-4
print("the layouts agree")
