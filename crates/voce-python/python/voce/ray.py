"""Callables for Ray Data: `Dataset.map_batches` with a model per actor, which stays open from batch to batch.

    import ray, voce.ray

    texts = (
        ray.data.from_items([{"path": path} for path in paths])
        .map_batches(voce.ray.Transcribe, concurrency=4, num_cpus=2, fn_constructor_kwargs={"threads": 2})
    )

One actor per GPU (`num_gpus=1`: Ray shows each actor its own) or per group of cores (`num_cpus=N` with `threads=N`). Rows of
a batch are heard and spoken side by side, `slots` at a time. A row that fails has its error in the column `error` and goes
on; `on_error="raise"` ends the job instead. Ray itself is imported by whoever uses it, not here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

from ._errors import VoceError
from ._hearing import Listener
from ._speech import Speaker

#: Rows of a batch that are worked on side by side.
SLOTS = 8

Batch = dict[str, Any]
OnError = Literal["column", "raise"]
_Row = TypeVar("_Row")


def _side_by_side(
    work: Callable[[Any], _Row], rows: Iterable[Any], slots: int, on_error: OnError
) -> tuple[list[_Row | None], list[str | None]]:
    """What `work` makes of each row, and what went wrong with it."""

    def one(row: Any) -> tuple[_Row | None, str | None]:
        try:
            return work(row), None
        except (VoceError, TypeError, ValueError) as error:
            if on_error == "raise":
                raise
            code = error.code if isinstance(error, VoceError) else "bad_request"
            return None, f"{code}: {error}"

    with ThreadPoolExecutor(slots) as pool:
        done = list(pool.map(one, rows))
    return [row for row, _ in done], [error for _, error in done]


def _strings(values: Iterable[str | None]) -> Any:
    import numpy

    return numpy.array(list(values), dtype=object)


class Transcribe:
    """Hears the recordings of a batch and adds the columns `text`, `words`, `seconds` and `error`.

    Recordings are paths or bytes of files in the column `path` or `bytes`, or arrays in the column `audio` with their
    `sample_rate` beside them (the model's, where there is no such column).
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        column: str | None = None,
        slots: int = SLOTS,
        on_error: OnError = "column",
        store: str | os.PathLike[str] | None = None,
        device: str = "auto",
        precision: str = "auto",
        threads: int = 0,
        **how: Any,
    ) -> None:
        self._listener = Listener(
            model, store=store, device=device, precision=precision, threads=threads, slots=slots
        )
        self._column, self._slots, self._on_error, self._how = column, slots, on_error, how

    def __call__(self, batch: Batch) -> Batch:
        column = self._column or next((name for name in ("path", "bytes", "audio") if name in batch), None)
        if column is None or column not in batch:
            raise ValueError(f"a batch has the columns {sorted(batch)}: name the one with recordings by `column`")
        rates = batch.get("sample_rate", [None] * len(batch[column]))
        rows = [(audio, None if rate is None else int(rate)) for audio, rate in zip(batch[column], rates)]
        heard, errors = _side_by_side(
            lambda row: self._listener.hear(row[0], row[1], **self._how), rows, self._slots, self._on_error
        )
        import numpy

        words = numpy.empty(len(heard), dtype=object)
        for i, one in enumerate(heard):
            words[i] = [
                {"text": w.text, "start": w.start, "end": w.end, "confidence": w.confidence}
                for w in (one.words if one else ())
            ]
        return {
            **batch,
            "text": _strings(one.text if one else None for one in heard),
            "words": words,
            "seconds": numpy.array([one.seconds if one else 0.0 for one in heard]),
            "error": _strings(errors),
        }


class Synthesize:
    """Speaks the texts of a batch and adds the columns `audio` (arrays of float32), `sample_rate` and `error`.

    Texts are in the column `text`; a column `voice` names a voice for each row.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        column: str = "text",
        voice: str | os.PathLike[str] | None = None,
        slots: int = SLOTS,
        on_error: OnError = "column",
        store: str | os.PathLike[str] | None = None,
        device: str = "auto",
        precision: str = "auto",
        threads: int = 0,
        **how: Any,
    ) -> None:
        self._speaker = Speaker(model, store=store, device=device, precision=precision, threads=threads, slots=slots)
        self._column, self._voice, self._slots = column, voice, slots
        self._on_error, self._how = on_error, how

    def __call__(self, batch: Batch) -> Batch:
        if self._column not in batch:
            raise ValueError(f"a batch has the columns {sorted(batch)}: name the one with texts by `column`")
        voices = batch.get("voice", [self._voice] * len(batch[self._column]))
        rows = list(zip(batch[self._column], voices))
        spoken, errors = _side_by_side(
            lambda row: self._speaker.say(str(row[0]), row[1], **self._how), rows, self._slots, self._on_error
        )
        import numpy

        audio = numpy.empty(len(spoken), dtype=object)
        for i, samples in enumerate(spoken):
            audio[i] = numpy.empty(0, dtype=numpy.float32) if samples is None else samples
        return {
            **batch,
            "audio": audio,
            "sample_rate": numpy.full(len(spoken), self._speaker.sample_rate),
            "error": _strings(errors),
        }
