"""Loads every fixture again through the package's own doors and compares.

    python check.py DIR

The folder's files give the stored codes and audio of every run, and the decoder is causal: a prefix of the codes gives a prefix of
the audio. Prints the largest difference of audio per case; fails above 1e-5.
"""

import json
import sys
from pathlib import Path

import make_fixtures as make
import safetensors.torch
import scipy.io.wavfile
import torch
from cases import CASES

LIMIT = 1e-5


def check(folder: Path) -> float:
    case, stored = CASES[folder.name], safetensors.torch.load_file(folder / "dump.safetensors")
    model = make.load(folder)
    rate, wav = scipy.io.wavfile.read(folder / "ref.wav")
    wav = wav.astype("float32") / 32768
    clones = {}
    if case["kind"] == "base":
        clones["xvector"] = model.create_voice_clone_prompt((wav, rate), x_vector_only_mode=True)[0]
        clones["icl"] = model.create_voice_clone_prompt((wav, rate), ref_text=make.REFERENCE_TEXT)[0]
        assert torch.equal(clones["icl"].ref_code.T.int(), stored["enc/codes"])
    worst = 0.0
    for name, spec in case["runs"].items():
        t, info = make.run(model, spec, case, clones, False)
        assert torch.equal(t["codes"].int(), stored[f"{name}/codes"]), name
        assert json.loads((folder / "dump.json").read_text())["runs"][name]["frames"] == info["frames"]
        if "audio" in t:
            worst = max(worst, float((t["audio"] - stored[f"{name}/audio"]).abs().max()))
    with torch.no_grad():
        start = model.model.speech_tokenizer.model.decoder(stored["dec/codes"][None, :, :5].long())[0, 0]
    return max(worst, float((start - stored["dec/audio"][: len(start)]).abs().max()))


def main():
    torch.set_num_threads(1)
    worst = {p.name: check(p) for p in sorted(Path(sys.argv[1]).resolve().iterdir()) if (p / "dump.json").exists()}
    for name, value in worst.items():
        print(f"{name:12s} {value:.1e}")
    if not worst or max(worst.values()) > LIMIT:
        sys.exit(f"above {LIMIT} or nothing to check")


if __name__ == "__main__":
    main()
