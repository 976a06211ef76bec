"""Speed of the Rust engine behind the `ptts` wheel (xn-ptts) on a local Pocket TTS model folder.

    python ptts_xn.py --model DIR --tokens 24 --repeats 5 [--quant q8_0] [--threads 1]

The engine reads its own layout (config.json, an `emb` voice), which is made in a temporary folder; the weights are
linked. It takes the english_2026-01 shape only (512-wide speaker projection). The number of frames follows from
the tokens and cannot be set.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

import measure
import numpy as np
import ptts
import tokenizers
import yaml
from safetensors import safe_open
from safetensors.numpy import save_file


def config_json(cfg: dict) -> dict:
    flow, mimi = cfg["flow_lm"], cfg["mimi"]
    tr, sea, mtr = flow["transformer"], mimi["seanet"], mimi["transformer"]
    sea_fields = "n_filters n_residual_layers ratios kernel_size last_kernel_size residual_kernel_size dilation_base compress"
    mtr_fields = "d_model num_heads num_layers layer_scale context dim_feedforward"
    return {
        "flow_lm": {
            "d_model": tr["d_model"],
            "num_heads": tr["num_heads"],
            "num_layers": tr["num_layers"],
            "dim_feedforward": tr.get("dim_feedforward") or tr["d_model"] * tr["hidden_scale"],
            "max_period": tr["max_period"],
            "n_bins": flow["lookup_table"]["n_bins"],
            "lut_dim": flow["lookup_table"]["dim"],
            "flow_dim": flow["flow"]["dim"],
            "flow_depth": flow["flow"]["depth"],
            "ldim": mimi["quantizer"]["dimension"],
        },
        "mimi": {
            "channels": mimi["channels"],
            "sample_rate": mimi["sample_rate"],
            "frame_rate": mimi["frame_rate"],
            "dimension": sea["dimension"],
            "quantizer_dimension": mimi["quantizer"]["dimension"],
            "quantizer_output_dimension": mimi["quantizer"]["output_dimension"],
            "transformer_max_period": mtr.get("max_period", 10000.0),
        }
        | {k: sea[k] for k in sea_fields.split()}
        | {f"transformer_{k}": mtr[k] for k in mtr_fields.split()},
        "lsd_decode_steps": 1,
        "eos_threshold": cfg.get("default_eos_threshold", -4.0),
        "model_id": None,
    }


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", required=True, type=Path)
    ap.add_argument("--tokens", type=int, default=24)
    ap.add_argument("--frames", type=int, default=None, help="checked, not set")
    ap.add_argument("--repeats", type=int, default=5)
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--quant", default="q8_0", help="f32 for the weights as they are")
    a = ap.parse_args()
    source = a.model.resolve()
    cfg = yaml.safe_load((source / "config.yaml").read_text())
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "config.json").write_text(json.dumps(config_json(cfg)))
        for name in ("model.safetensors", "tokenizer.json"):
            os.symlink(source / name, folder / name)
        (folder / "embeddings").mkdir()
        if (source / "dump.safetensors").exists():
            with safe_open(source / "dump.safetensors", "numpy") as f:
                emb = f.get_tensor("voice/emb")
        else:  # any prompt of ten seconds costs the same
            emb = np.random.default_rng(0).normal(size=(125, cfg["flow_lm"]["transformer"]["d_model"])) * 0.3
        save_file({"emb": np.ascontiguousarray(emb[None], dtype=np.float32)}, folder / "embeddings" / "v.safetensors")
        ptts.set_num_threads(a.threads)
        tts = ptts.TTS(str(folder), quant=None if a.quant == "f32" else a.quant, voice="v", lang="none")
        tok = tokenizers.Tokenizer.from_file(str(source / "tokenizer.json"))
        text = measure.text_of(a.tokens, lambda t: tok.encode(t).ids)

        def stream():
            with tts.stream(text) as chunks:
                for chunk in chunks:
                    yield len(chunk)

        measure.run(f"ptts {tts.quant}", stream, a.repeats, a.threads, tokens=a.tokens, version=ptts.__version__)


if __name__ == "__main__":
    main()
