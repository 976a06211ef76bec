"""An exported folder against transformers' NemotronAsrStreamingForRNNT: features, encoder, greedy tokens, offline and in chunks.

    python test_layout.py nano-ear clip.wav [clip.wav ...]

For every look-ahead R the same weights must give the same encoder output (1e-4) and the same tokens in this
folder's model.py, in transformers offline, and in transformers with its caches, chunk by chunk.
"""

import json
import sys
from pathlib import Path

import numpy as np
import soundfile
import torch
from safetensors.torch import load_file
from transformers import NemotronAsrStreamingConfig, NemotronAsrStreamingForRNNT, NemotronAsrStreamingProcessor

from decode import greedy
from export import dequantised
from judge import load
from model import BLANK, LOOKAHEADS
from sound import Sound


def decode_plain(model, x: torch.Tensor) -> list[int]:
    """Greedy decoding with transformers' own decoder and joint, frame by frame."""
    f = model.encoder_projector(x)[0]
    state, token, out = None, BLANK, []
    embedding, lstm = model.decoder.embedding, model.decoder.lstm
    y, state = lstm(embedding(torch.tensor([[BLANK]])))
    g = model.decoder.decoder_projector(y)[0, 0]
    for t in range(len(f)):
        for _ in range(10):
            k = int(model.joint(g[None], f[t][None]).argmax())
            if k == BLANK:
                break
            out.append(k)
            y, state = lstm(embedding(torch.tensor([[k]])), state)
            g = model.decoder.decoder_projector(y)[0, 0]
    return out


def main() -> None:
    folder = Path(sys.argv[1])
    config = json.loads((folder / "config.json").read_text())
    config.pop("quantization_config", None)
    model = NemotronAsrStreamingForRNNT(NemotronAsrStreamingConfig.from_dict(config)).eval()
    model.load_state_dict(dequantised(load_file(folder / "model.safetensors")), strict=True)
    processor = NemotronAsrStreamingProcessor.from_pretrained(folder)
    assert processor.blank_token_id == BLANK
    ear, worst = load(folder), 0.0
    with torch.no_grad():
        for path in sys.argv[2:]:
            wave, rate = soundfile.read(path, dtype="float32")
            assert rate == 16000
            inputs = processor(wave, sampling_rate=16000)
            n = int(inputs["attention_mask"].sum())
            mine, frames = Sound(torch.device("cpu"), len(wave)).mel(torch.from_numpy(wave)[None], torch.tensor([len(wave)]))
            assert int(frames) == n and float((mine[:, :n] - inputs["input_features"][:, :n]).abs().max()) < 1e-3
            mel = inputs["input_features"][:, :n]
            for ahead in LOOKAHEADS:
                x, lengths = ear.encoder(mel, torch.tensor([n]), torch.tensor([ahead]))
                y = model.encoder(input_features=mel, attention_mask=torch.ones(1, n, dtype=torch.long), num_lookahead_tokens=ahead).last_hidden_state
                whole = float((x[:, : int(lengths)] - y[:, : int(lengths)]).abs().max())
                cache, padding, parts, at = None, None, [], 0
                while at < n:
                    size = 1 + 8 * ahead if at == 0 else 8 * (ahead + 1)
                    if at + size > n:
                        break
                    o = model.encoder(input_features=mel[:, at: at + size], past_key_values=cache, padding_cache=padding, use_cache=True, num_lookahead_tokens=ahead)
                    cache, padding = o.past_key_values, o.padding_cache
                    parts.append(o.last_hidden_state)
                    at += size
                chunks = torch.cat(parts, 1)
                chunked = float((x[:, : chunks.shape[1]] - chunks).abs().max())
                tokens, theirs, streamed = greedy(ear, x, lengths)[0], decode_plain(model, y[:, : int(lengths)]), decode_plain(model, chunks)
                again = greedy(ear, x[:, : chunks.shape[1]], torch.tensor([chunks.shape[1]]))[0]
                assert tokens == theirs and again == streamed, (path, ahead)
                worst = max(worst, whole, chunked)
                print(Path(path).name, "R", ahead, f"offline {whole:.1e} chunked {chunked:.1e} tokens {len(tokens)} equal:", processor.tokenizer.decode(tokens)[:80], flush=True)
    assert worst < 1e-4, worst
    print("all equal, worst", worst)


if __name__ == "__main__":
    main()
