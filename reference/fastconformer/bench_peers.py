"""Times the peers on the shapes of full_size.py; one JSON line for each configuration.

    python bench_peers.py transformers --model DIR [--dtype bf16] [--mode offline stream] [--lookahead 6] [--batch 1 8]
    python bench_peers.py export --model DIR --out ONNX --lookahead 6        # environment of requirements-nemo.txt
    python bench_peers.py sherpa --onnx ONNX [--batch 1 8] [--audio WAV]     # pip install sherpa-onnx==2.0.1

`cpu` is processor time of the whole process, `wall` the clock, both of the best of `--repeat` runs. `streams_per_core`
is audio seconds over `cpu`. Streaming with transformers times the encoder alone, after the left context is full
(--decode adds its greedy search); sherpa-onnx is timed from samples to tokens.
"""

import argparse
import json
import math
import os
import time
from pathlib import Path

FRAME = 0.08


def clock(run, repeat: int) -> tuple[float, float]:
    """Smallest wall and processor seconds."""
    walls, cpus = [], []
    for _ in range(repeat):
        w, c = time.perf_counter(), time.process_time()
        run()
        walls.append(time.perf_counter() - w)
        cpus.append(time.process_time() - c)
    return min(walls), min(cpus)


def emit(audio: float, wall: float, cpu: float, **fields):
    row = fields | {
        "audio_s": round(audio, 3),
        "wall_s": round(wall, 4),
        "cpu_s": round(cpu, 4),
        "rtf": round(wall / audio, 5),
        "streams_per_core": round(audio / cpu, 2),
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(row), flush=True)


def load(folder: Path, dtype):
    import transformers
    from transformers import AutoConfig

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    name = AutoConfig.from_pretrained(folder).architectures[0]
    return getattr(transformers, name).from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval()


def run_transformers(a):
    import torch

    torch.set_num_threads(a.threads)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[a.dtype]
    model = load(a.model, dtype)
    bins = model.config.encoder_config.num_mel_bins
    about = {"peer": "transformers", "model": a.model.name, "dtype": a.dtype, "threads": a.threads}
    streaming = hasattr(model.config.encoder_config, "sliding_window")
    with torch.inference_mode():
        if "offline" in a.mode:
            for batch in a.batch:
                x = torch.randn(batch, int(a.seconds * 100), bins, dtype=dtype)
                extra = {"num_lookahead_tokens": a.lookahead[0]} if streaming else {}
                run = lambda: model.encoder(x, **extra)
                if a.decode:
                    run = lambda: model.generate(input_features=x, max_new_tokens=100000, **extra)
                run()
                wall, cpu = clock(run, a.repeat)
                emit(a.seconds * batch, wall, cpu, **about, mode="offline", batch=batch, decode=a.decode)
        if "stream" not in a.mode or not streaming:
            return
        left = model.config.encoder_config.sliding_window - 1
        for look in a.lookahead:
            for batch in a.batch:
                first, size = 1 + 8 * look, 8 * (look + 1)
                chunk = lambda n: torch.randn(batch, n, bins, dtype=dtype)
                count = max(3, round(a.seconds / (size * 0.01)))
                if a.decode:
                    parts = [chunk(first), *[chunk(size) for _ in range(count)]]
                    run = lambda: model.generate(
                        input_features=(p for p in parts), num_lookahead_tokens=look, max_new_tokens=100000
                    )
                    run()
                    wall, cpu = clock(run, a.repeat)
                else:
                    o = model.encoder(chunk(first), use_cache=True, num_lookahead_tokens=look)
                    kv, conv = o.past_key_values, o.padding_cache

                    def step(n):
                        for _ in range(n):
                            model.encoder(
                                chunk(size),
                                use_cache=True,
                                past_key_values=kv,
                                padding_cache=conv,
                                num_lookahead_tokens=look,
                            )

                    step(math.ceil(left / (look + 1)))
                    wall, cpu = clock(lambda: step(count), a.repeat)
                audio = count * (look + 1) * FRAME * batch
                emit(
                    audio,
                    wall,
                    cpu,
                    **about,
                    mode="stream",
                    chunk_ms=80 * (look + 1),
                    batch=batch,
                    decode=a.decode,
                    ms_per_chunk=round(1000 * wall / count, 2),
                )


def export(a):
    """The weights of a streaming folder as sherpa-onnx reads them, f32 and int8; one chunk size for each export."""
    import logging
    import warnings

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    import onnx
    import torch
    from archive_names import nemo_name
    from nemo.collections.asr.modules import ConformerEncoder, RNNTDecoder, RNNTJoint
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from safetensors.torch import load_file

    torch.set_num_threads(1)
    a.out.mkdir(parents=True, exist_ok=True)
    cfg = json.loads((a.model / "config.json").read_text())
    e, v, h = cfg["encoder_config"], cfg["blank_token_id"], cfg["decoder_hidden_size"]
    look, left = a.lookahead[0], e["sliding_window"] - 1
    enc = ConformerEncoder(
        feat_in=e["num_mel_bins"],
        feat_out=-1,
        n_layers=e["num_hidden_layers"],
        d_model=e["hidden_size"],
        use_bias=e["attention_bias"],
        subsampling="dw_striding",
        subsampling_factor=8,
        subsampling_conv_channels=e["subsampling_conv_channels"],
        causal_downsampling=True,
        ff_expansion_factor=e["intermediate_size"] // e["hidden_size"],
        self_attention_model="rel_pos",
        n_heads=e["num_attention_heads"],
        att_context_size=[left, look],
        att_context_style="chunked_limited",
        xscaling=e["scale_input"],
        untie_biases=True,
        pos_emb_max_len=5000,
        conv_kernel_size=e["conv_kernel_size"],
        conv_norm_type="layer_norm",
        conv_context_size="causal",
        dropout_emb=0.0,
    ).eval()
    dec = RNNTDecoder(
        {"pred_hidden": h, "pred_rnn_layers": cfg["num_decoder_layers"], "t_max": None, "dropout": 0.0},
        v,
        normalization_mode=None,
        blank_as_pad=True,
    ).eval()
    net = {
        "joint_hidden": h,
        "activation": "relu",
        "dropout": 0.2,
        "pred_hidden": h,
        "encoder_hidden": e["hidden_size"],
    }
    joint = RNNTJoint(
        net, num_classes=v, vocabulary=[str(i) for i in range(v)], log_softmax=None, fuse_loss_wer=False
    ).eval()
    weights = {nemo_name(k, 2): t.float() for k, t in load_file(a.model / "model.safetensors").items()}
    for part, prefix in ((enc, "encoder."), (dec, "decoder."), (joint, "joint.")):
        part.load_state_dict({k.removeprefix(prefix): t for k, t in weights.items() if k.startswith(prefix)})
    del weights
    enc.set_default_att_context_size([left, look])
    enc.setup_streaming_params(att_context_size=[left, look])
    enc.export_cache_support = True
    c = enc.streaming_cfg
    for name, part in (("encoder", enc), ("decoder", dec), ("joiner", joint)):
        part.export(str(a.out / f"{name}.onnx"), check_trace=False, use_dynamo=False)
    about = {
        "vocab_size": v,
        "window_size": c.chunk_size[1] + c.pre_encode_cache_size[1],
        "chunk_size_ms": 80 * (look + 1),
        "chunk_shift": c.chunk_size[1],
        "normalize_type": "",
        "cache_last_channel_dim1": e["num_hidden_layers"],
        "cache_last_channel_dim2": left,
        "cache_last_channel_dim3": e["hidden_size"],
        "cache_last_time_dim1": e["num_hidden_layers"],
        "cache_last_time_dim2": e["hidden_size"],
        "cache_last_time_dim3": e["conv_kernel_size"] - 1,
        "pred_rnn_layers": cfg["num_decoder_layers"],
        "pred_hidden": h,
        "subsampling_factor": 8,
        "feat_dim": e["num_mel_bins"],
        "model_type": "EncDecHybridRNNTCTCBPEModel",
        "version": "1",
        "model_author": "NeMo",
    }
    model = onnx.load(str(a.out / "encoder.onnx"))
    del model.metadata_props[:]
    for key, value in about.items():
        p = model.metadata_props.add()
        p.key, p.value = key, str(value)
    big = model.ByteSize() > 1_900_000_000
    onnx.save(
        model,
        str(a.out / "encoder.onnx"),
        save_as_external_data=big,
        all_tensors_to_one_file=True,
        location="encoder.data",
    )
    for name in ("encoder", "decoder", "joiner"):
        quantize_dynamic(str(a.out / f"{name}.onnx"), str(a.out / f"{name}.int8.onnx"), weight_type=QuantType.QUInt8)
    (a.out / "tokens.txt").write_text("".join(f"\u2581t{i} {i}\n" for i in range(v)) + f"<blk> {v}\n")
    (a.out / "about.json").write_text(json.dumps(about) + "\n")
    print({p.name: p.stat().st_size for p in sorted(a.out.iterdir())})


def run_sherpa(a):
    import numpy as np
    import sherpa_onnx

    from audio import read_wav, speech

    about = json.loads((a.onnx / "about.json").read_text())
    x = read_wav(a.audio) if a.audio else speech(a.seconds, 11).astype(np.float32) / 32768
    for kind in a.kinds:
        tail = ".int8.onnx" if kind == "int8" else ".onnx"
        rec = sherpa_onnx.OnlineRecognizer.from_transducer(
            tokens=str(a.onnx / "tokens.txt"),
            encoder=str(a.onnx / f"encoder{tail}"),
            decoder=str(a.onnx / f"decoder{tail}"),
            joiner=str(a.onnx / f"joiner{tail}"),
            num_threads=a.threads,
            feature_dim=about["feat_dim"],
            decoding_method="greedy_search",
            provider="cpu",
        )
        for batch in a.batch:
            said = []

            def run():
                streams = [rec.create_stream() for _ in range(batch)]
                for s in streams:
                    s.accept_waveform(16000, x)
                    s.input_finished()
                while ready := [s for s in streams if rec.is_ready(s)]:
                    rec.decode_streams(ready)
                said[:] = [len(rec.tokens(s)) for s in streams]

            run()
            wall, cpu = clock(run, a.repeat)
            emit(
                len(x) / 16000 * batch,
                wall,
                cpu,
                peer="sherpa-onnx",
                model=a.onnx.name,
                dtype=kind,
                threads=a.threads,
                mode="stream",
                chunk_ms=about["chunk_size_ms"],
                batch=batch,
                decode=True,
                tokens=said[0],
            )


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("peer", choices=["transformers", "export", "sherpa"])
    ap.add_argument("--model", type=Path)
    ap.add_argument("--onnx", type=Path)
    ap.add_argument("--out", type=Path)
    ap.add_argument("--audio", type=Path)
    ap.add_argument("--dtype", default="bf16", choices=["f32", "bf16"])
    ap.add_argument("--kinds", nargs="+", default=["int8"], choices=["f32", "int8"])
    ap.add_argument("--mode", nargs="+", default=["offline", "stream"], choices=["offline", "stream"])
    ap.add_argument("--lookahead", nargs="+", type=int, default=[6])
    ap.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    ap.add_argument("--seconds", type=float, default=10.0)
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--repeat", type=int, default=3)
    ap.add_argument("--decode", action="store_true")
    a = ap.parse_args()
    {"transformers": run_transformers, "export": export, "sherpa": run_sherpa}[a.peer](a)


if __name__ == "__main__":
    main()
