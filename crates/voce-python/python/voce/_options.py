"""Keyword arguments, for those who check types."""

from __future__ import annotations

import os
from typing import TypedDict


class SpeakOptions(TypedDict, total=False):
    """How a text is spoken; what a model cannot use, it refuses by name."""

    #: The language of the text, for models of several.
    language: str | None
    #: How to speak, in words ("warm, low, slow").
    instruct: str | None
    #: The same seed gives the same audio; 0 where none is given.
    seed: int
    #: Sampling temperature; the model's own where none is given.
    temperature: float | None
    #: Take the best of everything that is drawn.
    greedy: bool
    #: Sampler steps per frame.
    steps: int
    top_k: int | None
    top_p: float | None
    #: Exactly this many frames unless the end comes first.
    max_frames: int | None
    #: Read numbers, dates and abbreviations out.
    normalize: bool


class SearchOptions(TypedDict, total=False):
    """How audio is heard."""

    #: The language, one of those that the model hears, in any spelling.
    language: str | None
    #: Milliseconds of audio per step, one of `Listener.chunks_ms`.
    chunk_ms: int | None
    #: Hypotheses kept; 1 takes the best at each step.
    beam: int
    #: Readings of each utterance to tell, up to `beam`.
    nbest: int
    #: An ARPA language model over the model's tokens, and its weight.
    lm: str | os.PathLike[str] | None
    lm_weight: float
    #: A foreseen pause that ends an utterance, in milliseconds.
    pause_ms: int | None
    #: Of models that draw tokens.
    temperature: float | None
    seed: int | None


class HearOptions(SearchOptions, total=False):
    """How a recording is heard."""

    #: Silence that ends an utterance, and the longest one, in milliseconds.
    silence_ms: int | None
    max_ms: int | None


class TalkOptions(TypedDict, total=False):
    """How a conversation goes."""

    temperature: float | None
    text_temperature: float | None
    top_k: int | None
    text_top_k: int | None
    seed: int
