"""NeMo's name of a tensor, from its name in a transformers checkpoint."""

import re

STREAM_STEM = {
    "conv_in": "0",
    "layers.0.depthwise_conv": "2",
    "layers.0.pointwise_conv": "3",
    "layers.1.depthwise_conv": "5",
    "layers.1.pointwise_conv": "6",
}


def nemo_name(name: str, joint_index: int) -> str:
    for a, b in STREAM_STEM.items():
        name = name.replace(f"encoder.subsampling.{a}.", f"encoder.pre_encode.conv.{b}.")
    name = name.replace("encoder.subsampling.layers.", "encoder.pre_encode.conv.")
    name = name.replace("encoder.subsampling.linear.", "encoder.pre_encode.out.").replace(
        "conv.norm.", "conv.batch_norm."
    )
    name = re.sub(r"self_attn\.([qkv])_proj", r"self_attn.linear_\1", name)
    name = name.replace("o_proj", "linear_out").replace("relative_k_proj", "linear_pos")
    name = re.sub(r"bias_([uv])$", r"pos_bias_\1", name)
    name = name.replace("decoder.embedding.", "decoder.prediction.embed.").replace(
        "decoder.lstm.", "decoder.prediction.dec_rnn.lstm."
    )
    name = name.replace("decoder.decoder_projector.", "joint.pred.").replace(
        "joint.head.", f"joint.joint_net.{joint_index}."
    )
    name = re.sub(r"^encoder_projector\.", "joint.enc.", name)
    return name.replace("prompt_projector.linear_1.", "prompt_kernel.0.").replace(
        "prompt_projector.linear_2.", "prompt_kernel.2."
    )
