"""What every peer runner shares: a text of a given length, the timed loop, the one line of JSON.

Only the standard library is needed here.
"""

import json
import os
import resource
import statistics
import time

SAMPLE_RATE = 24000
WORDS = "the quick brown fox jumps over lazy dog and small speech engine runs fast enough for you me".split()


def text_of(tokens: int, encode) -> str:
    """A sentence that `encode` turns into exactly `tokens` ids; letters fill up what whole words leave."""
    for words in range(1, 4 * tokens):
        text = " ".join((WORDS * (words // len(WORDS) + 1))[:words]).capitalize()
        for letters in range(0, 8):
            sentence = text + (" " + "x" * letters if letters else "") + "."
            if len(encode(sentence)) == tokens:
                return sentence
    raise SystemExit(f"no text of {tokens} tokens with this tokeniser")


def run(engine: str, stream, repeats: int, threads: int, **more):
    """Time `stream()` (an iterator of chunk lengths in samples), one warm-up first, and print the result."""
    walls, firsts, samples = [], [], 0
    for i in range(repeats + 1):
        start = time.perf_counter()
        first, samples = None, 0
        for n in stream():
            first = first or time.perf_counter() - start
            samples += n
        if i:
            walls.append(time.perf_counter() - start)
            firsts.append(first)
    audio = samples / SAMPLE_RATE
    frames = round(audio * 12.5)
    print(
        json.dumps(
            {
                "engine": engine,
                "rtf_p50": round(statistics.median(walls) / audio, 4),
                "rtf_best": round(min(walls) / audio, 4),
                "frame_ms": round(statistics.median(walls) / frames * 1e3, 3),
                "first_audio_ms": round(statistics.median(firsts) * 1e3, 2),
                "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
                "frames": frames,
                "threads": threads,
                "repeats": repeats,
                "load_1m": round(os.getloadavg()[0], 2),
                **more,
            }
        ),
        flush=True,
    )
