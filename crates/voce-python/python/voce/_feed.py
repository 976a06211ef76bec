"""Feeding a stream from an iterable, on a thread of its own, while the caller reads what comes out."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Protocol

from ._errors import VoceError


class Fed(Protocol):
    """A stream that takes pieces."""

    def push(self, piece: Any) -> None: ...
    def finish(self) -> None: ...
    def cancel(self) -> None: ...


class Feeder:
    """Pushes everything that an iterable gives. What the iterable raises is kept for whoever reads."""

    def __init__(self, stream: Fed, pieces: Iterable[Any]) -> None:
        self._stream = stream
        self._pieces = pieces
        self._raised: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="voce-feed", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for piece in self._pieces:
                self._stream.push(piece)
            self._stream.finish()
        except VoceError as error:
            # The stream has ended: its reader learns why by reading.
            if error.code != "ended":
                self._raised = error
                self._stream.cancel()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is read
            self._raised = error
            self._stream.cancel()

    def check(self) -> None:
        """Raises what the iterable raised; called when the stream has ended."""
        if self._raised is not None:
            self._thread.join()
            raised, self._raised = self._raised, None
            raise raised
