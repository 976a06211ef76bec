"""Writes a training checkpoint as a published-style folder, in bfloat16 or int8.

    python export.py --run run --texts texts --out nano-ear            (int8, the shipped form)
    python export.py --run run --texts texts --out nano-ear-bf16 --plain

int8: every matrix `NAME.weight` [out, in] is I8 with `NAME.weight_scale` F32 [out, 1] (symmetric, one scale per
row); everything else is BF16. The config, processor and tokenizer files are those transformers 5.22.2 writes.
"""

import argparse
import json
from pathlib import Path

import sentencepiece
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from model import BLANK, CONFIG, LOOKAHEADS, Ear


def weights(run: Path) -> dict[str, torch.Tensor]:
    """The averaged weights of a checkpoint, float32, without the training-only head."""
    ear = Ear()
    flat = torch.cat([torch.load(run / f"ear-{i}.pt", map_location="cpu") for i in range(2)]).float()
    parameters = list(ear.parameters())
    with torch.no_grad():
        for p, x in zip(parameters, flat.split([p.numel() for p in parameters])):
            p.copy_(x.view(p.shape))
    return ear.shipped()


def quantised(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    out = {}
    for name, w in state.items():
        if w.dim() == 2 and name.endswith(".weight"):
            scale = w.abs().amax(1, keepdim=True).clamp(min=1e-8) / 127
            out[name] = torch.round(w / scale).clamp(-127, 127).to(torch.int8)
            out[name + "_scale"] = scale
        else:
            out[name] = w.to(torch.bfloat16)
    return out


def dequantised(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {k: (v.float() * state[k + "_scale"] if v.dtype == torch.int8 else v.float()) for k, v in state.items() if not k.endswith("_scale")}


def tokenizer(path: Path) -> Tokenizer:
    """The SentencePiece BPE model as a tokenizer.json."""
    sp = sentencepiece.SentencePieceProcessor(model_file=str(path))
    pieces = [sp.id_to_piece(i) for i in range(sp.get_piece_size())]
    known = {p: i for i, p in enumerate(pieces)}
    merges = []
    for piece in pieces[1:]:  # a piece's rank is its id: the best split is the one of lowest rank
        splits = [(max(known[piece[:k]], known[piece[k:]]), piece[:k], piece[k:]) for k in range(1, len(piece)) if piece[:k] in known and piece[k:] in known]
        merges += [(known[piece], left, right) for _, left, right in splits]
    merges = [(left, right) for _, left, right in sorted(merges, key=lambda m: m[0])]
    t = Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, merges, unk_token="<unk>", fuse_unk=True))
    t.normalizer = normalizers.Sequence([])
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=False)
    t.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always", split=False)
    t.add_special_tokens([AddedToken("<unk>", special=True, normalized=False), AddedToken("<blank>", special=True, normalized=False)])
    return t


def config(int8: bool) -> dict:
    c = CONFIG
    encoder = dict(
        activation_dropout=0.1, attention_bias=True, attention_dropout=0.1, conv_kernel_size=c["kernel"], convolution_bias=True,
        default_num_lookahead_tokens=6, dropout=0.1, dropout_positions=0.0, hidden_act="silu", hidden_size=c["width"], initializer_range=0.02,
        intermediate_size=4 * c["width"], layerdrop=0.0, max_position_embeddings=5000, model_type="nemotron_asr_streaming_encoder",
        num_attention_heads=c["heads"], num_hidden_layers=c["layers"], num_key_value_heads=c["heads"], num_mel_bins=c["mel"], scale_input=False,
        sliding_window=c["left"] + 1, subsampling_conv_channels=c["channels"], subsampling_conv_kernel_size=3, subsampling_conv_stride=2,
        subsampling_factor=8)
    out = dict(architectures=["NemotronAsrStreamingForRNNT"], blank_token_id=BLANK, decoder_hidden_size=c["predictor"], dtype="bfloat16",
               encoder_config=encoder, hidden_act="relu", initializer_range=0.02, is_encoder_decoder=True, languages=["en"], max_symbols_per_step=10,
               model_type="nemotron_asr_streaming", num_decoder_layers=1, pad_token_id=0, vocab_size=c["vocabulary"], transformers_version="5.22.2")
    if int8:
        numbers = dict(num_bits=8, type="int", symmetric=True, strategy="channel", dynamic=False, group_size=None, observer="minmax")
        out["quantization_config"] = dict(
            quant_method="compressed-tensors", format="int-quantized", quantization_status="compressed", kv_cache_scheme=None,
            ignore=["decoder.lstm"],
            config_groups={"group_0": dict(targets=["Linear", "Embedding"], weights=numbers, input_activations=None, output_activations=None)})
    return out


def write(folder: Path, name: str, value: dict) -> None:
    (folder / name).write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--run", type=Path, required=True)
    p.add_argument("--texts", type=Path, required=True, help="folder with tokenizer.model")
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--plain", action="store_true", help="bfloat16 instead of int8")
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    state = weights(a.run)
    state = {k: v.to(torch.bfloat16) for k, v in state.items()} if a.plain else quantised(state)
    save_file({k: v.contiguous() for k, v in state.items()}, a.out / "model.safetensors", metadata={"format": "pt"})
    write(a.out, "config.json", config(not a.plain))
    features = dict(feature_extractor_type="NemotronAsrStreamingFeatureExtractor", feature_size=80, hop_length=160, mel_filters_dtype="float32", n_fft=512,
                    padding_side="right", padding_value=0.0, preemphasis=0.97, return_attention_mask=True, sampling_rate=16000, win_length=400)
    write(a.out, "preprocessor_config.json", dict(features, processor_class="NemotronAsrStreamingProcessor"))
    write(a.out, "processor_config.json", dict(processor_class="NemotronAsrStreamingProcessor", feature_extractor=features,
                                               blank_token="<blank>", default_num_lookahead_tokens=6,
                                               supported_num_lookahead_tokens=sorted(LOOKAHEADS, reverse=True)))
    tokenizer(a.texts / "tokenizer.model").save(str(a.out / "tokenizer.json"))
    write(a.out, "tokenizer_config.json", dict(backend="tokenizers", tokenizer_class="ParakeetTokenizer", model_max_length=10**9, unk_token="<unk>", pad_token="<unk>",
                                               clean_up_tokenization_spaces=False, processor_class="NemotronAsrStreamingProcessor"))
    (a.out / "tokenizer.model").write_bytes((a.texts / "tokenizer.model").read_bytes())
    print(sum(v.numel() for k, v in state.items() if not k.endswith("_scale")), "parameters,", (a.out / "model.safetensors").stat().st_size, "bytes")


if __name__ == "__main__":
    main()
