"""The extension module. The package's own classes are made for use; these are what they stand on."""

import os
from typing import Any, final

__version__: str

_Path = str | os.PathLike[str]
_WordRow = tuple[str, float, float, float]
_EventRow = tuple[str, str, float, float, list[_WordRow], list[tuple[str, float]], str]

def main(args: list[str]) -> int: ...
def installed(store: _Path | None = None) -> list[tuple[str, str | None, int]]: ...
def pull(model: str, store: _Path | None = None) -> int: ...
@final
class Voice:
    """A voice that is loaded."""

    def save(self, path: _Path) -> None:
        """Writes it as a `.safetensors` file, which `voice=` takes from then on."""

@final
class Speaker:
    def __init__(
        self,
        model: str | None = None,
        *,
        store: _Path | None = None,
        device: str = "auto",
        precision: str = "auto",
        threads: int = 0,
        slots: int | None = None,
    ) -> None: ...
    @property
    def model(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def sample_rate(self) -> int: ...
    @property
    def precision(self) -> str: ...
    @property
    def device(self) -> str | None: ...
    @property
    def threads(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def languages(self) -> list[str]: ...
    @property
    def voices(self) -> list[str]: ...
    @property
    def default_voice(self) -> str | None: ...
    def clone_voice(self, path: _Path, text: str | None = None) -> Voice: ...
    def warm(self) -> None: ...
    def start(
        self,
        text: str | None,
        *,
        voice: _Path | Voice | None = None,
        language: str | None = None,
        instruct: str | None = None,
        seed: int = 0,
        temperature: float | None = None,
        greedy: bool = False,
        steps: int = 1,
        top_k: int | None = None,
        top_p: float | None = None,
        max_frames: int | None = None,
        normalize: bool = True,
    ) -> Speech: ...

@final
class Speech:
    @property
    def sample_rate(self) -> int: ...
    def next(self) -> tuple[bytearray, list[tuple[str, float, float]]] | None: ...
    def push(self, text: str) -> None: ...
    def finish(self) -> None: ...
    def cancel(self) -> None: ...
    def stats(self) -> tuple[float | None, float] | None: ...

@final
class Listener:
    def __init__(
        self,
        model: str | None = None,
        *,
        store: _Path | None = None,
        device: str = "auto",
        precision: str = "auto",
        threads: int = 0,
        slots: int | None = None,
    ) -> None: ...
    @property
    def model(self) -> str: ...
    @property
    def sample_rate(self) -> int: ...
    @property
    def precision(self) -> str: ...
    @property
    def device(self) -> str | None: ...
    @property
    def threads(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def languages(self) -> list[str]: ...
    @property
    def chunks_ms(self) -> list[int]: ...
    @property
    def offline(self) -> bool: ...
    def warm(self) -> None: ...
    def start(
        self,
        source: Any = None,
        *,
        sample_rate: int | None = None,
        language: str | None = None,
        chunk_ms: int | None = None,
        beam: int = 1,
        nbest: int = 0,
        hotwords: list[tuple[str, float]] = ...,
        lm: _Path | None = None,
        lm_weight: float = 0.3,
        partials: bool = False,
        silence_ms: int | None = None,
        max_ms: int | None = None,
        pause_ms: int | None = None,
        temperature: float | None = None,
        seed: int | None = None,
    ) -> Hearing: ...

@final
class Hearing:
    def next(self) -> _EventRow | None: ...
    def push(self, audio: Any) -> None: ...
    def end_utterance(self) -> None: ...
    def finish(self) -> None: ...
    def cancel(self) -> None: ...
    def seconds(self) -> float | None: ...

@final
class Talker:
    def __init__(
        self,
        model: str,
        *,
        store: _Path | None = None,
        device: str = "auto",
        precision: str = "auto",
        threads: int = 0,
        slots: int | None = None,
    ) -> None: ...
    @property
    def model(self) -> str: ...
    @property
    def sample_rate(self) -> int: ...
    @property
    def frame_size(self) -> int: ...
    def start(
        self,
        *,
        temperature: float | None = None,
        text_temperature: float | None = None,
        top_k: int | None = None,
        text_top_k: int | None = None,
        seed: int = 0,
    ) -> Talking: ...

@final
class Talking:
    def next(self) -> tuple[bytearray | None, str | None] | None: ...
    def push(self, audio: Any) -> None: ...
    def finish(self) -> None: ...
    def cancel(self) -> None: ...
