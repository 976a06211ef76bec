"""Log-mel fixtures for voce-audio from the feature extractors of transformers, which equal NeMo's
AudioToMelSpectrogramPreprocessor bit for bit.

Needs: pip install torch transformers librosa numpy
Run:   python reference/audio/make_mel_fixtures.py crates/voce-audio/tests/fixtures
"""

import sys
from pathlib import Path

import numpy as np
from transformers import NemotronAsrStreamingFeatureExtractor, ParakeetFeatureExtractor


def noise(n, seed):
    out, state = np.empty(n, np.float32), seed
    for i in range(n):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        out[i] = np.float32((state >> 16) - 32768) / np.float32(65536)
    return out


def main():
    out = Path(sys.argv[1])
    gain = np.full(8123, 2.0, np.float32)
    gain[:2000], gain[2000:3500], gain[3500:5000] = 0.1, 0.0, 0.001
    x = noise(8123, 77) * gain
    for name, extractor in [("mel80", NemotronAsrStreamingFeatureExtractor(feature_size=80)),
                            ("mel128", NemotronAsrStreamingFeatureExtractor(feature_size=128)),
                            ("mel80_normalised", ParakeetFeatureExtractor(feature_size=80))]:
        mel = extractor(x, sampling_rate=16000, return_tensors="pt")
        valid = int(mel.attention_mask.sum())
        mel.input_features[0, :valid].numpy().astype("<f4").tofile(out / f"{name}.f32")


main()
