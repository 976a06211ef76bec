"""Speed of the published package qwen-tts on a folder from reference/qwen/full_size.py.

    python qwen_python.py --model DIR --frames 12 [--threads 1] [--dtype f32]

One JSON line: wall milliseconds of a frame of talker and code predictor (median, best), and of the codec for a frame when all
frames are decoded at once, as the package does.
"""

import argparse
import json
import os
import statistics
import sys
import time
import warnings
from pathlib import Path

ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
ap.add_argument("--model", required=True, type=Path)
ap.add_argument("--frames", type=int, default=12)
ap.add_argument("--threads", type=int, default=1)
ap.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
a = ap.parse_args()
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
warnings.filterwarnings("ignore")

import torch  # noqa: E402
from qwen_tts import Qwen3TTSModel  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "reference" / "qwen"))
import tokens  # noqa: E402

torch.set_num_threads(a.threads)
dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[a.dtype]
model = Qwen3TTSModel.from_pretrained(str(a.model), dtype=dtype, attn_implementation="eager")
model.processor.tokenizer = tokens.published(a.model)
talker, marks, codec = model.model.talker, [], []
talker.codec_head.register_forward_hook(lambda *_: marks.append(time.perf_counter()))
tokenizer = model.model.speech_tokenizer
decode = tokenizer.decode


def timed(*args, **kwargs):
    start = time.perf_counter()
    out = decode(*args, **kwargs)
    codec.append(time.perf_counter() - start)
    return out


tokenizer.decode = timed
kind = model.model.config.tts_model_type
text = dict(text="Hello there, it's a tiny test.", language="English", max_new_tokens=a.frames + 1, do_sample=False,
            subtalker_dosample=False, repetition_penalty=1.05)
with torch.no_grad():
    if kind == "base":
        import numpy as np

        t = np.arange(36000) / 24000
        wav = (0.4 * np.sin(2 * np.pi * 220 * t)).astype(np.float32)
        prompt = model.create_voice_clone_prompt((wav, 24000), x_vector_only_mode=True)
        model.generate_voice_clone(**text, voice_clone_prompt=prompt)
    elif kind == "custom_voice":
        model.generate_custom_voice(**text, speaker="ryan")
    else:
        model.generate_voice_design(**text, instruct="A calm voice.")
steps = [(b - c) * 1e3 for b, c in zip(marks[1:], marks)][1:]
print(json.dumps({"what": "qwen", "threads": a.threads, "dtype": a.dtype, "frames": len(steps),
                  "frame_ms": {"median": round(statistics.median(steps), 2), "best": round(min(steps), 2)},
                  "codec_ms": round(sum(codec) * 1e3 / a.frames, 2), "version": torch.__version__}), flush=True)
