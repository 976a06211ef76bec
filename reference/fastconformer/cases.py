"""The small models: one row a case. Together they hold every published form of the family."""

# `encoder` and `model` are keyword arguments of the transformers configs.
# `lookaheads`: R of the streaming form. `keep`: chunks whose caches are written, of each R.
# `text`: what the heads are fitted to, in `steps` steps. `dtype`: of the tensors in model.safetensors.

ENCODER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "conv_kernel_size": 9,
    "subsampling_conv_channels": 8,
    "num_mel_bins": 80,
}


def encoder(**change) -> dict:
    return ENCODER | change


CASES = {
    "stream": {
        "class": "streaming",
        "encoder": encoder(sliding_window=9, default_num_lookahead_tokens=3),
        "model": {"decoder_hidden_size": 24, "num_decoder_layers": 2},
        "lookaheads": [3, 1, 0],
        "keep": {3: [0, 1, 2, 3], 1: [0, 1, 5], 0: [0, 1, 9]},
        "audio": "a.wav",
        "text": "the quick brown fox jumps",
        "layers": True,
        "search": "rnnt",
    },
    "stream_left70": {
        "class": "streaming",
        "encoder": encoder(
            sliding_window=71, default_num_lookahead_tokens=6, subsampling_conv_channels=6, intermediate_size=64
        ),
        "model": {"decoder_hidden_size": 20, "num_decoder_layers": 1},
        "lookaheads": [6, 1, 0],
        "keep": {6: [0, 11], 1: [42], 0: []},
        "audio": "long.wav",
        "steps": 500,
        "text": "we heard the rain on the window all night, it's enough",
        "layers": False,
    },
    "stream_nobias": {
        "class": "streaming",
        "encoder": encoder(
            hidden_size=48,
            num_attention_heads=3,
            intermediate_size=96,
            conv_kernel_size=5,
            subsampling_conv_channels=4,
            num_mel_bins=128,
            attention_bias=False,
            convolution_bias=False,
            scale_input=False,
            sliding_window=13,
            default_num_lookahead_tokens=2,
        ),
        "model": {"decoder_hidden_size": 16, "num_decoder_layers": 1},
        "lookaheads": [2, 0],
        "keep": {2: [0, 1, 5], 0: [4]},
        "audio": "a.wav",
        "text": "she sells sea shells",
        "layers": True,
        "dtype": "bf16",
    },
    "prompt": {
        "class": "prompt",
        "encoder": encoder(
            hidden_size=24,
            num_attention_heads=2,
            intermediate_size=96,
            sliding_window=9,
            default_num_lookahead_tokens=3,
        ),
        "model": {
            "decoder_hidden_size": 16,
            "num_decoder_layers": 2,
            "num_prompts": 16,
            "prompt_intermediate_size": 48,
            "default_prompt_id": 11,
        },
        "prompts": {"en-US": 0, "en": 0, "en-GB": 1, "de-DE": 9, "de": 9, "auto": 11},
        "languages": ["en-US", "de-DE", "auto"],
        "lookaheads": [3],
        "keep": {3: [1]},
        "audio": "a.wav",
        "steps": 700,
        "text": {
            "en-US": "most of the people hear it",
            "de-DE": "der hund schläft",
            "auto": "<de-DE> der hund schläft",
        },
        "symbols": ["<en-US>", "<de-DE>"],
        "layers": False,
    },
    "tdt": {
        "class": "tdt",
        "encoder": encoder(
            intermediate_size=64,
            attention_bias=False,
            convolution_bias=False,
            scale_input=False,
            num_mel_bins=128,
            subsampling_conv_channels=4,
        ),
        "model": {"decoder_hidden_size": 24, "num_decoder_layers": 2},
        "audio": "a.wav",
        "text": "what did he say to you?",
        "symbols": ["<|nospeech|>", "<pad>"],
        "vocabulary": 58,
        "layers": True,
        "search": "tdt",
    },
    "rnnt": {
        "class": "rnnt",
        "encoder": encoder(conv_kernel_size=7, intermediate_size=64),
        "model": {"decoder_hidden_size": 20, "num_decoder_layers": 1},
        "audio": "a.wav",
        "text": "they call it a small engine.",
        "layers": False,
        "search": "rnnt",
    },
    "ctc": {
        "class": "ctc",
        "encoder": encoder(num_attention_heads=2, intermediate_size=64),
        "model": {},
        "audio": "a.wav",
        "text": "it's the first voice",
        "layers": False,
        "search": "ctc",
        "old_layout": True,
    },
}
VOCABULARY = 56
