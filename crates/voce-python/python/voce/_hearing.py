"""Hearing: `Listener` and its streams."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Unpack

from . import _arrays, _native
from ._feed import Feeder
from ._options import HearOptions, SearchOptions
from ._types import Event, Segment, Transcript, Word

#: What suits live speech: silence that ends an utterance, and the longest one, in milliseconds.
LIVE_SILENCE_MS = 800
LIVE_MAX_MS = 30_000


def _phrases(hotwords: Iterable[str | tuple[str, float]]) -> list[tuple[str, float]]:
    return [(word, 1.0) if isinstance(word, str) else word for word in hotwords]


class EventStream:
    """What is heard, while it is heard: an iterator of events. Closing it, or leaving its `with` block, stops the work."""

    def __init__(self, native: _native.Hearing, pieces: Iterable[Any] | None = None) -> None:
        self._native = native
        self._feeder = Feeder(self, pieces) if pieces is not None else None

    def push(self, audio: Any) -> None:
        """Adds audio: an array of float32, float64, int16 or int32 at the stream's sample rate; waits while ten seconds
        of it are waiting."""
        self._native.push(_arrays.from_any(audio))

    def end_utterance(self) -> None:
        """Ends the utterance here: its final comes without waiting for more audio."""
        self._native.end_utterance()

    def finish(self) -> None:
        """No more audio comes: iteration ends once all of it was heard."""
        self._native.finish()

    def cancel(self) -> None:
        """Stops hearing, from any thread; iteration ends."""
        self._native.cancel()

    close = cancel

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        row = self._native.next()
        if row is None:
            if self._feeder is not None:
                self._feeder.check()
            raise StopIteration
        kind, text, start, end, words, readings, reason = row
        return Event(kind, text, start, end, tuple(Word(*word) for word in words), tuple(readings), reason)

    def __enter__(self) -> EventStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Listener:
    """A model that hears, kept open. One listener serves as many streams at once as it has slots, from any threads.

    `model` is a name that `voce list` shows, a folder, a `.nemo` file or `owner/repo`; without one it is the best that was
    pulled, else the one that comes with the package.
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
        self._native = _native.Listener(
            name, store=store, device=device, precision=precision, threads=threads, slots=slots
        )

    def __repr__(self) -> str:
        native = self._native
        return f"<voce.Listener {native.model}, {native.precision} on {native.device or f'{native.threads} threads'}>"

    @property
    def model(self) -> str:
        """The model's name."""
        return self._native.model

    @property
    def sample_rate(self) -> int:
        """Samples per second that the model takes; audio of other rates is resampled."""
        return self._native.sample_rate

    @property
    def languages(self) -> list[str]:
        """Languages that it hears, as far as that is known: each may be asked for, in any spelling."""
        return self._native.languages

    @property
    def chunks_ms(self) -> list[int]:
        """Milliseconds of audio that a step may take; empty for models that take whole utterances."""
        return self._native.chunks_ms

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
        """Streams that run side by side."""
        return self._native.slots

    def warm(self) -> None:
        """Hears some silence, so that the first stream is as fast as the second."""
        self._native.warm()

    def hear(
        self,
        audio: Any,
        sample_rate: int | None = None,
        *,
        hotwords: Iterable[str | tuple[str, float]] = (),
        **how: Unpack[HearOptions],
    ) -> Transcript:
        """Hears a whole recording: a path, the bytes of a file, or an array with its `sample_rate` (the model's, where
        none is given)."""
        path = isinstance(audio, (str, os.PathLike))
        source = audio if path or isinstance(audio, (bytes, bytearray)) else _arrays.from_any(audio)
        native = self._native.start(source, sample_rate=sample_rate, hotwords=_phrases(hotwords), **how)
        segments, seconds = [], 0.0
        while (row := native.next()) is not None:
            kind, text, start, end, words, readings, _ = row
            seconds = native.seconds() or seconds
            if kind == "final":
                segments.append(Segment(text, start, end, tuple(Word(*word) for word in words), tuple(readings)))
        return Transcript(
            text=" ".join(segment.text for segment in segments if segment.text),
            segments=tuple(segments),
            seconds=seconds,
            words=tuple(word for segment in segments for word in segment.words),
        )

    def listen(
        self,
        audio: Iterable[Any] | None = None,
        sample_rate: int | None = None,
        *,
        partials: bool = False,
        silence_ms: int | None = LIVE_SILENCE_MS,
        max_ms: int | None = LIVE_MAX_MS,
        hotwords: Iterable[str | tuple[str, float]] = (),
        **how: Unpack[SearchOptions],
    ) -> EventStream:
        """Hears audio while it arrives: pieces that are pushed, or that an iterable gives. Utterances end after
        `silence_ms` without speech, and after `max_ms`."""
        native = self._native.start(
            None,
            sample_rate=sample_rate,
            partials=partials,
            silence_ms=silence_ms,
            max_ms=max_ms,
            hotwords=_phrases(hotwords),
            **how,
        )
        return EventStream(native, audio)
