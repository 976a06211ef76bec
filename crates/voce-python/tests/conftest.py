"""Fixtures: a store of its own, and one speaker and one listener for all tests."""

from __future__ import annotations

import os
import wave

import pytest


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory):
    """Nothing of the user's is read or written."""
    home = tmp_path_factory.mktemp("voce")
    os.environ["VOCE_HOME"] = str(home)
    os.environ["HF_HOME"] = str(home / "hf")
    os.environ["VOCE_DEVICE"] = "cpu"
    return home


@pytest.fixture(scope="session")
def speaker(home):
    import voce

    return voce.Speaker("nano-voice", device="cpu", threads=1, slots=4)


@pytest.fixture(scope="session")
def listener(home):
    import voce

    return voce.Listener("nano-ear", device="cpu", threads=1, slots=4)


TEXT = "The weather is fine today."


@pytest.fixture(scope="session")
def spoken(speaker):
    """A sentence as an array, at the speaker's rate."""
    return speaker.say(TEXT, seed=1)


@pytest.fixture(scope="session")
def wav(spoken, speaker, tmp_path_factory):
    """The sentence as a file."""
    import numpy

    path = tmp_path_factory.mktemp("audio") / "spoken.wav"
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(speaker.sample_rate)
        out.writeframes((numpy.clip(spoken, -1, 1) * 32767).astype("<i2").tobytes())
    return path
