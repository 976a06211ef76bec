"""Speaking: arrays, chunks, text that arrives, cancelling, threads, Ctrl-C."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy
import pytest
import voce

TEXT = "The weather is fine today."


def test_say_gives_an_array(speaker, spoken):
    assert spoken.dtype == numpy.float32 and spoken.ndim == 1 and spoken.flags.writeable
    assert 0.5 < len(spoken) / speaker.sample_rate < 10
    assert 0.01 < numpy.abs(spoken).max() <= 1.5


def test_the_same_seed_gives_the_same_audio_and_chunks_are_its_pieces(speaker, spoken):
    stream = speaker.stream(TEXT, seed=1)
    chunks = list(stream)
    assert len(chunks) > 1 and stream.sample_rate == speaker.sample_rate
    numpy.testing.assert_array_equal(numpy.concatenate(chunks), spoken)
    assert not numpy.array_equal(speaker.say(TEXT, seed=2), spoken)


def test_text_that_arrives(speaker):
    with speaker.live(seed=1) as live:
        for piece in ("The weather is fi", "ne today. ", "Tomorrow it rains."):
            live.push(piece)
        live.finish()
        live.finish()
        audio = live.read()
        assert len(audio) > speaker.sample_rate
        with pytest.raises(voce.VoceError) as caught:
            live.push("too late")
        assert caught.value.code == "ended"


def test_text_of_an_iterable_and_what_it_raises(speaker):
    def words():
        yield "The weather is fine today. "
        yield "Tomorrow it rains."

    assert len(speaker.stream(words()).read()) > speaker.sample_rate

    def broken():
        yield "The weather is fine today. "
        raise RuntimeError("the writer broke")

    with pytest.raises(RuntimeError, match="the writer broke"):
        speaker.stream(broken()).read()


def test_nothing_to_say_is_an_error(speaker):
    with pytest.raises(voce.VoceError) as caught:
        speaker.say("   ")
    assert caught.value.code == "bad_text"
    live = speaker.live()
    live.finish()
    with pytest.raises(voce.VoceError) as caught:
        live.read()
    assert caught.value.code == "bad_text"


def test_requests_are_checked(speaker):
    for wrong in ({"steps": 0}, {"temperature": 99.0}, {"top_k": 5}):
        with pytest.raises(voce.VoceError) as caught:
            speaker.say(TEXT, **wrong)
        assert caught.value.code == "bad_request", wrong
    with pytest.raises(voce.VoceError) as caught:
        speaker.say(TEXT, voice="nobody-of-this-name")
    assert caught.value.code == "unknown_voice"
    with pytest.raises(TypeError):
        speaker.say(TEXT, no_such_option=1)


def test_a_voice_by_name(speaker, spoken):
    assert speaker.default_voice in speaker.voices
    numpy.testing.assert_array_equal(speaker.say(TEXT, speaker.default_voice, seed=1), spoken)


def test_closing_ends_a_stream_and_frees_its_slot(speaker):
    for _ in range(2 * speaker.slots):
        stream = speaker.stream("word " * 500)
        assert len(next(stream)) > 0
        stream.close()
        assert list(stream) == []


def test_another_thread_may_close_while_one_reads(speaker):
    live = speaker.live()
    reading = threading.Event()

    def close():
        reading.wait()
        live.close()

    other = threading.Thread(target=close)
    other.start()
    reading.set()
    # No text comes: only closing ends this.
    assert list(live) == []
    other.join()


def test_other_threads_go_on_while_one_waits(speaker):
    """A stream without text waits for ever: this thread could not push if reading held the interpreter's lock."""
    live = speaker.live(seed=1)
    heard = []
    reader = threading.Thread(target=lambda: heard.extend(live))
    reader.start()
    live.push(TEXT)
    live.finish()
    reader.join()
    assert sum(map(len, heard)) > 0


def test_several_at_once_give_what_each_gives_alone(speaker, spoken):
    results = {}
    threads = [
        threading.Thread(target=lambda seed=seed: results.update({seed: speaker.say(TEXT, seed=seed)})) for seed in (1, 2, 3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numpy.testing.assert_array_equal(results[1], spoken)
    assert len(results) == 3


INTERRUPTED = """
import os, signal, threading, voce
# A shell that starts the tests in the background has it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A second slot: the signal may come before the first is waited in, and then the stream keeps it.
speaker = voce.Speaker("nano-voice", device="cpu", threads=1, slots=2)
live = speaker.live()
ready = threading.Event()

def interrupt():
    ready.wait()
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    ready.set()
    # Without text no audio ever comes: only the signal ends this.
    next(live)
except KeyboardInterrupt:
    print("interrupted", len(speaker.say("Go on.", max_frames=5)) > 0)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
def test_ctrl_c_stops_a_call_and_the_speaker_goes_on():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["interrupted", "True"], done.stderr
