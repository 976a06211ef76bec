"""Stands in for `sounddevice` where there is no sound card: the microphone is a WAV file (VOCE_MICROPHONE), the speaker a
file of floats (VOCE_SPEAKER). Only what Kyutai's scripts use is here."""

import itertools
import os
import threading
import wave

import numpy as np


class default:
    device = [0, 0]


def query_devices():
    return "0 a file"


class _Stream:
    def __init__(self, samplerate, blocksize, channels, callback, dtype="float32"):
        assert (channels, dtype) == (1, "float32")
        self.rate, self.size, self.callback = samplerate, blocksize, callback
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


class InputStream(_Stream):
    def run(self):
        with wave.open(os.environ["VOCE_MICROPHONE"]) as file:
            assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (self.rate, 1, 2)
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
        # Over and over, because microphones do not end, and ten times as fast as speech.
        for i in itertools.cycle(range(0, len(samples) - self.size + 1, self.size)):
            self.callback(samples[i : i + self.size, None], self.size, None, None)
            if self.over.wait(self.size / self.rate / 10):
                return


class OutputStream(_Stream):
    def run(self):
        with open(os.environ["VOCE_SPEAKER"], "wb") as file:
            while not self.over.wait(self.size / self.rate / 10):
                block = np.zeros((self.size, 1), np.float32)
                self.callback(block, self.size, None, None)
                file.write(block.tobytes())
