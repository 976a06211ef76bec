"""Samples as arrays. numpy is imported when the first array is made, and not before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy


def to_array(samples: bytearray) -> numpy.ndarray:
    """Bytes of float32 as an array that owns them."""
    import numpy

    return numpy.frombuffer(samples, dtype=numpy.float32)


def join(chunks: list[numpy.ndarray]) -> numpy.ndarray:
    """All chunks as one array."""
    import numpy

    return numpy.concatenate(chunks) if chunks else numpy.empty(0, dtype=numpy.float32)


def from_any(audio: Any) -> Any:
    """What has a buffer, as it is; what can only become an array, such as a tensor, as one."""
    try:
        memoryview(audio)
    except TypeError:
        pass
    else:
        return audio
    if isinstance(audio, (list, tuple)) or hasattr(audio, "__array__"):
        import numpy

        array = numpy.asarray(audio)
        return array.astype(numpy.float32) if array.dtype == numpy.float16 or isinstance(audio, (list, tuple)) else array
    return audio
