"""Full-size random checkpoints in the published layout, with what the published package computes from them.

    python full_size.py --case base_0b6|custom_0b6|base_1b7|custom_1b7|design_1b7 --out DIR [--seed 0] [--frames 9] [--threads 1]

The folder is one of make_fixtures.py (README.md) with the published sizes: 151,936 text tokens, 2048 codes, the 12Hz
codec. Greedy choices are no farther apart than chance has them; `dump.json` has the smallest distance of each run.
A 0.6B model takes 8 GiB of memory and a minute or two, a 1.7B one 14 GiB, 19 with mapped files.
"""

import argparse
import copy
import json
from pathlib import Path

import cases
import make_fixtures
import torch

BOOK, TEXT_VOCAB = 2048, 151936
CODEC = dict(
    decoder=dict(latent_dim=1024, codebook_dim=512, codebook_size=BOOK, decoder_dim=1536, hidden_size=512, intermediate_size=1024,
                 head_dim=64, num_attention_heads=16, num_key_value_heads=16, num_hidden_layers=8, sliding_window=72,
                 vector_quantization_hidden_dimension=512),
    encoder=dict(codebook_dim=256, codebook_size=BOOK, head_dim=64, hidden_size=512, intermediate_size=2048, num_attention_heads=8,
                 num_key_value_heads=8, num_hidden_layers=8, num_filters=64, num_quantizers=32, upsample_groups=512,
                 vector_quantization_hidden_dimension=256),
)
HEADS = dict(num_attention_heads=16, num_key_value_heads=8, head_dim=128)
TALKERS = {
    "0b6": dict(HEADS, hidden_size=1024, intermediate_size=3072),
    "1b7": dict(HEADS, hidden_size=2048, intermediate_size=6144),
}
TALKER = dict(num_hidden_layers=28, text_hidden_size=2048, vocab_size=BOOK + cases.CONTROL,
              rope_scaling=dict(interleaved=True, mrope_section=[24, 20, 20], rope_type="default", type="default"))
PREDICTOR = dict(HEADS, hidden_size=1024, intermediate_size=3072, num_hidden_layers=5, vocab_size=BOOK)
SPEAKER = dict(enc_channels=[512, 512, 512, 512, 1536], enc_attention_channels=128, enc_res2net_scale=8, enc_se_channels=128)
RUNS = {
    "base": {
        "xvector": dict(text=cases.TEXT, language="English", clone="xvector", audio=True),
        "icl": dict(text=cases.TEXT, language="Auto", clone="icl", audio=True),
    },
    "custom_voice": {
        "ryan": dict(text=cases.TEXT, language="English", speaker="Ryan", audio=True),
        "dialect_streaming": dict(text="你好吗", language="Chinese", speaker="eric", non_streaming_mode=False),
        "instruct": dict(text=cases.SHORT, language="Auto", speaker="vivian", instruct="Speak slowly."),
    },
    "voice_design": {
        "french": dict(text=cases.TEXT, language="French", instruct="A calm, deep voice.", audio=True),
    },
}
KINDS = {"base": "base", "custom": "custom_voice", "design": "voice_design"}


def case(name: str) -> dict:
    kind, size = name.split("_")
    kind = KINDS[kind]
    return dict(kind=kind, size=size, groups=16, dtype="bf16", talker=TALKERS[size] | TALKER, predictor=PREDICTOR,
                codec=copy.deepcopy(CODEC), speaker=SPEAKER, ref_s=1.37, text_vocab=TEXT_VOCAB, runs=RUNS[kind])


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--case", required=True, choices=["base_0b6", "custom_0b6", "base_1b7", "custom_1b7", "design_1b7"])
    ap.add_argument("--out", required=True, type=Path)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--frames", type=int, default=9)
    ap.add_argument("--threads", type=int, default=1)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    cases.CODEBOOK, make_fixtures.FRAMES = BOOK, a.frames
    cases.CASES = {a.case: case(a.case)}
    report = make_fixtures.build(a.case, a.out.resolve(), a.seed)
    print(json.dumps(dict(report, margin=make_fixtures.smallest_margin(report))))


if __name__ == "__main__":
    main()
