"""Fixtures for voce-audio from the packages it must agree with: scipy's resample_poly and Pocket TTS 4.0.1's
voice prompt preparation (convert_audio, end_on_pause), and torch's clamp and cast to 16 bits.

Needs: pip install pocket-tts==4.0.1 (brings torch, numpy, scipy).
Run:   python reference/audio/make_fixtures.py crates/voce-audio/tests/fixtures
Each .f32 file is little-endian float32; inputs are made by the same integer recurrence as in the Rust tests.
"""

import sys
import wave
from pathlib import Path

import numpy as np
import torch
from pocket_tts.data.audio import audio_read
from pocket_tts.data.audio_utils import convert_audio, end_on_pause


def noise(n, seed):
    """Numerical Recipes' 32-bit congruential generator, top 16 bits, in -0.5..0.5."""
    out, state = np.empty(n, np.float32), seed
    for i in range(n):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        out[i] = np.float32((state >> 16) - 32768) / np.float32(65536)
    return out


def save(out, name, array):
    np.asarray(array, dtype="<f4").tofile(out / f"{name}.f32")


def main():
    out = Path(sys.argv[1])
    for src, dst, n in [(44100, 24000, 2000), (16000, 24000, 1500), (48000, 24000, 3001), (8000, 24000, 700),
                        (22050, 24000, 900), (96000, 24000, 2500), (24000, 16000, 1000), (11025, 24000, 5)]:
        wav = torch.from_numpy(noise(n, src)).unsqueeze(0)
        save(out, f"scipy_{src}_{dst}", convert_audio(wav, src, dst, 1)[0].numpy())

    # Loud with a quiet tail, a click late in the tail, silence alone, shorter than a frame, not whole frames.
    loud = noise(9000, 1)
    tail = noise(6000, 2) * np.float32(0.001)
    tail_click = tail.copy()
    tail_click[3000:3600] += noise(600, 3) * np.float32(0.2)
    for name, wav in [("tail", np.concatenate([loud, tail])), ("click", np.concatenate([loud, tail_click])),
                      ("silence", np.zeros(3000, np.float32)), ("short", noise(300, 4)),
                      ("odd", noise(5003, 5))]:
        ended = end_on_pause(torch.from_numpy(wav).unsqueeze(0), 24000)[0].numpy()
        # Only the end changes: the length, the pause and the 1,000 samples before it say it all.
        save(out, f"prompt_{name}", np.concatenate([[len(ended)], ended[-2920:]]))

    # A stereo 16-bit file, read and prepared as get_state_for_audio_prompt does.
    path = out / "stereo.wav"
    with wave.open(str(path), "wb") as f:
        f.setnchannels(2)
        f.setsampwidth(2)
        f.setframerate(44100)
        f.writeframes((noise(6615 * 2, 8) * 32768).astype("<i2").tobytes())
    wav, rate = audio_read(path)
    path.unlink()
    save(out, "prompt_stereo_file", end_on_pause(convert_audio(wav, rate, 24000, 1), 24000)[0].numpy())

    x = torch.from_numpy(noise(200, 6)) * 2.5
    save(out, "s16", (x.clamp(-1, 1) * 32767).short().numpy().astype(np.float32))


main()
