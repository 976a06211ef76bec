"""Small random backbones without a depth transformer, and what the published package computes from them.

    NO_TORCH_COMPILE=1 python lm_make.py --out ../../crates/voce-models/tests/fixtures/kyutai --seed 0
"""
import argparse
import json
from pathlib import Path

import torch
from moshi.models import LMGen, loaders

from lm_common import Taps, margin, public_names, randomise, save, save_json

COMMON = {
    "card": 24, "hidden_scale": 4.125, "causal": True, "layer_scale": None, "gating": "silu", "norm": "rms_norm_f32",
    "positional_embedding": "rope", "existing_text_padding_id": 3, "dep_q": 0,
}
CASES = {
    # Rings that wrap, four extra heads, as the recogniser of 1B.
    "lm_heads": dict(COMMON, dim=32, text_card=40, n_q=4, delays=[0] * 5, num_heads=2, num_layers=2, context=10,
                     max_period=100000.0, extra_heads_num_heads=4, extra_heads_dim=6),
    # Other widths, exactly four times the width, layer scales, delays, a value for a table of conditions.
    "lm_plain": dict(COMMON, dim=36, text_card=21, n_q=3, delays=[0, 0, 1, 2], num_heads=3, num_layers=2, context=7,
                     hidden_scale=4.0, max_period=10000.0, layer_scale=0.1,
                     conditioners={"mood": {"type": "lut", "lut": {"n_bins": 3, "dim": 5, "tokenizer": "noop",
                                                                   "possible_values": ["low", "high"]}}},
                     fuser={"sum": ["mood"], "cross": [], "prepend": []}),
}


def make(out: Path, name: str, config: dict, seed: int, steps: int) -> float:
    gen = torch.Generator().manual_seed(seed)
    lm = loaders.get_moshi_lm(None, json.loads(json.dumps(config)), dtype=torch.float32)
    randomise(lm, gen)
    save(out / name / "model.safetensors", public_names(lm))
    save_json(out / name / "config.json", dict(config, model_type="stt"))
    lm = loaders.get_moshi_lm(out / name / "model.safetensors", json.loads(json.dumps(config)), dtype=torch.float32)
    conditions = None
    streams = 3
    if "conditioners" in config:
        from moshi.conditioners import ConditionAttributes
        values = ["low", None, "high"]
        conditions = lm.condition_provider.prepare_and_provide(
            [ConditionAttributes(text={"mood": v}, tensor={}) for v in values])
    codes = torch.randint(0, config["card"], (streams, config["n_q"], steps), generator=gen)
    lm_gen = LMGen(lm, temp=0.0, temp_text=0.0, condition_tensors=conditions, support_out_of_sync=True)
    taps, tokens, heads = Taps(lm), [], []
    with lm_gen.streaming(streams):
        for t in range(steps):
            _, given = lm_gen.step_with_extra_heads(codes[:, :, t:t + 1])
            state = lm_gen._streaming_state
            at = (state.offsets % state.cache.shape[2])[:, None]
            tokens.append(state.cache[:, 0].gather(1, at)[:, 0])
            if given:
                heads.append(torch.stack([h[:, 0] for h in given], 1))
    taps.close()
    dump = dict(taps.tensors(), codes=codes.int(), tokens=torch.stack(tokens).int())
    if heads:
        dump["heads"] = torch.stack(heads)
    save(out / name / "dump.safetensors", dump)
    return margin(dump["text_logits"])


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--out", type=Path, required=True)
    args.add_argument("--seed", type=int, default=0)
    args.add_argument("--steps", type=int, default=24)
    a = args.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    for name, config in CASES.items():
        print(name, "least margin", make(a.out, name, config, a.seed, a.steps))


if __name__ == "__main__":
    main()
