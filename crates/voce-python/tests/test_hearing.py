"""Hearing: files, bytes, arrays of many kinds, live audio, cancelling."""

from __future__ import annotations

import array
import threading
import time

import numpy
import pytest
import voce


#: Seconds that a slot may take to become free.
PATIENCE = 120


def patiently(start):
    """What `start` gives once a slot is free: streams that have ended leave theirs at the model's next step."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return start()
        except voce.VoceError as error:
            if error.code != "busy" or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def words(text):
    return "".join(c for c in text.lower() if c.isalpha() or c == " ").split()


def alike(heard, expected):
    """Most of the words are right: the small models are no better."""
    right = sum(word in words(heard) for word in words(expected))
    return right >= len(words(expected)) - 2


def test_a_file_gives_a_transcript(listener, wav):
    heard = listener.hear(wav)
    assert alike(heard.text, "The weather is fine today"), heard
    assert str(heard) == heard.text and 0.5 < heard.seconds < 10
    assert [w.text for w in heard.words] == [w.text for s in heard.segments for w in s.words]
    starts = [w.start for w in heard.words]
    assert starts == sorted(starts) and heard.words[-1].end <= heard.seconds + 0.5
    assert all(0 <= w.confidence <= 1 for w in heard.words)


def test_path_bytes_and_file_are_the_same(listener, wav):
    text = listener.hear(str(wav)).text
    assert listener.hear(wav).text == text
    assert listener.hear(wav.read_bytes()).text == text


def test_arrays_of_every_kind_are_heard(listener, spoken, speaker):
    rate = speaker.sample_rate
    text = listener.hear(spoken, rate).text
    assert alike(text, "The weather is fine today"), text
    sixteen = (numpy.clip(spoken, -1, 1) * 32767).astype(numpy.int16)
    stereo = numpy.stack([spoken, spoken], axis=1)
    assert listener.hear(spoken.astype(numpy.float64), rate).text == text
    assert listener.hear(array.array("f", spoken), rate).text == text
    assert listener.hear(memoryview(spoken), rate).text == text
    assert listener.hear(stereo, rate).text == text
    assert listener.hear(spoken[::-1][::-1], rate).text == text
    assert alike(listener.hear(sixteen, rate).text, text)
    assert alike(listener.hear(list(map(float, spoken)), rate).text, text)


def test_what_is_no_audio_is_refused(listener, tmp_path):
    with pytest.raises(TypeError):
        listener.hear(object())
    with pytest.raises(TypeError):
        listener.hear(numpy.zeros(10, dtype=numpy.complex64))
    with pytest.raises(ValueError, match="channels"):
        listener.hear(numpy.zeros((2, 16_000), dtype=numpy.float32))
    with pytest.raises(voce.VoceError) as caught:
        listener.hear(numpy.full(16_000, numpy.nan, dtype=numpy.float32))
    assert caught.value.code == "bad_request"
    for rate in (0, 3_999, 192_001):
        with pytest.raises(voce.VoceError) as caught:
            listener.hear(numpy.zeros(100, dtype=numpy.float32), rate)
        assert caught.value.code == "bad_request"
    noise = tmp_path / "noise.wav"
    noise.write_bytes(b"this is no audio")
    for source in (noise, noise.read_bytes(), tmp_path / "missing.wav"):
        with pytest.raises(voce.VoceError):
            listener.hear(source)


def test_silence_is_no_text(listener):
    assert listener.hear(numpy.zeros(16_000, dtype=numpy.float32)).text == ""
    assert listener.hear(numpy.zeros(0, dtype=numpy.float32)).text == ""


def test_live_audio_gives_events(listener, spoken, speaker):
    rate = speaker.sample_rate
    with listener.listen(sample_rate=rate, partials=True) as live:

        def talk():
            for start in range(0, len(spoken), rate // 10):
                live.push(spoken[start : start + rate // 10])
            live.end_utterance()
            live.push(spoken)
            live.finish()

        talking = threading.Thread(target=talk)
        talking.start()
        events = list(live)
        talking.join()
    kinds = {event.kind for event in events}
    assert {"word", "final", "endpoint"} <= kinds <= {"word", "final", "endpoint", "partial"}
    finals = [event for event in events if event.kind == "final" and event.text]
    assert len(finals) == 2 and all(alike(f.text, "The weather is fine today") for f in finals), finals
    assert finals[1].start > finals[0].end - 0.1 and finals[0].words
    assert "forced" in {event.reason for event in events if event.kind == "endpoint"}


def test_audio_of_an_iterable_and_what_it_raises(listener, spoken, speaker):
    pieces = numpy.array_split(spoken, 7)
    finals = [e.text for e in listener.listen(pieces, speaker.sample_rate) if e.kind == "final"]
    assert alike(" ".join(finals), "The weather is fine today")

    def broken():
        yield spoken
        raise RuntimeError("the microphone broke")

    with pytest.raises(RuntimeError, match="the microphone broke"):
        list(listener.listen(broken(), speaker.sample_rate))


def test_closing_ends_a_stream_and_frees_its_slot(listener):
    for _ in range(2 * listener.slots):
        live = patiently(listener.listen)
        live.push(numpy.zeros(1600, dtype=numpy.float32))
        live.close()
        assert list(live) == []
        with pytest.raises(voce.VoceError) as caught:
            live.push(numpy.zeros(1600, dtype=numpy.float32))
        assert caught.value.code == "ended"


def test_all_slots_taken_is_busy(listener):
    streams = [patiently(listener.listen) for _ in range(listener.slots)]
    with pytest.raises(voce.VoceError) as caught:
        listener.listen()
    assert caught.value.code == "busy"
    for stream in streams:
        stream.close()
    patiently(listener.listen).close()


def test_options_are_checked(listener, wav):
    for wrong in ({"chunk_ms": 81}, {"language": "klingon"}, {"silence_ms": 79}):
        with pytest.raises(voce.VoceError) as caught:
            listener.hear(wav, **wrong)
        assert caught.value.code == "bad_request", wrong
    assert listener.hear(wav, chunk_ms=1120, beam=2, nbest=2, hotwords=["weather", ("fine", 1.5)]).segments[0].readings
