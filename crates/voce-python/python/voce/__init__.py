"""Real-time speech: text to audio, audio to text, both while it arrives.

    import voce

    samples = voce.say("Good morning.")          # all of the audio, as an array
    for chunk in voce.stream("Good morning."):   # as it is made
        ...
    print(voce.hear("meeting.mp3").text)

These functions keep the models that they open. `Speaker` and `Listener` are the same with a model of one's own, and have
streams both ways. Errors are `VoceError`, with a short `code`. Calls release the interpreter's lock, and Ctrl-C stops them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Unpack

from . import _native
from ._errors import VoceError
from ._hearing import EventStream, Listener
from ._options import SpeakOptions
from ._speech import LiveSpeech, Speaker, SpeechStream, Voice
from ._talking import Talker, TalkStream
from ._types import Event, Model, Segment, Transcript, Word

if TYPE_CHECKING:
    import numpy

__version__: str = _native.__version__
__all__ = [
    "Event", "EventStream", "Listener", "LiveSpeech", "Model", "Segment", "Speaker", "SpeechStream", "TalkStream", "Talker",
    "Transcript", "Voice", "VoceError", "Word", "close", "hear", "listen", "listener", "models", "pull", "say", "speaker",
    "stream",
]

_lock = threading.Lock()
_speakers: dict[str | None, Speaker] = {}
_listeners: dict[str | None, Listener] = {}


def _name(model: str | os.PathLike[str] | None) -> str | None:
    return None if model is None else os.fspath(model)


def speaker(model: str | os.PathLike[str] | None = None) -> Speaker:
    """The speaker that `say` and `stream` use, opened at its first use and kept."""
    with _lock:
        name = _name(model)
        if name not in _speakers:
            _speakers[name] = Speaker(name)
        return _speakers[name]


def listener(model: str | os.PathLike[str] | None = None) -> Listener:
    """The listener that `hear` and `listen` use, opened at its first use and kept."""
    with _lock:
        name = _name(model)
        if name not in _listeners:
            _listeners[name] = Listener(name)
        return _listeners[name]


def close() -> None:
    """Lets go of the models that these functions have opened; streams under way go on."""
    with _lock:
        _speakers.clear()
        _listeners.clear()


def say(
    text: str,
    voice: str | os.PathLike[str] | Voice | None = None,
    *,
    model: str | os.PathLike[str] | None = None,
    **how: Unpack[SpeakOptions],
) -> numpy.ndarray:
    """Speaks a text and returns all of its audio: mono, float32, `voce.speaker(model).sample_rate` samples a second."""
    return speaker(model).say(text, voice, **how)


def stream(
    text: str | Iterable[str],
    voice: str | os.PathLike[str] | Voice | None = None,
    *,
    model: str | os.PathLike[str] | None = None,
    **how: Unpack[SpeakOptions],
) -> SpeechStream:
    """Speaks a text, or pieces of text as an iterable gives them, and returns the audio while it is made."""
    return speaker(model).stream(text, voice, **how)


def hear(
    audio: Any, sample_rate: int | None = None, *, model: str | os.PathLike[str] | None = None, **how: Any
) -> Transcript:
    """Hears a whole recording: a path, the bytes of a file, or an array with its `sample_rate`."""
    return listener(model).hear(audio, sample_rate, **how)


def listen(
    audio: Iterable[Any] | None = None,
    sample_rate: int | None = None,
    *,
    model: str | os.PathLike[str] | None = None,
    **how: Any,
) -> EventStream:
    """Hears audio while it arrives: pieces that are pushed, or that an iterable gives."""
    return listener(model).listen(audio, sample_rate, **how)


def models(store: str | os.PathLike[str] | None = None) -> list[Model]:
    """The models that are here: those that were pulled, the user's own, and those that come with the package."""
    return [Model(*row) for row in _native.installed(store)]


def pull(model: str, store: str | os.PathLike[str] | None = None) -> int:
    """Fetches what is missing of a model, and returns the bytes fetched."""
    return _native.pull(model, store)
