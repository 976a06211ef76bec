"""Conversations: `Talker` and its streams."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from . import _arrays, _native
from ._options import TalkOptions

if TYPE_CHECKING:
    import numpy


class TalkStream:
    """A conversation: push what the user says, and iterate over what the model says, as arrays and strings."""

    def __init__(self, native: _native.Talking, sample_rate: int) -> None:
        self._native = native
        #: Samples per second, in and out.
        self.sample_rate = sample_rate

    def push(self, audio: Any) -> None:
        """Adds audio; waits while ten seconds of it are waiting."""
        self._native.push(_arrays.from_any(audio))

    def finish(self) -> None:
        """No more audio comes: iteration ends once all of it was heard."""
        self._native.finish()

    def close(self) -> None:
        """Ends the conversation at once, from any thread."""
        self._native.cancel()

    def __iter__(self) -> Iterator[numpy.ndarray | str]:
        return self

    def __next__(self) -> numpy.ndarray | str:
        said = self._native.next()
        if said is None:
            raise StopIteration
        audio, text = said
        return _arrays.to_array(audio) if audio is not None else str(text)

    def __enter__(self) -> TalkStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Talker:
    """A model that holds conversations, kept open."""

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        store: str | os.PathLike[str] | None = None,
        device: str = "auto",
        precision: str = "auto",
        threads: int = 0,
        slots: int | None = None,
    ) -> None:
        self._native = _native.Talker(
            os.fspath(model), store=store, device=device, precision=precision, threads=threads, slots=slots
        )

    @property
    def sample_rate(self) -> int:
        """Samples per second, in and out."""
        return self._native.sample_rate

    @property
    def frame_size(self) -> int:
        """Samples of a frame, in and out."""
        return self._native.frame_size

    def talk(self, **how: Unpack[TalkOptions]) -> TalkStream:
        """Begins a conversation."""
        return TalkStream(self._native.start(**how), self._native.sample_rate)
