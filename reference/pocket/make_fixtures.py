"""Small random models in the published layout, with what the published package computes from them.

    python make_fixtures.py --out DIR --case all --seed 0

Every case of cases.py becomes a folder; README.md lists the files and the tensors of the dump.
"""

import argparse
import copy
import json
import os
import shutil
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import dump
import safetensors.torch
import scipy.io.wavfile
import torch
import unigram
import yaml
from cases import CASES
from pocket_tts import TTSModel
from pocket_tts.models.model_state import export_model_state
from randomise import NEVER, randomise
from texts import texts

TEXT = "The quick brown fox jumps over the lazy dog."
WITH_TEXTS = ("lsd4", "wide_speaker", "separate", "drifting")


def write_config(cfg: dict):
    Path("config.yaml").write_text(yaml.safe_dump(cfg, allow_unicode=True, sort_keys=False))


def old_flow_names(weights: dict) -> dict:
    renames = {
        "conditioner.embed.weight": "condition_provider.conditioners.transcript_in_segment.embed.weight",
        "speaker_proj_weight": "condition_provider.conditioners.speaker_wavs.output_proj.weight",
        "bos_before_voice": "fuser.padding_value",
    }
    out = {renames.get(k, k).replace(".in_proj.weight", ".in_proj_weight"): v for k, v in weights.items()}
    # What a loader must skip.
    out["num_ema_updates"] = torch.ones(1)
    out["flow.w_s_t.freqs"] = torch.ones(2)
    for kind in ("transcript_in_segment", "speaker_wavs"):
        out[f"condition_provider.conditioners.{kind}.learnt_padding"] = torch.ones(1, 1, 2)
    return out


def old_mimi_names(weights: dict) -> dict:
    """Doubled conv names, and weight norm (norms along dimension 0) on the SEANet convolutions."""
    out = {}
    for name, t in weights.items():
        name = name.replace(".in_proj.weight", ".in_proj_weight")
        seanet = name.startswith(("encoder.model.", "decoder.model."))
        if seanet or "sample." in name:
            for conv in ("conv", "convtr"):
                name = name.replace(f".{conv}.weight", f".{conv}.{conv}.weight")
                name = name.replace(f".{conv}.bias", f".{conv}.{conv}.bias")
        if seanet and name.endswith(".weight"):
            g = t.flatten(1).norm(dim=1).reshape(-1, *[1] * (t.dim() - 1))
            out[name + "_g"] = g
            out[name + "_v"] = t * 1.5  # a direction: its length must not matter
        else:
            out[name] = t
    out["quantizer.logvar_proj.weight"] = torch.ones(2, 2, 1)
    out["quantizer.logvar_param"] = torch.ones(1)
    out["wavlm_proj.weight"] = torch.ones(2, 2)
    out["wavlm_emb_downsample.conv.conv.weight"] = torch.ones(2, 2, 1)
    return out


def save_weights(model, cfg: dict, layout: str):
    weights = {k: v.contiguous() for k, v in model.state_dict().items()}
    if layout == "bundle":
        safetensors.torch.save_file({k: v.to(torch.bfloat16) for k, v in weights.items()}, "model.safetensors")
        return {"weights_path": "model.safetensors"} | cfg
    part = lambda p: {k.removeprefix(p): v for k, v in weights.items() if k.startswith(p)}  # noqa: E731
    flow = {k: v.to(torch.bfloat16) for k, v in old_flow_names(part("flow_lm.")).items()}
    safetensors.torch.save_file(flow, "flow_lm.safetensors")
    safetensors.torch.save_file(old_mimi_names(part("mimi.")), "mimi.safetensors")
    cfg = copy.deepcopy(cfg)
    cfg["flow_lm"]["weights_path"] = "flow_lm.safetensors"
    cfg["mimi"]["weights_path"] = "mimi.safetensors"
    return cfg


def say_report(model, state, spec: dict, out: dict):
    return dump.say(model, state, spec["say"], out, "say", **spec["say_options"])


def choose_eos_bias(model, state, spec: dict) -> float:
    """A bias with which most chunks end by EOS, some logit crosses in the six ignored frames, and none is close."""
    bias = model.flow_lm.out_eos.bias
    with torch.no_grad():
        bias.fill_(NEVER)
    report = say_report(model, state, spec, {})
    runs = [[x - NEVER for x in logits] for logits in report["logits"]]
    best = (-1.0, NEVER)
    for k in range(-512, 513):
        b = float(torch.tensor(k / 64).to(torch.bfloat16))
        score, margin = 0.0, 1e9
        for chunk, logits in zip(report["chunks"], runs):
            over = [x + b - model.eos_threshold for x in logits]
            hits = [i for i, x in enumerate(over) if x > 0 and i >= 6]
            end = hits[0] + chunk["frames_after_eos"] if hits else len(over)
            margin = min(margin, *(abs(x) for x in over[: end + 1]))
            late = bool(hits) and hits[0] > 6
            ended = bool(hits) and end + 2 < len(over)
            score += 2.0 * ended + 1.5 * late + (0.5 + late) * any(x > 0 for x in over[:6])
        if margin > 0.005 and score + min(margin, 0.05) > best[0]:
            best = (score + min(margin, 0.05), b)
    return best[1]


def build(name: str, out_dir: Path, seed: int) -> dict:
    spec = CASES[name]
    folder = out_dir / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    home = Path.cwd()
    os.chdir(folder)
    try:
        return _build(name, spec, seed)
    finally:
        os.chdir(home)


def _build(name: str, spec: dict, seed: int) -> dict:
    cfg = spec["config"]
    table = cfg["flow_lm"]["lookup_table"]
    pieces = unigram.make_pieces(table["n_bins"], seed)
    if table["tokenizer"] == "sentencepiece":
        unigram.save_model(pieces, Path("tokenizer.model"), not spec["sp_keep_spaces"])
    else:
        unigram.save_json(pieces, Path("tokenizer.json"), spec["json"])
    load = {"config": "config.yaml", "sampler_decode_steps": spec["steps"], "temp": spec["temp"]}
    write_config(cfg)
    model = TTSModel.load_model(**load)
    randomise(model, seed + sum(name.encode()))
    write_config(save_weights(model, cfg, spec["layout"]))
    model = TTSModel.load_model(**load)

    out: dump.Tensors = {}
    wav = dump.harmonic(spec["prompt_s"], model.sample_rate, seed)
    scipy.io.wavfile.write("prompt.wav", model.sample_rate, (wav[0] * 32768).round().to(torch.int16).numpy())
    state = dump.voice(model, wav, out, columns=32)
    if spec["eos"]:
        bias = choose_eos_bias(model, state, spec)
        model.state_dict()["flow_lm.out_eos.bias"].fill_(bias)
        write_config(save_weights(model, cfg, spec["layout"]))
        model = TTSModel.load_model(**load)
        state = dump.voice(model, wav, out, columns=32)  # folding weight norm again moves the last bit
    export_model_state(state, "voice.safetensors")
    if spec["old_voice"]:
        old = {}
        for module, part in state.items():
            old[f"{module}/cache"] = part["cache"]
            old[f"{module}/current_end"] = torch.zeros(int(part["offset"][0]))
        safetensors.torch.save_file(old, "voice_old.safetensors")

    tokens = model.flow_lm.conditioner.prepare(TEXT)
    out["text/tokens"] = tokens[0]
    with torch.no_grad():
        out["text/emb"] = model.flow_lm.conditioner(tokens)[0]
    latents = dump.generate(model, state, tokens, spec["frames"], None, out, "zero", detail=3, keep_c=40)
    gen = torch.Generator().manual_seed(seed + 1)
    noise = torch.randn(spec["frames"], model.flow_lm.ldim, generator=gen) * spec["temp"] ** 0.5
    noisy = dump.generate(model, state, tokens, spec["frames"], noise, out, "noise", detail=2, keep_c=40)
    n = spec["audio_frames"]
    calls = [1, 2] + [1] * (n - 3)
    columns = 240 if model.sample_rate > 10000 else 10**9
    out["zero/audio"] = dump.decode(model, latents[:n], calls, out, "dec", 2, columns)
    out["noise/audio"] = dump.decode(model, noisy[:4], [1, 2, 1], out, "unused", 0, 0)
    report = {
        "case": name,
        "seed": seed,
        "sampler_decode_steps": spec["steps"],
        "temperature": spec["temp"],
        "eos_threshold": model.eos_threshold,
        "text": TEXT,
        "tokens": tokens[0].tolist(),
        "frames": spec["frames"],
        "audio_frames": n,
        "decoder_calls": calls,
        "voice_positions": int(state["transformer.layers.0.self_attn"]["offset"][0]),
        "sensitivity": dump.sensitivity(model, state, tokens, noise, noisy),
        "latent_rms": float(latents.square().mean().sqrt()),
        "audio_rms": float(out["zero/audio"].square().mean().sqrt()),
    }
    if spec["say"]:
        report["say"] = say_report(model, state, spec, out)
        report["say"].pop("logits")
    if name in WITH_TEXTS:
        rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in texts(model))
        Path("texts.json").write_text(f"[\n{rows}\n]\n")
    safetensors.torch.save_file({k: v.contiguous().clone() for k, v in out.items()}, "dump.safetensors")
    Path("dump.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    for path in Path().iterdir():
        path.chmod(0o644)
    return report


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", required=True, type=Path)
    ap.add_argument("--case", default="all", choices=["all", *CASES])
    ap.add_argument("--seed", type=int, default=0)
    a = ap.parse_args()
    torch.set_num_threads(1)
    for name in CASES if a.case == "all" else [a.case]:
        r = build(name, a.out.resolve(), a.seed)
        size = sum(f.stat().st_size for f in (a.out / name).iterdir())
        ends = [(c["eos_step"], c["frames"], c["max_frames"], c["early_eos"]) for c in r.get("say", {}).get("chunks", [])]
        print(f"{name:14s} {size // 1024:5d} KiB  rms {r['latent_rms']:.2f}/{r['audio_rms']:.3f}  "
              f"sensitivity {r['sensitivity']:.1e}  say (eos, frames, max, early) {ends}")


if __name__ == "__main__":
    main()
