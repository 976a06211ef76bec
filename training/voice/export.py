"""Writes a trained model in the published layout.

    python export.py --run run --texts texts --out nano-voice --dtype bfloat16

OUT gets config.yaml, model.safetensors (`flow_lm.*` and `mimi.*`), tokenizer.model and
voice.safetensors (the attention state after the start-of-voice position, one position long).
"""

import argparse
import shutil
from pathlib import Path

import torch
import yaml
from safetensors.torch import save_file

from model import Decoder, FlowLM
from text import REPLACE

HERE = Path(__file__).parent


def conv(name: str, inputs: int, outputs: int, kernel: int) -> dict[str, torch.Tensor]:
    return {f"{name}.weight": torch.zeros(outputs, inputs, kernel), f"{name}.bias": torch.zeros(outputs)}


def placeholder_encoder(mimi: dict) -> dict[str, torch.Tensor]:
    """Zeros in the shape of the config's encoder, which a strict loader expects to find."""
    c, t, out, width, i = mimi["seanet"], mimi["transformer"], {}, mimi["seanet"]["n_filters"], 1
    out |= conv("encoder.model.0.conv", 1, width, c["kernel_size"])
    for ratio in reversed(c["ratios"]):
        hidden = width // c["compress"]
        out |= conv(f"encoder.model.{i}.block.1.conv", width, hidden, c["residual_kernel_size"])
        out |= conv(f"encoder.model.{i}.block.3.conv", hidden, width, 1)
        out |= conv(f"encoder.model.{i + 2}.conv", width, 2 * width, 2 * ratio)
        width, i = 2 * width, i + 3
    out |= conv(f"encoder.model.{i + 1}.conv", width, c["dimension"], c["last_kernel_size"])
    d, hidden = t["d_model"], t["dim_feedforward"]
    for n in range(t["num_layers"]):
        name = f"encoder_transformer.transformer.layers.{n}"
        out |= {
            f"{name}.self_attn.in_proj.weight": torch.zeros(3 * d, d), f"{name}.self_attn.out_proj.weight": torch.zeros(d, d),
            f"{name}.linear1.weight": torch.zeros(hidden, d), f"{name}.linear2.weight": torch.zeros(d, hidden),
            f"{name}.layer_scale_1.scale": torch.zeros(d), f"{name}.layer_scale_2.scale": torch.zeros(d),
        }
        for norm in ("norm1", "norm2"):
            out |= {f"{name}.{norm}.weight": torch.ones(d), f"{name}.{norm}.bias": torch.zeros(d)}
    stride = 16
    out["downsample.conv.conv.weight"] = torch.zeros(mimi["inner_dim"], c["dimension"], 2 * stride)
    return out


@torch.no_grad()
def voice_state(lm: FlowLM, config: dict) -> dict[str, torch.Tensor]:
    """Keys and values of the start-of-voice position (position 0, so the rotation is the identity)."""
    t, out = config["transformer"], {}
    x = lm.bos_before_voice
    for n, layer in enumerate(lm.transformer.layers):
        attention = layer.self_attn
        kv = attention.in_proj(layer.norm1(x))[..., attention.inner:]
        cache = kv.view(1, 1, 2, t["num_kv_heads"], attention.head_width).permute(2, 0, 1, 3, 4)
        out[f"transformer.layers.{n}.self_attn/cache"] = cache.contiguous()
        out[f"transformer.layers.{n}.self_attn/offset"] = torch.ones(1, dtype=torch.long)
        x = layer(x)
    return out


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--run", type=Path, required=True)
    p.add_argument("--texts", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    header = "".join(line for line in (HERE / "config.yaml").open() if line.startswith("#"))
    config = yaml.safe_load((HERE / "config.yaml").read_text())
    config["replace_characters"] = dict(REPLACE)
    lm, decoder = FlowLM(config["flow_lm"]), Decoder(config["mimi"])
    lm.load_state_dict(torch.load(a.run / "lm.pt", map_location="cpu"))
    decoder.load_state_dict(torch.load(a.run / "codec.pt", map_location="cpu")["decoder"])

    dtype = getattr(torch, a.dtype)
    tensors = {f"flow_lm.{k}": v for k, v in lm.state_dict().items()}
    tensors["flow_lm.speaker_proj_weight"] = torch.zeros(config["flow_lm"]["transformer"]["d_model"], config["mimi"]["inner_dim"])
    tensors |= {f"mimi.{k}": v for k, v in decoder.state_dict().items()}
    tensors |= {f"mimi.{k}": v for k, v in placeholder_encoder(config["mimi"]).items()}
    tensors = {k: v.to(dtype).contiguous() for k, v in tensors.items()}
    save_file(tensors, a.out / "model.safetensors", metadata={"format": "pt"})
    lm.load_state_dict({k.removeprefix("flow_lm."): v.float() for k, v in tensors.items() if k.startswith("flow_lm.") and "speaker_proj" not in k})
    save_file(voice_state(lm, config["flow_lm"]), a.out / "voice.safetensors")
    shutil.copy(a.texts / "tokenizer.model", a.out / "tokenizer.model")
    (a.out / "config.yaml").write_text(header + yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=160), encoding="utf-8")
    count = sum(v.numel() for v in tensors.values())
    print(f"{count / 1e6:.3f}M parameters, {(a.out / 'model.safetensors').stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
