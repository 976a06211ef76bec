"""`.nemo` archives: the weights under NeMo's names, the YAML keys that NeMo writes, SentencePiece files."""

import hashlib
import io
import json
import tarfile
from collections import OrderedDict
from pathlib import Path

import audio
import dump
import models
import safetensors.torch
import search
import torch
import yaml
from archive_names import nemo_name
from cases import CASES, encoder
from fit import fit_ctc
from tokenizers_made import Pieces, train

HYBRID = CASES["stream"] | {
    "encoder": encoder(
        hidden_size=24,
        num_attention_heads=2,
        intermediate_size=48,
        subsampling_conv_channels=4,
        sliding_window=9,
        default_num_lookahead_tokens=3,
    ),
    "model": {"decoder_hidden_size": 16, "num_decoder_layers": 1},
    "text": "the sun is on the sea",
    "lookaheads": [3, 0],
}


def state_dict(model, spec: dict, joint_index: int, ctc=None) -> OrderedDict:
    """An ordered dictionary with the `_metadata` attribute that a module's own state_dict() carries."""
    front = models.extractor(spec)
    out = OrderedDict()
    out["preprocessor.featurizer.window"] = torch.hann_window(400, periodic=False)
    out["preprocessor.featurizer.fb"] = front.mel_filters[None].clone()
    for name, t in model.state_dict().items():
        out[nemo_name(name, joint_index)] = t.detach().clone()
    if ctc is not None:
        out["ctc_decoder.decoder_layers.0.weight"] = ctc.weight.detach().clone()
        out["ctc_decoder.decoder_layers.0.bias"] = ctc.bias.detach().clone()
    out._metadata = OrderedDict({"": {"version": 1}, "encoder": {"version": 1}})
    return out


def config(spec: dict, pieces: Pieces, files: dict[str, str], dropout: float, target: str, extra: dict) -> dict:
    e, m = spec["encoder"], spec["model"]
    streaming = models.is_streaming(spec)
    left = e["sliding_window"] - 1 if streaming else -1
    labels = list(pieces.pieces)
    tdt = spec["class"] == "tdt"
    cfg = {
        "sample_rate": 16000,
        "log_prediction": True,
        "model_defaults": {
            "enc_hidden": e["hidden_size"],
            "pred_hidden": m["decoder_hidden_size"],
            "joint_hidden": m["decoder_hidden_size"],
        },
        "tokenizer": {"dir": None, "type": "bpe", **{k: f"nemo:{v}" for k, v in files.items()}},
        "preprocessor": {
            "_target_": "nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor",
            "sample_rate": 16000,
            "normalize": "NA" if streaming else "per_feature",
            "window_size": 0.025,
            "window_stride": 0.01,
            "window": "hann",
            "features": e["num_mel_bins"],
            "n_fft": 512,
            "log": True,
            "frame_splicing": 1,
            "dither": 1.0e-05,
            "pad_to": 0,
            "pad_value": 0.0,
        },
        "encoder": {
            "_target_": "nemo.collections.asr.modules.ConformerEncoder",
            "feat_in": e["num_mel_bins"],
            "feat_out": -1,
            "n_layers": e["num_hidden_layers"],
            "d_model": e["hidden_size"],
            "use_bias": e.get("attention_bias", True),
            "subsampling": "dw_striding",
            "subsampling_factor": 8,
            "subsampling_conv_channels": e["subsampling_conv_channels"],
            "causal_downsampling": streaming,
            "reduction": None,
            "reduction_position": None,
            "reduction_factor": 1,
            "ff_expansion_factor": e["intermediate_size"] // e["hidden_size"],
            "self_attention_model": "rel_pos",
            "n_heads": e["num_attention_heads"],
            "att_context_size": [[left, r] for r in spec["lookaheads"]] if streaming else [-1, -1],
            "att_context_style": "chunked_limited" if streaming else "regular",
            "xscaling": e.get("scale_input", True),
            "untie_biases": True,
            "pos_emb_max_len": 5000,
            "conv_kernel_size": e["conv_kernel_size"],
            "conv_norm_type": "layer_norm" if streaming else "batch_norm",
            "conv_context_size": "causal" if streaming else None,
            "dropout": 0.1,
            "dropout_pre_encoder": 0.1,
            "dropout_emb": 0.0,
            "dropout_att": 0.1,
            "stochastic_depth_drop_prob": 0.0,
            "stochastic_depth_mode": "linear",
            "stochastic_depth_start_layer": 1,
        },
        "decoder": {
            "_target_": "nemo.collections.asr.modules.RNNTDecoder",
            "normalization_mode": None,
            "random_state_sampling": False,
            "blank_as_pad": True,
            "prednet": {
                "pred_hidden": m["decoder_hidden_size"],
                "pred_rnn_layers": m["num_decoder_layers"],
                "t_max": None,
                "dropout": 0.2,
            },
            "vocab_size": pieces.size,
        },
        "joint": {
            "_target_": "nemo.collections.asr.modules.RNNTJoint",
            "log_softmax": None,
            "preserve_memory": False,
            "fuse_loss_wer": True,
            "fused_batch_size": 4,
            "jointnet": {
                "joint_hidden": m["decoder_hidden_size"],
                "activation": "relu",
                "dropout": dropout,
                "encoder_hidden": e["hidden_size"],
                "pred_hidden": m["decoder_hidden_size"],
            },
            "num_classes": pieces.size,
            "vocabulary": labels,
        },
        "decoding": {
            "strategy": "greedy_batch",
            "greedy": {"max_symbols": 10},
            "beam": {"beam_size": 4, "return_best_hypothesis": False, "score_norm": True},
        },
        "loss": {"loss_name": "default"},
        "labels": labels,
        "target": target,
        "nemo_version": "3.0.0",
    }
    if tdt:
        durations = [0, 1, 2, 3, 4]
        cfg["model_defaults"] |= {"tdt_durations": durations, "num_tdt_durations": 5}
        cfg["joint"]["num_extra_outputs"] = 5
        cfg["decoding"] |= {"model_type": "tdt", "durations": durations}
        cfg["loss"] = {
            "loss_name": "tdt",
            "tdt_kwargs": {"durations": durations, "fastemit_lambda": 0.0, "clamp": -1.0, "sigma": 0.02, "omega": 0.1},
        }
    return cfg | extra


def write(path: Path, cfg, weights: OrderedDict, files: dict[str, bytes]):
    def add(tar, name: str, data: bytes):
        info = tarfile.TarInfo(f"./{name}")
        info.size, info.mode = len(data), 0o644
        tar.addfile(info, io.BytesIO(data))

    ckpt = io.BytesIO()
    torch.save(weights, ckpt)
    with tarfile.open(path, "w") as tar:
        tar.addfile(_folder())
        add(tar, "model_config.yaml", yaml.safe_dump(cfg, sort_keys=False, allow_unicode=True).encode())
        for name, data in files.items():
            add(tar, name, data)
        add(tar, "model_weights.ckpt", ckpt.getvalue())


def _folder() -> tarfile.TarInfo:
    info = tarfile.TarInfo("./")
    info.type, info.mode = tarfile.DIRTYPE, 0o755
    return info


def tokenizer_files(spec: dict, scratch: Path) -> tuple[Pieces, dict[str, str], dict[str, bytes]]:
    path = scratch / "tokenizer.model"
    train(path, spec.get("vocabulary", models.VOCABULARY), spec.get("symbols", []))
    pieces, model = Pieces(path), path.read_bytes()
    path.unlink()
    tag = hashlib.md5(model).hexdigest()
    names = {
        "model_path": f"{tag}_tokenizer.model",
        "vocab_path": f"{tag}_vocab.txt",
        "spe_tokenizer_vocab": f"{tag}_tokenizer.vocab",
    }
    vocab = "".join(f"{p}\n" for p in pieces.pieces)
    scores = "".join(f"{p}\t{pieces.sp.get_score(i):g}\n" for i, p in enumerate(pieces.pieces))
    return (
        pieces,
        names,
        {
            names["model_path"]: model,
            names["vocab_path"]: vocab.encode(),
            names["spe_tokenizer_vocab"]: scores.encode(),
        },
    )


@torch.no_grad()
def main(out_dir: Path, seed: int):
    """`stream`, `tdt` and `prompt` hold the weights of the folders of that name, which must exist."""
    folder = out_dir / "nemo"
    folder.mkdir(parents=True)
    bpe = "nemo.collections.asr.models.rnnt_bpe_models.EncDecRNNTBPEModel"
    for name, dropout, index, target in (
        ("stream", 0.2, 2, bpe),
        ("tdt", 0.0, 1, bpe),
        ("prompt", 0.2, 2, "nemo.collections.asr.models.rnnt_bpe_models_prompt.EncDecRNNTBPEModelWithPrompt"),
    ):
        spec = CASES[name]
        model = models.FORMS[spec["class"]][1].from_pretrained(out_dir / name, dtype=torch.float32).eval()
        pieces, names, files = tokenizer_files(spec, folder)
        cfg = config(spec, pieces, names, dropout, target, {})
        if name == "prompt":
            cfg["model_defaults"] |= {
                "initialize_prompt_feature": True,
                "num_prompts": spec["model"]["num_prompts"],
                "prompt_dictionary": spec["prompts"],
            }
        write(folder / f"{name}.nemo", cfg, state_dict(model, spec, index), files)
    hybrid(out_dir, folder, seed)


def hybrid(out_dir: Path, folder: Path, seed: int):
    x = audio.read_wav(out_dir / "audio" / HYBRID["audio"])
    pieces, names, files = tokenizer_files(HYBRID, folder)
    mel = models.features(HYBRID, x)
    for attempt in range(seed, seed + 30):
        model = models.new_model(HYBRID, pieces.size, 0, attempt)
        models.fit_heads(model, HYBRID, pieces, mel, attempt)
        hidden = {r: dump.encode(model, mel, False, None, "", num_lookahead_tokens=r) for r in HYBRID["lookaheads"]}
        ctc = torch.nn.Conv1d(24, pieces.size + 1, 1)
        torch.nn.init.normal_(ctc.weight, std=0.2, generator=torch.Generator().manual_seed(attempt))
        torch.nn.init.zeros_(ctc.bias)
        head = torch.nn.Module()
        head.ctc_head = Head(ctc)
        fit_ctc(head, hidden[3], pieces.encode(HYBRID["text"]), pieces.size, attempt)
        out, runs, margins = {}, [], []
        for r, h in hidden.items():
            g = search.greedy(search.Transducer(model), model.encoder_projector(h))
            logits = head.ctc_head(h[None])[0]
            c, margin = search.ctc_greedy(logits, pieces.size)
            margins += [g.margin, margin, float(len(g.tokens) > 5)]
            out[f"R{r}/encoder"], out[f"R{r}/ctc"] = h, logits
            runs.append(
                {
                    "lookahead": r,
                    "greedy": g.report(),
                    "text": pieces.decode(g.tokens),
                    "ctc": c,
                    "ctc_text": pieces.decode(c["tokens"]),
                }
            )
        if min(margins) > 2e-3:
            break
    extra = {
        "aux_ctc": {
            "ctc_loss_weight": 0.3,
            "use_cer": False,
            "ctc_reduction": "mean_batch",
            "decoder": {
                "_target_": "nemo.collections.asr.modules.ConvASRDecoder",
                "feat_in": 24,
                "num_classes": pieces.size,
                "vocabulary": list(pieces.pieces),
            },
            "decoding": {"strategy": "greedy"},
        }
    }
    target = "nemo.collections.asr.models.hybrid_rnnt_ctc_bpe_models.EncDecHybridRNNTCTCBPEModel"
    cfg = config(HYBRID, pieces, names, 0.2, target, extra)
    write(folder / "hybrid.nemo", cfg, state_dict(model, HYBRID, 2, ctc), files)
    report = {
        "hybrid": {"audio": f"audio/{HYBRID['audio']}", "left": 8, "runs": runs},
        "stream": "stream/expected.json",
        "tdt": "tdt/expected.json",
        "prompt": "prompt/expected.json",
    }
    safetensors.torch.save_file({k: v.contiguous().clone() for k, v in out.items()}, folder / "expected.safetensors")
    (folder / "expected.json").write_text(json.dumps(report, ensure_ascii=False, separators=(",", ":")) + "\n")
    for path in folder.iterdir():
        path.chmod(0o644)


class Head(torch.nn.Module):
    """A CTC head on [batch, frames, d]."""

    def __init__(self, conv: torch.nn.Conv1d):
        super().__init__()
        self.conv = conv

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv1d(x.transpose(1, 2), self.conv.weight, self.conv.bias).transpose(1, 2)
