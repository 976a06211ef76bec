"""Small Mimis: the package's configuration with other sizes."""

import copy

BASE = {
    "sample_rate": 800, "channels": 1, "frame_rate": 12.5,
    "seanet": {
        "channels": 1, "dimension": 32, "causal": True, "n_filters": 4, "n_residual_layers": 1,
        "activation": "ELU", "compress": 2, "dilation_base": 2, "disable_norm_outer_blocks": 0,
        "kernel_size": 7, "residual_kernel_size": 3, "last_kernel_size": 3, "norm": "none",
        "pad_mode": "constant", "ratios": [4, 4, 2], "true_skip": True,
    },
    "quantizer": {"dimension": 16, "n_q": 8, "bins": 32, "input_dimension": 32, "output_dimension": 32},
    "transformer": {
        "d_model": 32, "num_heads": 2, "num_layers": 2, "causal": True, "layer_scale": 0.01, "context": 12,
        "conv_layout": True, "max_period": 10000, "gating": "none", "norm": "layer_norm",
        "positional_embedding": "rope", "dim_feedforward": 64, "input_dimension": 32, "output_dimensions": [32],
    },
}


def with_changes(width: int, sample_rate: int = 800, frame_rate: float = 12.5, seanet=(), quantizer=(), transformer=()):
    c = copy.deepcopy(BASE)
    c["sample_rate"], c["frame_rate"] = sample_rate, frame_rate
    c["seanet"].update(dimension=width, **dict(seanet))
    c["quantizer"].update(input_dimension=width, output_dimension=width, **dict(quantizer))
    c["transformer"].update(d_model=width, input_dimension=width, output_dimensions=[width], **dict(transformer))
    return c


# name: configuration, frames of the run, codebooks of a second decoding
CASES = {
    # As published but for widths: the window of 12 positions wraps after 6 frames.
    "mimi_plain": (with_changes(32), 30, 3),
    # Three positions a frame, a window that is no whole number of frames, two residual layers without compression, other
    # kernels and heads, 24 codebooks of which few are used.
    "mimi_odd": (
        with_changes(
            24, sample_rate=180, frame_rate=10.0,
            seanet={"ratios": [3, 2], "n_filters": 6, "n_residual_layers": 2, "compress": 1, "kernel_size": 5,
                    "residual_kernel_size": 2, "last_kernel_size": 4},
            quantizer={"dimension": 10, "n_q": 24, "bins": 20},
            transformer={"num_heads": 3, "num_layers": 3, "context": 10, "dim_feedforward": 40, "max_period": 5000},
        ), 24, 1),
}
# The codec at 24 kHz that the recogniser of `stt_heads` has.
REAL_RATE = with_changes(
    16, sample_rate=24000, seanet={"ratios": [8, 6, 5, 4], "n_filters": 2},
    quantizer={"dimension": 8, "n_q": 8, "bins": 24}, transformer={"num_heads": 2, "num_layers": 1, "dim_feedforward": 24})
