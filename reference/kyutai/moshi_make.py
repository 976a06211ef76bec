"""Small random dialogue models, and what the published package says in answer to given codes.

    NO_TORCH_COMPILE=1 python moshi_make.py --out ../../crates/voce-models/tests/fixtures/kyutai --seed 0
"""
import argparse
import json
from pathlib import Path

import torch
from moshi.models import LMGen, loaders

from lm_common import Taps, candle_names, margin, public_names, randomise, save, save_json

COMMON = {
    "card": 24, "hidden_scale": 4.125, "causal": True, "layer_scale": None, "gating": "silu", "norm": "rms_norm_f32",
    "positional_embedding": "rope", "existing_text_padding_id": 3, "depformer_multi_linear": True,
    "depformer_pos_emb": "none", "depformer_weights_per_step": True, "depformer_gating": "silu",
    "depformer_layer_scale": None, "depformer_max_period": 10000,
}
CASES = {
    # As Moshi: a set of weights for each code.
    "moshi": dict(COMMON, dim=32, text_card=40, n_q=6, dep_q=3, delays=[0, 0, 1, 1, 0, 1, 1], num_heads=2, num_layers=2,
                  context=10, max_period=10000.0, depformer_dim=16, depformer_num_heads=2, depformer_num_layers=2,
                  depformer_dim_feedforward=66, depformer_context=3),
    # Shared sets, longer delays, other widths.
    "moshi_shared": dict(COMMON, dim=24, text_card=30, n_q=7, dep_q=4, delays=[0, 0, 2, 2, 1, 0, 2, 1], num_heads=3,
                         num_layers=1, context=8, max_period=5000.0, depformer_dim=24, depformer_num_heads=3,
                         depformer_num_layers=1, depformer_weights_per_step_schedule=[0, 1, 1, 2],
                         depformer_low_rank_embeddings=6),
}


def make(out: Path, name: str, config: dict, seed: int, steps: int) -> float:
    gen = torch.Generator().manual_seed(seed)
    lm = loaders.get_moshi_lm(None, json.loads(json.dumps(config)), dtype=torch.float32)
    randomise(lm, gen)
    weights = public_names(lm)
    schedule = config.get("depformer_weights_per_step_schedule", list(range(config["dep_q"])))
    save(out / name / "model.safetensors", weights)
    save(out / name / "candle.safetensors", candle_names(weights, schedule, config["depformer_num_layers"]))
    save_json(out / name / "config.json", dict(config, model_type="moshi"))
    lm = loaders.get_moshi_lm(out / name / "model.safetensors", json.loads(json.dumps(config)), dtype=torch.float32)
    streams, given = 2, config["n_q"] - config["dep_q"]
    codes = torch.randint(0, config["card"], (streams, given, steps), generator=gen)
    lm_gen = LMGen(lm, use_sampling=False)
    taps, frames = Taps(lm), []
    with lm_gen.streaming(streams):
        # The first frame goes in twice, as in the package's own inference: step 0 sees initial tokens alone.
        for t in [0] + list(range(steps)):
            frame = lm_gen.step(codes[:, :, t:t + 1])
            if frame is not None:
                frames.append(frame.clone())
    taps.close()
    dump = dict(taps.tensors(), codes=codes.int(), frames=torch.cat(frames, -1).int())
    save(out / name / "dump.safetensors", dump)
    return min(margin(dump["text_logits"]), margin(dump["depth_logits"]))


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--out", type=Path, required=True)
    args.add_argument("--seed", type=int, default=0)
    args.add_argument("--steps", type=int, default=22)
    a = args.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    for name, config in CASES.items():
        print(name, "least margin", make(a.out, name, config, a.seed, a.steps))


if __name__ == "__main__":
    main()
