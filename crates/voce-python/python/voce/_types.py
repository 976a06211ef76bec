"""What was heard, as small values."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Word:
    """A word. Times are seconds of audio from the start."""

    text: str
    start: float
    end: float
    #: How sure the model is, 0 to 1; of words that a model speaks always 1.
    confidence: float = 1.0


@dataclass(frozen=True, slots=True)
class Segment:
    """An utterance."""

    text: str
    start: float
    end: float
    words: tuple[Word, ...] = ()
    #: The best readings with their scores, where `nbest` asked for them.
    readings: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """Something heard in a live stream.

    `kind` is `"partial"` (an utterance so far, whose end may change; only with `partials=True`), `"word"` (one that will
    not change), `"endpoint"` (the utterance ends here, by `reason`) or `"final"` (a whole utterance).
    """

    kind: str
    text: str
    start: float
    end: float
    words: tuple[Word, ...] = ()
    readings: tuple[tuple[str, float], ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Transcript:
    """What was heard in a recording."""

    text: str
    segments: tuple[Segment, ...] = ()
    #: Seconds of audio.
    seconds: float = 0.0
    words: tuple[Word, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Model:
    """A model on this machine."""

    name: str
    #: `"speech"`, `"hearing"`, `"dialogue"`, or `None` where nobody knows.
    task: str | None
    #: Bytes of its files.
    size: int
