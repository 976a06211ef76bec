"""Small random models in the published layout, with what the published package computes from them.

    python make_fixtures.py --out DIR --case all --seed 0

Every case of cases.py becomes a folder; README.md lists the files and the tensors of the dump.
"""

import argparse
import copy
import json
import math
import os
import shutil
import warnings
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
warnings.filterwarnings("ignore")

import cases
import numpy as np
import record
import sampler
import scipy.io.wavfile
import tokens
import torch
from qwen_tts import Qwen3TTSModel
from qwen_tts.core.models import Qwen3TTSConfig, Qwen3TTSForConditionalGeneration
from qwen_tts.core.tokenizer_12hz.configuration_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Config
from qwen_tts.core.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Model
from randomise import randomise
from safetensors.torch import save_file

FRAMES = 9  # of a run that meets no EOS
MARGIN = 2e-4  # a seed whose choices are closer than this is passed over
REFERENCE_TEXT = "the reference words"
CALLS = {"base": "generate_voice_clone", "custom_voice": "generate_custom_voice", "voice_design": "generate_voice_design"}
GREEDY = dict(do_sample=False, subtalker_dosample=False, repetition_penalty=1.05)


def harmonic(seconds: float, rate: int, seed: int) -> np.ndarray:
    """A gliding voice-like tone with noise, in 16-bit steps."""
    t = torch.arange(int(seconds * rate)) / rate
    gen = torch.Generator().manual_seed(seed)
    top = rate / 24000
    wav = 0.4 * torch.sin(2 * math.pi * top * (120 + 300 * t) * t) + 0.2 * torch.sin(2 * math.pi * top * 1713 * t)
    wav = (wav + 0.05 * torch.randn(t.shape, generator=gen)).clamp(-1, 1)
    return ((wav * 32767).round() / 32768).numpy()


def write_json(path: Path, value):
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_codec(folder: Path, config: dict, seed: int):
    folder.mkdir()
    write_json(folder / "config.json", config)
    write_json(folder / "configuration.json", {"framework": "pytorch", "task": "feature-extraction", "allow_remote": True})
    write_json(folder / "preprocessor_config.json", dict(
        chunk_length_s=None, feature_extractor_type="EncodecFeatureExtractor", feature_size=1, overlap=None, padding_side="right",
        padding_value=0.0, return_attention_mask=True, sampling_rate=config["input_sample_rate"]))
    codec = Qwen3TTSTokenizerV2Model(Qwen3TTSTokenizerV2Config(**copy.deepcopy(config))).eval()
    randomise(codec, seed, bf16=False)
    save_file({k: v.contiguous().clone() for k, v in codec.state_dict().items()}, folder / "model.safetensors", metadata={"format": "pt"})


def save_model(folder: Path, model, dtype: str, shards: int):
    to = {"bf16": torch.bfloat16, "f32": torch.float32}[dtype]
    weights = {k: (v.to(to) if v.is_floating_point() else v).contiguous().clone() for k, v in model.state_dict().items()}
    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(weights)
    where = {}
    for i in range(shards):
        part = names[i * len(names) // shards : (i + 1) * len(names) // shards]
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        save_file({k: weights[k] for k in part}, folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(part, file)
    size = sum(v.numel() * v.element_size() for v in weights.values())
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": where})


def load(folder: Path):
    model = Qwen3TTSModel.from_pretrained(str(folder), dtype=torch.float32, attn_implementation="eager")
    model.processor.tokenizer = tokens.published(folder)
    return model


def run(model, spec: dict, case: dict, clones: dict, layers: bool) -> tuple[dict, dict]:
    """One greedy call through the package's own door; the tensors of README.md and what dump.json says of them."""
    kind = case["kind"]
    kw = {k: v for k, v in spec.items() if k in ("text", "language", "speaker", "instruct", "non_streaming_mode")}
    if kind == "base":
        kw["voice_clone_prompt"] = [clones[spec["clone"]]]
    talker = model.model.config.talker_config
    rec = record.Recorder(model.model, layers)
    box, original = {}, model.model.generate

    def generate(**k):
        box.update(k)
        result = original(**k)
        box["codes"] = result[0][0]
        return result

    model.model.generate = generate
    try:
        wavs, rate = getattr(model, CALLS[kind])(**kw, max_new_tokens=FRAMES + 1, **GREEDY)
    finally:
        model.model.generate = original
        t = rec.close(cases.CODEBOOK, talker.codec_eos_token_id)
    for name in ("input_ids", "instruct_ids", "ref_ids"):
        if box.get(name) is not None and box[name][0] is not None:
            t[name] = box[name][0][0]
    t["codes"] = box["codes"].T
    if spec.get("audio"):
        t["audio"] = torch.from_numpy(wavs[0])
    info = {k: v for k, v in kw.items() if k != "voice_clone_prompt"}
    if kind == "base":
        info |= dict(clone=spec["clone"], ref_text=REFERENCE_TEXT if spec["clone"] == "icl" else None)
    info |= dict(non_streaming_mode=box["non_streaming_mode"], frames=int(box["codes"].shape[0]), samples=len(wavs[0]), rate=rate,
                 ended=int(t["sequence"][-1]) == talker.codec_eos_token_id,
                 margins=record.margins(t, talker.codec_eos_token_id, GREEDY["repetition_penalty"]))
    return t, info


def teach_eos(model, case: dict, clones: dict):
    """Turns the EOS row of the head towards the hidden state of a late step of one run, so that this run ends there."""
    t, _ = run(model, case["runs"][case["eos"]], case, clones, False)
    head, eos = model.model.talker.codec_head.weight, model.model.config.talker_config.codec_eos_token_id
    at = 6
    turn = t["hidden"][at] - t["hidden"][:at].mean(0)
    reach = float(t["hidden"][at] @ turn)
    with torch.no_grad():
        head[eos] = (turn * (float(t["logits"][at].max()) * 1.3 + 1.0) / reach).bfloat16().float()


def build(name: str, out: Path, seed: int) -> dict:
    case, folder = cases.CASES[name], out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    base_seed = 1000 * seed + sum(name.encode())
    ids, text_vocab, vocab = tokens.write(folder)
    config = cases.model_config(case["kind"], case["size"], ids, vocab, case.get("text_vocab", text_vocab + 4), case["talker"], case["predictor"],
                                case["groups"], case.get("speaker"))
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", cases.GENERATION)
    codec_config = cases.codec_config(**case["codec"])
    write_codec(folder / "speech_tokenizer", codec_config, base_seed + 1)
    module = Qwen3TTSForConditionalGeneration(Qwen3TTSConfig(**copy.deepcopy(config))).eval()
    randomise(module, base_seed, case["dtype"] == "bf16")
    save_model(folder, module, case["dtype"], case.get("shards", 1))
    model = load(folder)

    rate = codec_config["input_sample_rate"]
    wav = harmonic(case.get("ref_s", 1.17), rate, base_seed)
    scipy.io.wavfile.write(folder / "ref.wav", rate, (wav * 32768).round().astype(np.int16))
    dump, report = {}, dict(case=name, seed=seed, package="qwen-tts 0.1.1", torch=torch.__version__, ref_samples=len(wav), rate=rate)
    tokenizer = model.model.speech_tokenizer
    codec = tokenizer.model
    gen = torch.Generator().manual_seed(base_seed + 2)
    frames = 14 if rate < 24000 else 10
    codes = torch.randint(0, cases.CODEBOOK, (case["groups"], frames), generator=gen)
    codes[0, :2] = 1  # the entry that was hardly used
    dump |= {f"dec/{k}": v for k, v in record.decoder_stages(codec.decoder, codes).items()}
    stages, report["encoder_margin"] = record.encoder_stages(codec, tokenizer, wav)
    dump |= {f"enc/{k}": v for k, v in stages.items()}
    clones = {}
    if case["kind"] == "base":
        dump |= {f"speaker/{k}": v for k, v in record.speaker_stages(model.model, wav).items()}
        for clone in ("xvector", "icl"):
            x = clone == "xvector"
            clones[clone] = model.create_voice_clone_prompt((wav, rate), ref_text=None if x else REFERENCE_TEXT, x_vector_only_mode=x)[0]
    if "eos" in case:
        teach_eos(model, case, clones)
        with torch.no_grad():
            module.talker.codec_head.weight.copy_(model.model.talker.codec_head.weight)
        save_model(folder, module, case["dtype"], case.get("shards", 1))
    report["runs"] = {}
    for i, (run_name, spec) in enumerate(case["runs"].items()):
        t, report["runs"][run_name] = run(model, spec, case, clones, layers=i == 0)
        dump |= {f"{run_name}/{k}": v for k, v in t.items()}
    rows = [dict(text=t, ids=model.processor.tokenizer(t)["input_ids"]) for t in tokens.TEXTS]
    (folder / "texts.json").write_text("[\n" + ",\n".join(json.dumps(r, ensure_ascii=False) for r in rows) + "\n]\n", encoding="utf-8")
    save_file({k: (v.int() if v.dtype == torch.int64 else v).detach().contiguous().clone() for k, v in dump.items()}, folder / "dump.safetensors")
    write_json(folder / "dump.json", report)
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(0o644)
    return report


def smallest_margin(report: dict) -> float:
    return min([report["encoder_margin"], *(m for r in report["runs"].values() for m in r["margins"].values())])


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", required=True, type=Path)
    ap.add_argument("--case", default="all", choices=["all", *cases.CASES])
    ap.add_argument("--seed", type=int, default=0)
    a = ap.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for name in cases.CASES if a.case == "all" else [a.case]:
        for seed in range(a.seed, a.seed + 50):
            report = build(name, a.out.resolve(), seed)
            wanted = cases.CASES[name].get("eos")
            if smallest_margin(report) >= MARGIN and (wanted is None or report["runs"][wanted]["ended"]):
                break
        else:
            raise SystemExit(f"{name}: no seed of fifty keeps every choice {MARGIN} apart")
        size = sum(f.stat().st_size for f in (a.out / name).rglob("*") if f.is_file())
        frames = {k: (r["frames"], r["ended"]) for k, r in report["runs"].items()}
        print(f"{name:12s} seed {seed} {size // 1024:5d} KiB  margin {smallest_margin(report):.1e}  frames {frames}", flush=True)
    sampler.write(a.out)


if __name__ == "__main__":
    main()
