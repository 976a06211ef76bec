"""Speed of Kyutai's published package, and of rustymimi, on a folder from reference/kyutai/full_size.py, or on random weights
of the published size where there is none.

    NO_TORCH_COMPILE=1 python kyutai_python.py --what mimi|rustymimi|stt|tts --model DIR --frames 40 [--threads 1] [--dtype f32]

One JSON line: median, best and mean wall milliseconds of a frame of 80 ms, after a few frames that are not counted.
"""

import argparse
import copy
import json
import os
import statistics
import sys
import time
from pathlib import Path

ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
ap.add_argument("--what", required=True, choices=["mimi", "rustymimi", "stt", "tts"])
ap.add_argument("--model", required=True, type=Path)
ap.add_argument("--frames", type=int, default=40)
ap.add_argument("--codebooks", type=int, default=8, help="of the codec alone")
ap.add_argument("--threads", type=int, default=1)
ap.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
a = ap.parse_args()
os.environ["NO_TORCH_COMPILE"] = "1"
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS", "CANDLE_NUM_THREADS"):
    os.environ[name] = str(a.threads)

import numpy as np  # noqa: E402

WARM = 5
t = np.arange((a.frames + WARM) * 1920) / 24000
rng = np.random.default_rng(0)
pcm = (0.3 * np.sin(2 * np.pi * 220 * t) + 0.1 * np.sin(2 * np.pi * 1330 * t) + 0.02 * rng.standard_normal(t.shape)).astype(np.float32)
chunks = [np.ascontiguousarray(c)[None, None] for c in np.split(pcm, a.frames + WARM)]


def figures(walls: list[float]) -> dict:
    ms = [w * 1e3 for w in walls[WARM:]]
    return {"median": round(statistics.median(ms), 3), "best": round(min(ms), 3), "mean": round(statistics.fmean(ms), 3)}


def timed(call, inputs):
    walls, outs = [], []
    for x in inputs:
        start = time.perf_counter()
        outs.append(call(x))
        walls.append(time.perf_counter() - start)
    return walls, outs


def tell(**more):
    print(json.dumps({"what": a.what, "threads": a.threads, "dtype": a.dtype, "frames": a.frames} | more), flush=True)


if a.what == "rustymimi":
    import rustymimi

    codec = rustymimi.Tokenizer(str(a.model / "mimi.safetensors"), num_codebooks=a.codebooks)
    encode, codes = timed(codec.encode_step, chunks)
    decode, _ = timed(lambda c: codec.decode_step(np.ascontiguousarray(c)), codes)
    tell(codebooks=a.codebooks, encode_ms=figures(encode), decode_ms=figures(decode))
    sys.exit()

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "reference" / "kyutai"))
import full_size  # noqa: E402
import torch  # noqa: E402
from moshi.models import LMGen, loaders  # noqa: E402

torch.set_num_threads(a.threads)
torch.set_grad_enabled(False)
dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[a.dtype]
inputs = [torch.from_numpy(c) for c in chunks]


def language_model():
    outside = ("mimi_name", "moshi_name", "tokenizer_name", "mimi_config_name", "model_type", "stt_config", "tts_config", "model_id")
    if (a.model / "dump.safetensors").exists():
        config = json.loads((a.model / "config.json").read_text())
        weights = a.model / "model.safetensors"
    else:
        config, weights = full_size.STT["stt-1b"][0] if a.what == "stt" else full_size.TTS, None
    config = {k: v for k, v in copy.deepcopy(config).items() if k not in outside}
    return loaders.get_moshi_lm(weights, config, dtype=dtype)


def published_codec(codebooks):
    """The codec of the folder, of one beside it, or a random one."""
    found = [p / "mimi.safetensors" for p in (a.model, a.model.parent / "mimi") if (p / "mimi.safetensors").exists()]
    return loaders.get_mimi(found[0] if found else None, None, num_codebooks=codebooks)


if a.what == "mimi":
    codec = published_codec(a.codebooks)
    with codec.streaming(1):
        encode, codes = timed(codec.encode, inputs)
        decode, _ = timed(codec.decode, codes)
    tell(codebooks=a.codebooks, encode_ms=figures(encode), decode_ms=figures(decode), version=torch.__version__)
elif a.what == "stt":
    codec = published_codec(32)
    gen = LMGen(language_model(), temp=0.0, temp_text=0.0)
    with codec.streaming(1), gen.streaming(1):
        frame, _ = timed(lambda x: gen.step(codec.encode(x)), inputs)
    tell(frame_ms=figures(frame), version=torch.__version__)
else:
    from moshi.conditioners import ConditionAttributes, TensorCondition
    from moshi.models.tts import StateMachine, TokenIds, TTSModel

    lm = language_model()
    delay = int(full_size.TTS_EXTRA["audio_delay"] * 12.5)
    model = TTSModel(lm=lm, mimi=full_size.Silent(), tokenizer=full_size.Pieces(lm.text_card), voice_suffix="", voice_repo="",
                     machine=StateMachine(TokenIds(lm.text_card + 1), 2, 6, 2), delay_steps=delay, max_speakers=5, temp=0.0,
                     n_q=32, cfg_coef=1.0, final_padding=3, max_gen_length=delay + 2 + WARM + a.frames)
    rows, mask = torch.zeros(1, 625, 512, dtype=dtype), torch.zeros(1, 625, dtype=torch.bool)
    mask[0, :250] = True
    attributes = [ConditionAttributes(text={"control": "ok", "cfg": "2.0"}, tensor={"speaker_wavs": TensorCondition(rows, mask)})]
    marks = []
    script = model.prepare_script(["hello there " * 40], padding_between=1)
    model.generate([script], attributes, use_sampling=False, on_frame=lambda _: marks.append(time.perf_counter()))
    # Steps before the audio draw no codes.
    marks = marks[delay + 2:]
    tell(frame_ms=figures([b - c for b, c in zip(marks[1:], marks)]), version=torch.__version__)
