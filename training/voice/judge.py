"""Judges a model: speaks sentences with the original package, then Whisper and DNSMOS listen.

    python judge.py --model nano-voice --sentences texts/test.txt --whisper whisper-base [--count 20] [--wavs DIR]

Prints the word error rate (lower case, no punctuation, numbers spelt out on both sides), DNSMOS overall (P.835 and
P.808), seconds of speech, and how many sentences hit the length limit. `--teacher` judges the
teacher on the same sentences instead.
"""

import argparse
import json
import logging
import os
import re
import time
from pathlib import Path

import numpy as np
import scipy.io.wavfile
import scipy.signal

SPELT = {"mr": "mister", "mrs": "missus", "dr": "doctor", "ok": "okay", "st": "saint", "%": "percent"}
UNITS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen""".split()
TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()
ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth", "twelve": "twelfth"}


def spell(n: int) -> str:
    """A whole number below a million in words."""
    if n < 20:
        return UNITS[n]
    if n < 100:
        return TENS[n // 10] + (" " + UNITS[n % 10] if n % 10 else "")
    if n < 1000:
        return f"{UNITS[n // 100]} hundred" + (" " + spell(n % 100) if n % 100 else "")
    return f"{spell(n // 1000)} thousand" + (" " + spell(n % 1000) if n % 1000 else "")


def spoken_number(match: re.Match) -> str:
    digits, ordinal = match[1].replace(",", ""), match[2]
    if len(digits) > 6:
        return " ".join(UNITS[int(d)] for d in digits)
    n = int(digits)
    if 1100 <= n < 2000 and "," not in match[1]:  # years
        said = f"{spell(n // 100)} " + ("hundred" if n % 100 == 0 else f"{'oh ' if n % 100 < 10 else ''}{spell(n % 100)}")
    else:
        said = spell(n)
    if ordinal:
        head, _, last = said.rpartition(" ")
        last = ORDINALS.get(last, last[:-1] + "ieth" if last.endswith("y") else last + "th")
        said = f"{head} {last}".strip()
    return f" {said} "


def words(text: str) -> list[str]:
    """Lower case, no punctuation, numbers spelt out."""
    text = text.lower().replace("’", "'").replace("‘", "'").replace("-", " ")
    text = re.sub(r"\$(\d[\d,]*)", r"\1 dollars", text)
    text = re.sub(r"(\d(?:[\d]|,(?=\d{3}))*)(st|nd|rd|th)?\b", spoken_number, text.replace("%", " percent "))
    text = re.sub(r"[^a-z' ]", " ", text)
    return [SPELT.get(w.strip("'"), w.strip("'")) for w in text.split() if w.strip("'")]


def errors(reference: list[str], heard: list[str]) -> int:
    row = list(range(len(heard) + 1))
    for i, r in enumerate(reference, 1):
        previous, row[0] = row[0], i
        for j, h in enumerate(heard, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (r != h))
    return row[-1]


def speaker(a):
    if a.teacher:
        from hibari import Hibari

        teacher = Hibari()
        return lambda text: (teacher(text, seed=0) * 1.5, False)
    import torch
    from pocket_tts import TTSModel

    sentences = {"limit": False}

    class Watch(logging.Handler):
        def emit(self, record):
            sentences["limit"] |= "without EOS" in record.getMessage()

    logging.getLogger("pocket_tts").addHandler(Watch())
    here = os.getcwd()
    os.chdir(a.model)
    model = TTSModel.load_model(config="config.yaml", temp=a.temperature, eos_threshold=a.eos)
    voice = model.get_state_for_audio_prompt("voice.safetensors")
    os.chdir(here)

    def say(text: str):
        sentences["limit"] = False
        torch.manual_seed(a.seed)
        return model.generate_audio(voice, text).numpy(), sentences["limit"]

    return say


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--model", type=Path)
    p.add_argument("--teacher", action="store_true")
    p.add_argument("--sentences", type=Path, required=True)
    p.add_argument("--whisper", type=Path, required=True)
    p.add_argument("--count", type=int, default=100)
    p.add_argument("--temperature", type=float)
    p.add_argument("--eos", type=float)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--wavs", type=Path)
    p.add_argument("--heard", type=Path, help="append what was said and heard to this file")
    p.add_argument("--no-dnsmos", action="store_true")
    a = p.parse_args()
    from faster_whisper import WhisperModel

    whisper = WhisperModel(str(a.whisper), device="cpu", compute_type="int8", cpu_threads=1)
    if not a.no_dnsmos:
        from speechmos import dnsmos
    lines = [s for s in a.sentences.read_text(encoding="utf-8").splitlines() if s.strip()][: a.count]
    say = speaker(a)
    wrong = total = limits = 0
    seconds = spent = 0.0
    scores, worst = [], []
    for number, line in enumerate(lines):
        began = time.time()
        wave, limit = say(line)
        spent += time.time() - began
        limits += limit
        seconds += len(wave) / 24000
        low = scipy.signal.resample_poly(np.concatenate([wave, np.zeros(4800, np.float32)]), 2, 3).astype(np.float32)
        heard = " ".join(s.text for s in whisper.transcribe(low, language="en", beam_size=5, condition_on_previous_text=False)[0])
        reference = words(line)
        missed = errors(reference, words(heard))
        wrong, total = wrong + missed, total + len(reference)
        if not a.no_dnsmos:
            scores.append(dnsmos.run(np.clip(low, -1, 1), 16000))
        worst.append((missed, line, heard.strip()))
        if a.heard:
            with a.heard.open("a", encoding="utf-8") as out:
                out.write(f"{line}\t{heard.strip()}\n")
        if a.wavs:
            a.wavs.mkdir(parents=True, exist_ok=True)
            scipy.io.wavfile.write(a.wavs / f"{number:03d}.wav", 24000, (np.clip(wave, -1, 1) * 32767).astype(np.int16))
    for missed, line, heard in sorted(worst, reverse=True)[:25]:
        if missed:
            print(f"{missed}  {line}\n   {heard}")
    result = dict(sentences=len(lines), words=total, wer=round(100 * wrong / max(1, total), 2), seconds=round(seconds, 1), at_limit=limits,
                  seconds_to_speak=round(spent, 1))
    if scores:
        result |= {k: round(float(np.mean([s[k] for s in scores])), 3) for k in ("ovrl_mos", "sig_mos", "bak_mos", "p808_mos")}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
