"""Builds one case of cases.py: tokeniser, random model, fitted heads, folder in published layout."""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from cases import VOCABULARY
from fit import fit_ctc, fit_transducer
from randomise import randomise, round_bf16
from tokenizers_made import Pieces, hugging_face, train
from transformers import (
    Nemotron3_5AsrConfig,
    Nemotron3_5AsrForRNNT,
    Nemotron3_5AsrProcessor,
    NemotronAsrStreamingConfig,
    NemotronAsrStreamingEncoderConfig,
    NemotronAsrStreamingFeatureExtractor,
    NemotronAsrStreamingForRNNT,
    NemotronAsrStreamingProcessor,
    ParakeetCTCConfig,
    ParakeetEncoderConfig,
    ParakeetFeatureExtractor,
    ParakeetForCTC,
    ParakeetForRNNT,
    ParakeetForTDT,
    ParakeetProcessor,
    ParakeetRNNTConfig,
    ParakeetTDTConfig,
)

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

FORMS = {
    "streaming": (NemotronAsrStreamingConfig, NemotronAsrStreamingForRNNT),
    "prompt": (Nemotron3_5AsrConfig, Nemotron3_5AsrForRNNT),
    "tdt": (ParakeetTDTConfig, ParakeetForTDT),
    "rnnt": (ParakeetRNNTConfig, ParakeetForRNNT),
    "ctc": (ParakeetCTCConfig, ParakeetForCTC),
}


def is_streaming(spec: dict) -> bool:
    return spec["class"] in ("streaming", "prompt")


def extractor(spec: dict):
    form = NemotronAsrStreamingFeatureExtractor if is_streaming(spec) else ParakeetFeatureExtractor
    return form(feature_size=spec["encoder"]["num_mel_bins"])


def features(spec: dict, samples: np.ndarray) -> torch.Tensor:
    """[valid frames, mel]: the array has one frame more, which the mask turns off."""
    f = extractor(spec)(samples, sampling_rate=16000, return_tensors="pt")
    return f.input_features[0, : int(f.attention_mask.sum())]


def new_model(spec: dict, vocabulary: int, pad: int, seed: int):
    """`vocabulary` counts the pieces; the blank comes after them."""
    enc = NemotronAsrStreamingEncoderConfig if is_streaming(spec) else ParakeetEncoderConfig
    config, form = FORMS[spec["class"]]
    common = {"vocab_size": vocabulary + 1, "encoder_config": enc(**spec["encoder"]), **spec["model"]}
    if spec["class"] == "ctc":
        cfg = config(**common, pad_token_id=vocabulary)
    else:
        cfg = config(**common, blank_token_id=vocabulary, pad_token_id=pad)
    model = randomise(form(cfg), seed)
    if spec["class"] != "ctc":
        g = model.generation_config
        g.decoder_start_token_id, g.pad_token_id, g.eos_token_id = vocabulary, pad, None
    return model


def prompted(model, hidden: torch.Tensor, prompt: int) -> torch.Tensor:
    """[frames, d] after the prompt's MLP."""
    one_hot = torch.zeros(hidden.shape[0], model.config.num_prompts)
    one_hot[:, prompt] = 1.0
    return model.prompt_projector(torch.cat([hidden, one_hot], -1))


@torch.no_grad()
def fit_heads(model, spec: dict, pieces: Pieces, mel: torch.Tensor, seed: int):
    if spec["class"] == "ctc":
        hidden = model.encoder(mel[None]).last_hidden_state[0]
        return fit_ctc(model, hidden, pieces.encode(spec["text"]), pieces.size, seed)
    looks = spec.get("fit_lookaheads") or spec.get("lookaheads") or [None]
    hidden = [
        model.encoder(mel[None], **({} if r is None else {"num_lookahead_tokens": r})).last_hidden_state[0]
        for r in looks
    ]
    if spec["class"] == "prompt":
        tasks = [
            (lambda i=spec["prompts"][lang]: [prompted(model, h, i) for h in hidden], pieces.encode(spec["text"][lang]))
            for lang in spec["languages"]
        ]
    else:
        tasks = [(lambda: hidden, pieces.encode(spec["text"]))]
    return fit_transducer(model, tasks, seed, spec.get("steps", 200), spec.get("lr", 4e-3))


def processor(spec: dict, tokenizer, pad: int):
    if spec["class"] == "streaming":
        return NemotronAsrStreamingProcessor(
            extractor(spec),
            tokenizer,
            supported_num_lookahead_tokens=spec["lookaheads"],
            default_num_lookahead_tokens=spec["lookaheads"][0],
        )
    if spec["class"] == "prompt":
        return Nemotron3_5AsrProcessor(
            extractor(spec),
            tokenizer,
            supported_num_lookahead_tokens=spec["lookaheads"],
            default_num_lookahead_tokens=spec["lookaheads"][0],
            prompt_dictionary=spec["prompts"],
            num_prompts=spec["model"]["num_prompts"],
        )
    return ParakeetProcessor(extractor(spec), tokenizer, decoder_type=spec["class"])


def build(spec: dict, folder: Path, samples: np.ndarray, seed: int):
    """Writes the published files and returns the model as read back from them, with its pieces."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as tmp:
        path = Path(tmp) / "tokenizer.model"
        train(path, spec.get("vocabulary", VOCABULARY), spec.get("symbols", []), spec.get("train_text"))
        pieces = Pieces(path)
        kind = "streaming" if is_streaming(spec) else spec["class"]
        tokenizer = hugging_face(path, kind)
        spm = path.read_bytes()
    pad = pieces.pieces.index("<pad>") if "<pad>" in pieces.pieces else 0
    model = new_model(spec, pieces.size, pad, seed)
    fit_heads(model, spec, pieces, features(spec, samples), seed)
    if spec.get("dtype") == "bf16":
        round_bf16(model)
        model = model.to(torch.bfloat16)
    model.save_pretrained(folder)
    proc = processor(spec, tokenizer, pad)
    proc.save_pretrained(folder)
    if spec.get("old_layout"):
        # Snapshots of 2025 keep the front end in a file of its own.
        whole = json.loads((folder / "processor_config.json").read_text())
        inner = whole.pop("feature_extractor", None) or proc.feature_extractor.to_dict()
        (folder / "preprocessor_config.json").write_text(
            json.dumps(inner | {"processor_class": "ParakeetProcessor"}, indent=2) + "\n"
        )
        (folder / "processor_config.json").unlink()
    model = FORMS[spec["class"]][1].from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
    return model, pieces, tokenizer, spm
