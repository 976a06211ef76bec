"""Speed of the published Python package, as it ships or with its int8 option, on a local model folder.

    python pocket_tts_python.py --model DIR --tokens 24 --frames 125 --repeats 5 [--quantize] [--threads 1]
"""

import argparse
import logging
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
ap.add_argument("--model", required=True)
ap.add_argument("--tokens", type=int, default=24)
ap.add_argument("--frames", type=int, default=None, help="default: what the package allows for the tokens")
ap.add_argument("--repeats", type=int, default=5)
ap.add_argument("--threads", type=int, default=1, help="torch threads of each of the package's two threads")
ap.add_argument("--quantize", action="store_true")
a = ap.parse_args()

import measure  # noqa: E402
import torch  # noqa: E402
from pocket_tts import TTSModel  # noqa: E402

logging.disable(logging.WARNING)  # it warns about every text that reaches its limit, as these all do
os.chdir(a.model)  # the config names its files relative to itself
model = TTSModel.load_model(config="config.yaml", quantize=a.quantize)
torch.set_num_threads(a.threads)
voice = model.get_state_for_audio_prompt("voice.safetensors")
text = measure.text_of(a.tokens, model.flow_lm.conditioner.tokenizer.encode)
if a.frames:
    model._estimate_max_gen_len = lambda _tokens: a.frames


def stream():
    for chunk in model.generate_audio_stream(voice, text):
        yield chunk.shape[0]


measure.run(
    "pocket-tts int8" if a.quantize else "pocket-tts",
    stream,
    a.repeats,
    a.threads,
    tokens=a.tokens,
    version=f"torch {torch.__version__}",
)
