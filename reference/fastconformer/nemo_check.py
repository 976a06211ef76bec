"""Loads the `.nemo` archives with NeMo itself; compares front end, encoder, streaming and searches with the folders.

    python nemo_check.py DIR [--save OUT]

Needs the environment of requirements-nemo.txt. Exits with 1 where a comparison fails. `--save` also writes what
NeMo's own save_to() makes of the models.
"""

import argparse
import json
import logging
import sys
import tempfile
import warnings
from pathlib import Path

import torch

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
from nemo.utils import logging as nemo_logging

nemo_logging.setLevel(40)
import audio
import fusion
from nemo.collections.asr.models import ASRModel
from nemo.collections.asr.modules import RNNTDecoder, RNNTJoint
from nemo.collections.asr.parts.context_biasing.boosting_graph_batched import GPUBoostingTreeModel
from nemo.collections.asr.parts.context_biasing.context_graph_universal import ContextGraph
from nemo.collections.asr.parts.submodules.ngram_lm.ngram_lm_batched import NGramGPULanguageModel
from nemo.collections.asr.parts.submodules.rnnt_malsd_batched_computer import ModifiedALSDBatchedRNNTComputer
from nemo.collections.asr.parts.submodules.tdt_malsd_batched_computer import ModifiedALSDBatchedTDTComputer
from nemo.collections.asr.parts.submodules.transducer_decoding.rnnt_label_looping import (
    GreedyBatchedRNNTLabelLoopingComputer,
)
from nemo.collections.asr.parts.submodules.transducer_decoding.tdt_label_looping import (
    GreedyBatchedTDTLabelLoopingComputer,
)
from nemo.collections.asr.parts.utils.asr_confidence_utils import get_confidence_measure_bank
from safetensors.torch import load_file

bad = 0


def check(name: str, good: bool, note=""):
    global bad
    bad += not good
    print(f"{'ok  ' if good else 'FAIL'} {name} {note}", flush=True)


def near(name: str, a: torch.Tensor, b: torch.Tensor, tolerance: float):
    n = min(a.shape[0], b.shape[0])
    error = float((a[:n] - b[:n]).abs().max())
    check(name, a.shape == b.shape and error < tolerance, f"{error:.1e} {tuple(a.shape)} {tuple(b.shape)}")


def heads(folder: Path):
    """Decoder and joint from a folder's safetensors, blank index, durations."""
    cfg = json.loads((folder / "config.json").read_text())
    w = load_file(folder / "model.safetensors")
    v, h = cfg["blank_token_id"], cfg["decoder_hidden_size"]
    durations = cfg.get("durations", [])
    dec = RNNTDecoder(
        {"pred_hidden": h, "pred_rnn_layers": cfg["num_decoder_layers"], "t_max": None, "dropout": 0.0},
        v,
        normalization_mode=None,
        blank_as_pad=True,
    )
    dec.load_state_dict(
        {f"prediction.dec_rnn.lstm.{k[13:]}": t for k, t in w.items() if k.startswith("decoder.lstm.")}
        | {"prediction.embed.weight": w["decoder.embedding.weight"]}
    )
    joint = RNNTJoint(
        {"joint_hidden": h, "activation": "relu", "dropout": 0.2, "pred_hidden": h, "encoder_hidden": h},
        num_classes=v,
        num_extra_outputs=len(durations),
        vocabulary=[str(i) for i in range(v)],
        fuse_loss_wer=False,
    )
    joint.load_state_dict(
        {"enc.weight": torch.eye(h), "enc.bias": torch.zeros(h)}  # the fixtures store projected frames
        | {f"pred.{k}": w[f"decoder.decoder_projector.{k}"] for k in ("weight", "bias")}
        | {f"joint_net.2.{k}": w[f"joint.head.{k}"] for k in ("weight", "bias")}
    )
    return dec.eval(), joint.eval(), v, durations


def fusion_models(root: Path, folder: Path, report: dict, run: dict, vocabulary: int):
    found, weights = [], []
    tok = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    pieces = sorted(tok, key=tok.get)[:vocabulary]
    if "lm" in run["fusion"]:
        with tempfile.NamedTemporaryFile("w", suffix=".arpa", encoding="utf-8") as f:
            f.write(fusion.encoded_arpa((root / report["lm"]).read_text(), pieces))
            f.flush()
            found.append(NGramGPULanguageModel.from_file(f.name, vocab_size=vocabulary, use_triton=False))
        weights.append(run["fusion"]["lm"])
    if "boost" in run["fusion"]:
        b = report["boost"]
        graph = ContextGraph(context_score=b["context_score"], depth_scaling=b["depth_scaling"])
        graph.build(token_ids=[p["tokens"] for p in b["phrases"]], scores=[p["weight"] for p in b["phrases"]])
        found.append(
            GPUBoostingTreeModel.from_context_graph(
                graph, vocab_size=vocabulary, use_triton=False, uniform_weights=False
            )
        )
        weights.append(run["fusion"]["boost"])
    return found, weights


def chunked(computer, enc: torch.Tensor, sizes: list[int]):
    state, out = None, None
    for part in enc.split(sizes):
        out, state = computer(part[None], torch.tensor([part.shape[0]]), state)
    return sorted(float(s) for s in state.scores[0] if s > -1e30)


def check_confidence(root: Path):
    report = json.loads((root / "stream" / "expected.json").read_text())["runs"][0]["greedy"]
    joint = load_file(root / "stream" / "expected.safetensors")["R3/joint"].log_softmax(-1)
    measure = get_confidence_measure_bank()["entropy_tsallis_exp"]
    blank = joint.shape[1] - 1
    want = [float(measure(row, blank + 1, 0.33)) for row, step in zip(joint, report["steps"]) if step[1] != blank]
    error = max(abs(a - b) for a, b in zip(want, report["confidence"]))
    check("confidence", len(want) == len(report["confidence"]) and error < 1e-5, f"{error:.1e}")


def check_searches(root: Path, name: str):
    folder = root / name
    report = json.loads((folder / "search.json").read_text())
    enc = load_file(folder / "expected.safetensors")[report["input"]]
    dec, joint, v, durations = heads(folder)
    common = {"decoder": dec, "joint": joint, "blank_index": v, "allow_cuda_graphs": False}
    if durations:
        common["durations"] = durations
    for run in report["runs"]:
        label = f"{name}/{run['name']}"
        found, weights = fusion_models(root, folder, report, run, v) if "fusion" in run else (None, None)
        if run["method"] == "greedy":
            form = GreedyBatchedTDTLabelLoopingComputer if durations else GreedyBatchedRNNTLabelLoopingComputer
            extra = {"include_duration": True} if durations else {}
            g = form(
                **common,
                max_symbols_per_step=run["max_symbols"],
                fusion_models=found,
                fusion_models_alpha=weights,
                **extra,
            )
            h = g(enc[None], torch.tensor([enc.shape[0]]))[0]
            n = int(h.current_lengths[0])
            good = h.transcript[0, :n].tolist() == run["tokens"] and h.timestamps[0, :n].tolist() == run["frames"]
            if durations:
                good &= h.token_durations[0, :n].tolist() == run["durations"]
            check(label, good)
        elif run["method"].startswith("malsd"):
            form = ModifiedALSDBatchedTDTComputer if durations else ModifiedALSDBatchedRNNTComputer
            modes = {"blank_lm_score_mode": run["mode"], "pruning_mode": run["pruning"]} if found else {}
            c = form(
                **common,
                beam_size=run["beam"],
                max_symbols_per_step=run["max_symbols"],
                fusion_models=found,
                fusion_models_alpha=weights,
                **modes,
            )
            if run["method"] == "malsd_chunked":
                scores = chunked(c, enc, run["chunks"])
                mine = sorted(h["score"] for h in run["nbest"])
                same = len(scores) == len(mine) and all(abs(a - b) < 1e-3 for a, b in zip(scores, mine))
                if run["join_by_time"] and not durations:
                    print(f"     {label} {'equals' if same else 'differs from'} NeMo, which joins labels at any time")
                else:
                    check(label, same, f"{[round(s, 4) for s in scores]}")
                continue
            hyps, _ = c(enc[None], torch.tensor([enc.shape[0]]))
            best = hyps.to_nbest_hyps_list(score_norm=True)[0].n_best_hypotheses
            good = len(best) == len(run["nbest"])
            worst = 0.0
            for a, b in zip(best, run["nbest"]):
                good &= [int(k) for k in a.y_sequence] == b["tokens"] and [int(t) for t in a.timestamp] == b["frames"]
                if durations:
                    good &= [int(d) for d in a.token_duration] == b["durations"]
                worst = max(worst, abs(float(a.score) - b["score"]))
            check(label, good and worst < 1e-3, f"{len(best)} hypotheses, score error {worst:.1e}")


def nemo_stream(model, mel: torch.Tensor, left: int, right: int) -> torch.Tensor:
    enc = model.encoder
    enc.setup_streaming_params(att_context_size=[left, right])
    cfg = enc.streaming_cfg
    channel, time, length = enc.get_initial_cache_state(batch_size=1)
    pos, outs = 0, []
    while True:
        size, back = cfg.chunk_size[bool(pos)], cfg.pre_encode_cache_size[1] if pos else 0
        if pos + size > mel.shape[-1]:
            return torch.cat(outs)
        part = mel[:, :, max(0, pos - back) : pos + size]
        part = torch.nn.functional.pad(part, (max(0, back - pos), 0))
        y, _, channel, time, length = enc.cache_aware_stream_step(
            processed_signal=part,
            processed_signal_length=torch.tensor([part.shape[-1]]),
            cache_last_channel=channel,
            cache_last_time=time,
            cache_last_channel_len=length,
            keep_all_outputs=True,
            drop_extra_pre_encoded=cfg.drop_extra_pre_encoded if pos else 0,
        )
        outs.append(y.transpose(1, 2)[0])
        pos += size


def check_archive(root: Path, name: str, save: Path | None):
    model = ASRModel.restore_from(str(root / "nemo" / f"{name}.nemo"), map_location="cpu").eval()
    x = torch.tensor(audio.read_wav(root / "audio" / "a.wav"))[None]
    mel, n = model.preprocessor(input_signal=x, length=torch.tensor([x.shape[1]]))
    mel = mel[:, :, : int(n)]
    if name == "hybrid":
        report = json.loads((root / "nemo" / "expected.json").read_text())["hybrid"]
        want = load_file(root / "nemo" / "expected.safetensors")
    else:
        report = json.loads((root / name / "expected.json").read_text())
        want = load_file(root / name / "expected.safetensors")
    if "mel" in want:
        near(f"{name}.nemo mel", mel[0].T[: want["mel"].shape[0]], want["mel"], 1e-5)
    for run in report.get("runs", [{"greedy": report.get("greedy"), "text": report.get("text")}]):
        r = run.get("lookahead")
        prefix = "" if r is None else f"R{r}/"
        label = f"{name}.nemo {prefix}{run.get('language', '')}"
        if r is not None:
            model.encoder.set_default_att_context_size([report["left"], r])
        enc, length = model.encoder(audio_signal=mel, length=n)
        near(f"{label} encoder", enc[0].T, want[f"{prefix}encoder"], 1e-4)
        if r is not None and not run.get("language"):
            s = nemo_stream(model, mel, report["left"], r)
            # With one frame a chunk NeMo's second step sees an approximation of the start; see README.md.
            near(f"{label} streamed", s, want[f"{prefix}encoder"][: s.shape[0]], 1e-4 if r else 5e-2)
        if "language" in run:
            hot = torch.zeros(1, enc.shape[2], model.num_prompts)
            hot[:, :, run["prompt"]] = 1.0
            enc = model.prompt_kernel(torch.cat([enc.transpose(1, 2), hot], -1)).transpose(1, 2)
            near(f"{label} prompted", enc[0].T, want[f"{prefix}{run['language']}/prompted"], 1e-4)
        hyp = model.decoding.rnnt_decoder_predictions_tensor(enc, length, return_hypotheses=True)[0]
        tokens = [int(k) for k in hyp.y_sequence]
        check(f"{label} greedy", tokens == run["greedy"]["tokens"] and hyp.text == run["text"], repr(hyp.text))
        if "ctc" in run:
            near(f"{label} ctc", model.ctc_decoder(encoder_output=enc)[0], want[f"{prefix}ctc"].log_softmax(-1), 1e-4)
    if save:
        save.mkdir(parents=True, exist_ok=True)
        model.save_to(str(save / f"{name}.nemo"))


@torch.no_grad()
def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("dir", type=Path)
    ap.add_argument("--save", type=Path)
    a = ap.parse_args()
    torch.set_num_threads(1)
    check_confidence(a.dir)
    for name in ("stream", "rnnt", "tdt"):
        check_searches(a.dir, name)
    for name in ("stream", "tdt", "hybrid", "prompt"):
        check_archive(a.dir, name, a.save)
    print("failed:", bad)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
