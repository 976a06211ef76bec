"""Small random models of the FastConformer family in published layout, with what transformers computes from them.

    python make_fixture.py --out DIR [--case NAME ...] [--seed 0]

README.md lists the folders, the files, the tensors and the rules of the searches.
"""

import argparse
import json
import os
import shutil
import warnings
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")
import archive
import audio
import dump
import fusion
import models
import safetensors.torch
import search
import tokenizers_made
import torch
from cases import CASES
from transformers import NemotronAsrStreamingFeatureExtractor, ParakeetFeatureExtractor

MIN_MARGIN = 2e-3  # of every argmax, so that an engine's rounding cannot turn one
NOISE = 2e-5  # search results must not move when the frames move by this much


class Unclear(Exception):
    """A result that a rounding error could turn, or two paths that disagree."""


def demand(good: bool, what: str):
    if not good:
        raise Unclear(what)


def save(folder: Path, tensors: dump.Tensors, report: dict):
    safetensors.torch.save_file(
        {k: v.detach().contiguous().clone() for k, v in tensors.items()}, folder / "expected.safetensors"
    )
    (folder / "expected.json").write_text(json.dumps(report, ensure_ascii=False, separators=(",", ":")) + "\n")
    for path in folder.iterdir():
        path.chmod(0o644)


def frontend(out_dir: Path):
    folder = out_dir / "frontend"
    folder.mkdir(parents=True)
    x = audio.read_wav(out_dir / "audio" / "b.wav")
    out: dump.Tensors = {"window": torch.hann_window(400, periodic=False)}
    for bins in (80, 128):
        raw, norm = NemotronAsrStreamingFeatureExtractor(feature_size=bins), ParakeetFeatureExtractor(feature_size=bins)
        nonzero = raw.mel_filters != 0
        out[f"filters{bins}/first"] = nonzero.int().argmax(1).int()
        out[f"filters{bins}/count"] = nonzero.sum(1).int()
        out[f"filters{bins}/values"] = raw.mel_filters[nonzero]
        f = raw(x, sampling_rate=16000, return_tensors="pt")
        valid = int(f.attention_mask.sum())
        if bins == 80:  # with 128 bins: `mel` of stream_nobias and tdt
            out["mel80/raw"] = f.input_features[0, :valid]
            rounded = NemotronAsrStreamingFeatureExtractor(feature_size=bins, mel_filters_dtype="bfloat16")
            out["mel80/bf16_filters"] = rounded(x, sampling_rate=16000, return_tensors="pt").input_features[0, :valid]
            out["mel80/per_feature"] = norm(x, sampling_rate=16000, return_tensors="pt").input_features[0, :valid]
    counts = []
    for samples in (160, 161, 319, 320, 400, 799, 8000, 15999, 16000):
        f = NemotronAsrStreamingFeatureExtractor(feature_size=80)(x[:samples], sampling_rate=16000, return_tensors="pt")
        counts.append({"samples": samples, "valid": int(f.attention_mask.sum())})
    silent = NemotronAsrStreamingFeatureExtractor(feature_size=80)(
        x[:1600] * 0, sampling_rate=16000, return_tensors="pt"
    )
    save(
        folder,
        out,
        {"audio": "audio/b.wav", "frames": valid, "lengths": counts, "silence": float(silent.input_features[0, 0, 0])},
    )


def stable(run, enc: torch.Tensor) -> bool:
    """Whether the n-best list survives small noise on its input, orders and all."""
    want = run(enc)
    for i in range(2):
        noise = NOISE * torch.randn(enc.shape, generator=torch.Generator().manual_seed(i))
        if [h["tokens"] for h in run(enc + noise)] != [h["tokens"] for h in want]:
            return False
    return True


def phrases_for(nbest: list[dict], pieces, near: tuple[int, int]) -> list[dict]:
    """Phrases that compete with the best result, share a start, and fail half-way; `near` turns a greedy decision."""
    best = nbest[0]["tokens"]
    other = next((h["tokens"] for h in nbest[1:] if h["tokens"] != best), best)
    at = next((i for i, (a, b) in enumerate(zip(best, other)) if a != b), len(best) // 2)
    at = max(0, min(at, len(other) - 3))
    odd = pieces.encode("window")
    rows = [other[at : at + 3], [*other[at : at + 2], *odd], best[2:4], list(near), odd]
    weights = [0.0, 0.0, 1.5, 0.0, 0.0]
    return [{"tokens": t, "pieces": [pieces.pieces[k] for k in t], "weight": w} for t, w in zip(rows, weights)]


def nearest_miss(labels: list[int], rows: list[torch.Tensor], size: int) -> tuple[int, int]:
    """The token before the closest decision between two labels, and that decision's runner-up."""
    best = (float("inf"), 0, 0)
    for before, now, row in zip(labels, labels[1:], rows[1:]):
        top = row[:size].topk(2)
        if before < size and now == int(top.indices[0]):
            best = min(best, (float(top.values[0] - top.values[1]), before, int(top.indices[1])))
    return best[1], best[2]


FUSIONS = {
    "boost": {"boost": 1.2},
    "lm": {"lm": 0.4},
    "both": {"boost": 1.0, "lm": 0.3},
}


def searches(kind: str, model, pieces, enc: torch.Tensor, arpa: Path, source: str, chunks: list[int] | None):
    """All search results of one input."""
    tree_options = {"context_score": 1.0, "depth_scaling": 2.0}
    lm = fusion.read_arpa(arpa, pieces.pieces)
    runs = []
    if kind == "ctc":
        blank = pieces.size
        plain = search.ctc_prefix_beam(enc, blank, 8)
        g, _ = search.ctc_greedy(enc, blank)
        near = nearest_miss(g["tokens"], [enc[t] for t in g["frames"]], pieces.size)
    else:
        p = search.Transducer(model)
        plain = search.malsd_nbest(p, enc, 4)
        g = search.greedy(p, enc)
        said = [(s[1], z) for s, z in zip(g.steps, g.logits) if s[1] != p.blank]
        near = nearest_miss([k for k, _ in said], [z for _, z in said], pieces.size)
    phrases = phrases_for(plain, pieces, near)
    tree = fusion.boosting_tree([r["tokens"] for r in phrases], **tree_options, weights=[r["weight"] for r in phrases])

    def fused(weights: dict, mode="no_score", pruning="late") -> search.Fusion:
        parts = ([(lm, weights["lm"])] if "lm" in weights else []) + (
            [(tree, weights["boost"])] if "boost" in weights else []
        )
        return search.Fusion(parts, mode, pruning, pieces.size)

    def add(name: str, method: str, run, **options):
        runs.append({"name": name, "method": method, **options, "nbest": run(enc)})
        demand(stable(run, enc), name)

    def add_greedy(name: str, **options):
        f = fused(options["fusion"]) if "fusion" in options else None
        g = search.greedy(p, enc, options.get("max_symbols", 10), fusion=f)
        runs.append({"name": name, "method": "greedy", "max_symbols": 10, **options, **g.report()})
        demand(g.margin > MIN_MARGIN, name)

    if kind == "ctc":
        g, margin = search.ctc_greedy(enc, blank)
        runs.append({"name": "greedy", "method": "ctc_greedy", **g})
        demand(margin > MIN_MARGIN, "greedy")
        for beam in (1, 8):
            add(f"prefix{beam}", "ctc_prefix", lambda e, b=beam: search.ctc_prefix_beam(e, blank, b), beam=beam)
        for name, w in FUSIONS.items():
            f = fused(w)
            add(
                f"prefix8_{name}", "ctc_prefix", lambda e, f=f: search.ctc_prefix_beam(e, blank, 8, f), beam=8, fusion=w
            )
    else:
        add_greedy("greedy")
        add_greedy("greedy_max1", max_symbols=1)
        for name, w in FUSIONS.items():
            add_greedy(f"greedy_{name}", fusion=w)
        for beam in (1, 2, 4, 8):
            add(f"malsd{beam}", "malsd", lambda e, b=beam: search.malsd_nbest(p, e, b), beam=beam, max_symbols=10)
        add("malsd4_max1", "malsd", lambda e: search.malsd_nbest(p, e, 4, 1), beam=4, max_symbols=1)
        for name, w in FUSIONS.items():
            f = fused(w)
            add(
                f"malsd4_{name}",
                "malsd",
                lambda e, f=f: search.malsd_nbest(p, e, 4, 10, f),
                beam=4,
                max_symbols=10,
                fusion=w,
                mode="no_score",
                pruning="late",
            )
        for mode, pruning in (("lm_weighted_full", "late"), ("no_score", "early"), ("lm_weighted_full", "early")):
            f = fused({"lm": 0.4}, mode, pruning)
            add(
                f"malsd4_lm_{mode}_{pruning}",
                "malsd",
                lambda e, f=f: search.malsd_nbest(p, e, 4, 10, f),
                beam=4,
                max_symbols=10,
                fusion={"lm": 0.4},
                mode=mode,
                pruning=pruning,
            )
        sizes = chunks or [5] * (enc.shape[0] // 5) + [enc.shape[0] % 5]
        sizes = [n for n in sizes if n]
        sizes += [enc.shape[0] - sum(sizes)] if sum(sizes) < enc.shape[0] else []
        for name, by_time in (("malsd4_chunked", True), ("malsd4_chunked_nemo", False)):
            if kind == "tdt" and not by_time:
                continue
            run = lambda e, b=by_time: search.malsd_chunked(p, list(e.split(sizes)), 4, by_time=b)
            add(name, "malsd_chunked", run, beam=4, max_symbols=10, chunks=sizes, join_by_time=by_time)
        if kind == "rnnt":
            for beam in (1, 4):
                add(f"modified{beam}", "modified_beam", lambda e, b=beam: search.modified_beam(p, e, b), beam=beam)
            for name, w in FUSIONS.items():
                f = fused(w)
                add(
                    f"modified4_{name}",
                    "modified_beam",
                    lambda e, f=f: search.modified_beam(p, e, 4, f),
                    beam=4,
                    fusion=w,
                )
    report = {"input": source, "lm": f"lm/{arpa.name}", "boost": tree_options | {"phrases": phrases}, "runs": runs}
    return report


def text_of(tokenizer, pieces, tokens: list[int]) -> str:
    return pieces.decode(tokens)


@torch.no_grad()
def case(name: str, out_dir: Path, seed: int):
    spec = CASES[name]
    folder = out_dir / name
    shutil.rmtree(folder, ignore_errors=True)
    x = audio.read_wav(out_dir / "audio" / spec["audio"])
    model, pieces, tokenizer, spm = models.build(spec, folder, x, seed)
    mel = models.features(spec, x)
    out: dump.Tensors = {}
    report: dict = {
        "case": name,
        "class": spec["class"],
        "seed": seed,
        "audio": f"audio/{spec['audio']}",
        "mel_frames": mel.shape[0],
        "pieces": pieces.size,
        "blank": pieces.size,
    }
    if spec["layers"]:
        out["mel"] = mel if name == "stream" else mel[:64]
    search_input = None
    if models.is_streaming(spec):
        runs = []
        for r in spec["lookaheads"]:
            for lang in spec.get("languages", [None]):
                prompt = None if lang is None else spec["prompts"][lang]
                prefix = f"R{r}/" + (f"{lang}/" if lang else "")
                project = model.encoder_projector
                if lang is not None:
                    project = lambda h, i=prompt: model.encoder_projector(models.prompted(model, h, i))
                first_of_lang = lang in (None, spec.get("languages", [None])[0])
                hidden = dump.encode(
                    model, mel, spec["layers"], out if first_of_lang else None, f"R{r}/", num_lookahead_tokens=r
                )
                if lang is not None:
                    out[f"{prefix}prompted"] = models.prompted(model, hidden, prompt)
                enc = project(hidden)
                out[f"{prefix}enc_proj"] = enc
                g = search.greedy(search.Transducer(model), enc)
                if spec["layers"]:
                    out[f"{prefix}joint"] = torch.stack(g.logits)
                keep = spec["keep"][r] if first_of_lang else []
                streamed, found, sizes = dump.stream(model, mel, r, keep, out, f"R{r}/", project)
                error = float((streamed - hidden[: streamed.shape[0]]).abs().max())
                demand(g.margin > MIN_MARGIN, f"greedy {prefix} {g.margin:.1e}")
                demand(error < 5e-5, f"streaming {prefix} {error:.1e}")
                demand(len(g.tokens) > 5, f"tokens {prefix}")
                demand(found["tokens"] == g.tokens[: len(found["tokens"])], f"streamed tokens {prefix}")
                extra = {} if lang is None else {"prompt_ids": torch.tensor([prompt])}
                whole = model.generate(
                    input_features=mel[None], num_lookahead_tokens=r, max_new_tokens=4000, **extra
                ).sequences[0, 1:]
                demand([int(k) for k in whole if int(k) != pieces.size] == g.tokens, "generate")
                first, other = dump.chunk_sizes(r)
                parts = [mel[None, :first], *[c[None] for c in mel[first:].split(other) if c.shape[0] == other]]
                live = model.generate(
                    input_features=(c for c in parts), num_lookahead_tokens=r, max_new_tokens=4000, **extra
                ).sequences[0, 1:]
                demand([int(k) for k in live if int(k) != pieces.size] == found["tokens"], "generate, streaming")
                runs.append(
                    {"lookahead": r}
                    | ({} if lang is None else {"language": lang, "prompt": prompt})
                    | {
                        "mel_first": first,
                        "mel_chunk": other,
                        "chunks": sizes,
                        "kept": keep,
                        "stream_error": error,
                        "greedy": g.report(),
                        "stream": found,
                        "text": text_of(tokenizer, pieces, g.tokens),
                    }
                )
                if search_input is None:
                    search_input = (enc, f"R{r}/enc_proj", [*sizes])
        report["left"] = spec["encoder"]["sliding_window"] - 1
        report["runs"] = runs
        if spec["class"] == "prompt":
            report["prompts"] = spec["prompts"]
            report["default_prompt"] = spec["model"]["default_prompt_id"]
    else:
        hidden = dump.encode(model, mel, spec["layers"], out, "")
        other = models.features(spec, audio.read_wav(out_dir / "audio" / "b.wav"))
        out["b/encoder"] = model.encoder(other[None]).last_hidden_state[0]
        both = models.extractor(spec)(
            [x, audio.read_wav(out_dir / "audio" / "b.wav")], sampling_rate=16000, return_tensors="pt"
        )
        batch = model.encoder(both.input_features, attention_mask=both.attention_mask).last_hidden_state
        report["batch_error"] = max(
            float((batch[0, : hidden.shape[0]] - hidden).abs().max()),
            float((batch[1, : out["b/encoder"].shape[0]] - out["b/encoder"]).abs().max()),
        )
        demand(report["batch_error"] < 1e-4, "batch")
        if spec["class"] == "ctc":
            logits = model.ctc_head(hidden[None])[0]
            out["logits"] = logits
            g, margin = search.ctc_greedy(logits, pieces.size)
            report["greedy"] = g
            demand(margin > MIN_MARGIN, "greedy")
            search_input = (logits, "logits", None)
        else:
            enc = model.encoder_projector(hidden)
            out["enc_proj"] = enc
            found = search.greedy(search.Transducer(model), enc)
            out["joint"] = torch.stack(found.logits)
            report["greedy"] = g = found.report()
            demand(found.margin > MIN_MARGIN and len(found.tokens) > 5, "greedy")
            if spec["class"] == "rnnt":
                whole = model.generate(input_features=mel[None], max_new_tokens=4000).sequences[0, 1:]
                demand([int(k) for k in whole if int(k) != pieces.size] == found.tokens, "generate")
            else:
                report["durations"] = list(model.config.durations)
            search_input = (enc, "enc_proj", None)
        report["text"] = text_of(tokenizer, pieces, g["tokens"])
    if "search" in spec:
        found = searches(
            spec["search"], model, pieces, search_input[0], out_dir / "lm" / "lm.arpa", search_input[1], search_input[2]
        )
        (folder / "search.json").write_text(json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n")
    save(folder, out, report)


def language_model(out_dir: Path):
    """One n-gram file for all vocabularies (it names pieces), and NeMo's coding of it for the plain one."""
    folder = out_dir / "lm"
    folder.mkdir(parents=True)
    path = folder / "tokenizer.model"
    tokenizers_made.train(path, models.VOCABULARY, [])
    pieces = tokenizers_made.Pieces(path)
    lines = [
        "the quick brown fox jumps over the dog",
        "what did he say to you",
        "they call it a small speech engine.",
        "it's the first time",
    ]
    text = fusion.make_arpa([pieces.encode(line) for line in lines], pieces.pieces)
    (folder / "lm.arpa").write_text(text)
    (folder / "lm_encoded.arpa").write_text(fusion.encoded_arpa(text, pieces.pieces))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", required=True, type=Path)
    ap.add_argument("--case", nargs="*", choices=["frontend", "nemo", *CASES])
    ap.add_argument("--seed", type=int, default=0)
    a = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    out = a.out.resolve()
    wanted = a.case or ["frontend", *CASES, "nemo"]
    audio.write_clips(out / "audio")
    shutil.rmtree(out / "lm", ignore_errors=True)
    language_model(out)
    for name in wanted:
        shutil.rmtree(out / name, ignore_errors=True)
        seed = a.seed
        if name == "frontend":
            frontend(out)
        elif name == "nemo":
            archive.main(out, a.seed)
        else:
            for seed in range(a.seed, a.seed + 30):
                try:
                    case(name, out, seed)
                    break
                except Unclear as e:
                    print(f"{name:14s} seed {seed}: {e}", flush=True)
            else:
                raise SystemExit(f"{name}: no seed gives clear results")
        size = sum(f.stat().st_size for f in (out / name).iterdir())
        print(f"{name:14s} {size // 1024:5d} KiB  seed {seed}", flush=True)


if __name__ == "__main__":
    main()
