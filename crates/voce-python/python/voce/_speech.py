"""Speaking: `Speaker` and its streams."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Unpack

from . import _arrays, _native
from ._feed import Feeder
from ._options import SpeakOptions
from ._types import Word

if TYPE_CHECKING:
    import numpy

Voice = _native.Voice


class SpeechStream:
    """Audio while it is made: an iterator of arrays. Closing it, or leaving its `with` block, stops the work."""

    def __init__(self, native: _native.Speech, pieces: Iterable[str] | None = None) -> None:
        self._native = native
        self._feeder = Feeder(native, pieces) if pieces is not None else None
        #: Samples per second.
        self.sample_rate: int = native.sample_rate
        #: The words spoken so far, of models that tell them.
        self.words: list[Word] = []

    def __iter__(self) -> Iterator[numpy.ndarray]:
        return self

    def __next__(self) -> numpy.ndarray:
        chunk = self._native.next()
        if chunk is None:
            if self._feeder is not None:
                self._feeder.check()
            raise StopIteration
        samples, words = chunk
        self.words.extend(Word(*word) for word in words)
        return _arrays.to_array(samples)

    def read(self) -> numpy.ndarray:
        """All that is left, as one array."""
        return _arrays.join(list(self))

    def close(self) -> None:
        """Stops speaking, from any thread; iteration ends."""
        self._native.cancel()

    def __enter__(self) -> SpeechStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LiveSpeech(SpeechStream):
    """Speech of text that is still being written: `push` text and `finish`, and iterate over the audio meanwhile.

    Push from another thread than the one that reads, or little at a time: when much waits to be spoken and nobody reads
    the audio, `push` waits.
    """

    def push(self, text: str) -> None:
        """Adds text; a word may come in pieces."""
        self._native.push(text)

    def finish(self) -> None:
        """No more text comes: iteration ends once all of it was spoken."""
        self._native.finish()


class Speaker:
    """A model that speaks, kept open. One speaker serves as many streams at once as it has slots, from any threads.

    `model` is a name that `voce list` shows, a folder or `owner/repo`; without one it is the best that was pulled, else
    the one that comes with the package.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        store: str | os.PathLike[str] | None = None,
        device: str = "auto",
        precision: str = "auto",
        threads: int = 0,
        slots: int | None = None,
    ) -> None:
        name = None if model is None else os.fspath(model)
        self._native = _native.Speaker(
            name, store=store, device=device, precision=precision, threads=threads, slots=slots
        )

    def __repr__(self) -> str:
        native = self._native
        return f"<voce.Speaker {native.model}, {native.precision} on {native.device or f'{native.threads} threads'}>"

    @property
    def model(self) -> str:
        """The model's name."""
        return self._native.model

    @property
    def sample_rate(self) -> int:
        """Samples per second of its audio."""
        return self._native.sample_rate

    @property
    def voices(self) -> list[str]:
        """Names of the voices that come with the model and of the user's own."""
        return self._native.voices

    @property
    def default_voice(self) -> str | None:
        """The voice to use when none is asked for."""
        return self._native.default_voice

    @property
    def languages(self) -> list[str]:
        """Languages of the model; empty where nobody knows."""
        return self._native.languages

    @property
    def precision(self) -> str:
        """Precision of the weights."""
        return self._native.precision

    @property
    def device(self) -> str | None:
        """The GPU in use; none is the CPU."""
        return self._native.device

    @property
    def slots(self) -> int:
        """Passages that run side by side."""
        return self._native.slots

    def warm(self) -> None:
        """Speaks a few frames that nobody hears, so that the first request is as fast as the second."""
        self._native.warm()

    def clone_voice(self, path: str | os.PathLike[str], text: str | None = None) -> Voice:
        """Clones a voice from a recording of up to 30 s, for models that can; `text` is what is said in it."""
        return self._native.clone_voice(path, text)

    def say(self, text: str, voice: str | os.PathLike[str] | Voice | None = None, **how: Unpack[SpeakOptions]) -> numpy.ndarray:
        """Speaks a text and returns all of its audio: mono, float32, `sample_rate` samples a second."""
        return self.stream(text, voice, **how).read()

    def stream(
        self, text: str | Iterable[str], voice: str | os.PathLike[str] | Voice | None = None, **how: Unpack[SpeakOptions]
    ) -> SpeechStream:
        """Speaks a text, or pieces of text as an iterable gives them, and returns the audio while it is made."""
        if isinstance(text, str):
            return SpeechStream(self._native.start(text, voice=voice, **how))
        return SpeechStream(self._native.start(None, voice=voice, **how), text)

    def live(self, voice: str | os.PathLike[str] | Voice | None = None, **how: Unpack[SpeakOptions]) -> LiveSpeech:
        """Speaks text that is pushed."""
        return LiveSpeech(self._native.start(None, voice=voice, **how))
