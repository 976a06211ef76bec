"""Speed of the published package qwen-tts: its own modules at the published size, with random weights.

    python qwen_python.py --size 0b6|1b7 --frames 12 [--threads 1] [--dtype f32]

One JSON line: wall milliseconds of a frame of talker and code predictor by the package's `generate` (median, best), and of the
codec for a frame when all frames are decoded at once, as the package does.
"""

import argparse
import copy
import json
import os
import statistics
import sys
import time
import warnings
from pathlib import Path

ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
ap.add_argument("--size", choices=["0b6", "1b7"], default="0b6")
ap.add_argument("--frames", type=int, default=12)
ap.add_argument("--threads", type=int, default=1)
ap.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
a = ap.parse_args()
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
warnings.filterwarnings("ignore")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "reference" / "qwen"))

import cases  # noqa: E402
import full_size  # noqa: E402
import tokens  # noqa: E402
import torch  # noqa: E402
from qwen_tts.core.models import Qwen3TTSConfig, Qwen3TTSForConditionalGeneration  # noqa: E402
from qwen_tts.core.tokenizer_12hz.configuration_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Config  # noqa: E402
from qwen_tts.core.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Model  # noqa: E402

torch.set_num_threads(a.threads)
torch.set_grad_enabled(False)
torch.manual_seed(0)
dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[a.dtype]
cases.CODEBOOK = full_size.BOOK
case = full_size.case(f"custom_{a.size}")
ids = {name: i for i, name in enumerate(tokens.ADDED)}
# The text's embeddings are given, so that few of them will do.
config = cases.model_config(case["kind"], case["size"], ids, {"assistant": 20}, 64, case["talker"], case["predictor"], case["groups"])
model = Qwen3TTSForConditionalGeneration(Qwen3TTSConfig(**copy.deepcopy(config))).eval().to(dtype)
talker, width, marks = model.talker, case["talker"]["hidden_size"], []
talker.codec_head.register_forward_hook(lambda *_: marks.append(time.perf_counter()))
rows = lambda n: torch.randn(1, n, width).to(dtype) * 0.3  # noqa: E731
eos = config["talker_config"]["codec_eos_token_id"]
vocab = config["talker_config"]["vocab_size"]
talker.generate(
    inputs_embeds=rows(24), attention_mask=torch.ones(1, 24, dtype=torch.long), trailing_text_hidden=rows(8), tts_pad_embed=rows(1),
    max_new_tokens=a.frames + 2, min_new_tokens=a.frames + 2, do_sample=False, subtalker_dosample=False, eos_token_id=eos,
    repetition_penalty=1.05, suppress_tokens=[i for i in range(vocab - 1024, vocab) if i != eos], output_hidden_states=True,
    return_dict_in_generate=True)
steps = [(b - c) * 1e3 for b, c in zip(marks[1:], marks)][1:]
del model, talker
codec = Qwen3TTSTokenizerV2Model(Qwen3TTSTokenizerV2Config(**cases.codec_config(**copy.deepcopy(full_size.CODEC)))).eval()
codes = torch.randint(0, full_size.BOOK, (1, 16, 24))
walls = []
for _ in range(3):
    start = time.perf_counter()
    codec.decoder.chunked_decode(codes)
    walls.append((time.perf_counter() - start) * 1e3 / codes.shape[-1])
print(json.dumps({"what": f"qwen {a.size}", "threads": a.threads, "dtype": a.dtype, "frames": len(steps),
                  "frame_ms": {"median": round(statistics.median(steps), 2), "best": round(min(steps), 2)},
                  "codec_ms": round(statistics.median(walls), 2), "version": torch.__version__}), flush=True)
