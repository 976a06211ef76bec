"""The small models: one table row per case, each written as a difference from a common base.

Together they hold every field of the package's config and every published variant of the file layout.
"""

import copy

SHORT = "Hello world."
LONG = (
    "The quick brown fox jumps over 3.14 dogs. So, what did he say to you; and how? Look at the water! "
    "They call it a small speech engine, it runs fast, and most people find that it is enough"
)

BASE = {
    "flow_lm": {
        "insert_bos_before_voice": True,
        "dtype": "float32",
        "flow": {"depth": 2, "dim": 24},
        "transformer": {"d_model": 40, "hidden_scale": 2, "max_period": 10000, "num_heads": 4, "num_layers": 2},
        "lookup_table": {"dim": 40, "n_bins": 380, "tokenizer": "tokenizers", "tokenizer_path": "tokenizer.json"},
    },
    "mimi": {
        "dtype": "float32",
        "sample_rate": 2400,
        "inner_dim": 8,
        "outer_dim": 24,
        "channels": 1,
        "frame_rate": 12.5,
        "seanet": {
            "dimension": 24,
            "channels": 1,
            "n_filters": 6,
            "n_residual_layers": 1,
            "ratios": [4, 3],
            "kernel_size": 7,
            "residual_kernel_size": 3,
            "last_kernel_size": 3,
            "dilation_base": 2,
            "pad_mode": "constant",
            "compress": 2,
        },
        "transformer": {
            "d_model": 24,
            "num_heads": 2,
            "num_layers": 2,
            "layer_scale": 0.01,
            "context": 20,
            "dim_feedforward": 40,
            "input_dimension": 24,
            "output_dimensions": [24],
        },
        "quantizer": {"dimension": 8, "output_dimension": 24},
    },
}


def _merge(base: dict, change: dict) -> dict:
    out = copy.deepcopy(base)
    for key, value in change.items():
        if value == "absent":
            out.pop(key, None)
        elif isinstance(value, dict) and isinstance(out.get(key), dict):
            out[key] = _merge(out[key], value)
        else:
            out[key] = copy.deepcopy(value)
    return out


def case(change: dict, **options) -> dict:
    """`options`: json (tokenizer.json style), steps (sampler), temp, frames, say, eos, layout, old_voice, load."""
    defaults = {
        "json": "converted",
        "steps": 1,
        "temp": 0.3,
        "frames": 40,
        "audio_frames": 12,
        "say": SHORT,
        "eos": False,
        "layout": "bundle",
        "old_voice": False,
        "sp_keep_spaces": False,
        "say_options": {},
        "prompt_s": 0.9,
    }
    return {"config": _merge(BASE, change), **defaults, **options}


_SMALL_DECODER = {
    "outer_dim": 16,
    "quantizer": {"output_dimension": 16},
    "decoder_seanet": {
        "dimension": 16,
        "channels": 1,
        "n_filters": 5,
        "n_residual_layers": 1,
        "ratios": [3, 2, 2],
        "kernel_size": 3,
        "residual_kernel_size": 3,
        "last_kernel_size": 3,
        "dilation_base": 2,
        "pad_mode": "constant",
        "compress": 1,
    },
    "decoder_transformer": {
        "d_model": 16,
        "num_heads": 4,
        "num_layers": 4,
        "layer_scale": 0.01,
        "context": 10,
        "dim_feedforward": 24,
        "input_dimension": 16,
        "output_dimensions": [16],
    },
}

CASES = {
    # The default layout: 24 kHz, ratios 6 5 4, one sampler step; 200 frames.
    "lsd": case(
        {
            "default_temperature": 0.3,
            "replace_characters": {"’": "'", "‘": "'"},
            "mimi": {
                "sample_rate": 24000,
                "seanet": {"ratios": [6, 5, 4], "n_filters": 4},
                "transformer": {"context": 40},
            },
        },
        frames=200,
        audio_frames=6,
        prompt_s=0.45,
        say=None,
    ),
    # Four sampler steps, a chunked text, EOS, semicolons removed, frames after EOS from the config.
    "lsd4": case(
        {"remove_semicolons": True, "model_recommended_frames_after_eos": 4},
        steps=4,
        say=LONG,
        say_options={"max_tokens": 30},
        eos=True,
    ),
    # English 2026-01: no bos before the voice, a wide speaker projection, spaces before short texts, old voice file.
    "wide_speaker": case(
        {
            "pad_with_spaces_for_short_inputs": True,
            "flow_lm": {"insert_bos_before_voice": False},
            "mimi": {"inner_dim": "absent", "outer_dim": "absent"},
        },
        json="plain",
        old_voice=True,
        eos=True,
    ),
    # Separate flow_lm and mimi files with the old names and weight norm; SentencePiece.
    "separate": case(
        {
            "capitalize_first_letter": False,
            "append_terminal_punctuation": False,
            "flow_lm": {"lookup_table": {"tokenizer": "sentencepiece", "tokenizer_path": "tokenizer.model"}},
        },
        layout="separate",
        eos=True,
        say="hello world, this is what she said",
        sp_keep_spaces=True,
    ),
    # As the 18m model: drifting head, z projection, its own decoder, a high EOS threshold, early EOS.
    "drifting": case(
        {
            "default_eos_threshold": -1.0,
            "replace_characters": {"–": ",", "—": ",", "’": "'", "‘": "'", '"': ""},
            "flow_lm": {
                "flow": {"type": "drifting"},
                "transformer": {"hidden_scale": 1, "attn_dim": None, "num_kv_heads": None},
                "lookup_table": {"tokenizer": "sentencepiece", "tokenizer_path": "tokenizer.model", "rank": None},
                "z_dim": 20,
            },
            "mimi": _SMALL_DECODER,
        },
        say='"What is it?", she said — and I don’t know. Go and look, it is a long way down to the water side',
        say_options={"max_tokens": 24},
        eos=True,
    ),
    # As the 7m model: grouped-query attention wider than the model, a low-rank table; dilated residual layers.
    "drifting_gqa": case(
        {
            "default_eos_threshold": -1.0,
            "flow_lm": {
                "flow": {"type": "drifting"},
                "transformer": {"d_model": 28, "hidden_scale": 1, "num_heads": 8, "attn_dim": 64, "num_kv_heads": 2},
                "lookup_table": {"dim": 28, "rank": 12},
                "z_dim": 20,
            },
            "mimi": _merge(_SMALL_DECODER, {"decoder_seanet": {"n_residual_layers": 2, "dilation_base": 3}}),
        },
        eos=True,
    ),
    # As the 2m model: pointwise head, one key/value head, its own feed-forward width; 200 frames.
    "pointwise": case(
        {
            "default_eos_threshold": -1.0,
            "flow_lm": {
                "flow": {"type": "pointwise"},
                "transformer": {
                    "d_model": 28,
                    "hidden_scale": 1,
                    "num_heads": 3,
                    "attn_dim": 36,
                    "num_kv_heads": 1,
                    "dim_feedforward": 22,
                },
                "lookup_table": {
                    "dim": 28,
                    "rank": 10,
                    "tokenizer": "sentencepiece",
                    "tokenizer_path": "tokenizer.model",
                },
                "z_dim": 20,
            },
            "mimi": _SMALL_DECODER,
        },
        frames=200,
        say_options={"frames_after_eos": 0},
        eos=True,
    ),
    # Flow matching in 16 steps; projected Mimi transformers, other periods, kernels, two residual layers everywhere.
    "flow_matching": case(
        {
            "flow_lm": {"flow": {"type": "flow_matching"}, "transformer": {"max_period": 500}},
            "mimi": {
                "seanet": {
                    "n_residual_layers": 2,
                    "kernel_size": 5,
                    "residual_kernel_size": 5,
                    "last_kernel_size": 7,
                    "compress": 1,
                },
                "transformer": {"d_model": 16, "max_period": 700.0, "num_layers": 1, "context": 33},
            },
        },
        steps=16,
        say=None,
    ),
}
