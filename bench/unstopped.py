"""What is lost of text without stops: speaks texts of 10 to 200 words without punctuation, has an independent recogniser hear them, and
counts the words of each text that are not heard again; beside each, the same words spoken ten at a time, each ten as a text of its own.

    python bench/unstopped.py --voce target/debug/voce --judge moonshine --texts FOLDER --out bench/runs/DATE-MACHINE-unstopped.jsonl
    python bench/unstopped.py --voce OLD/voce --judge whisper:MODEL_FOLDER --texts FOLDER --count 12        # another build, another judge

FOLDER has `*/transcripts.tsv` (file, tab, words), as LibriSpeech's utterances in order: texts go on from a line to the next. Python 3.11,
numpy, and the judge: `moonshine-voice` 0.0.65 (its English model is in the wheel), or `faster-whisper` with a CTranslate2 folder. Long
audio is judged in windows of up to 20 s, cut where it is quietest. Fails where the texts lose over `--margin` points more than the tens.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import random
import re
import subprocess
import sys
import tempfile
import wave

import numpy

LENGTHS = range(10, 201, 10)
TEN = 10
WINDOW = 20.0
ONES = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen "
        "nineteen").split()
TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()
SHORT = {"mr": "mister", "mrs": "missus", "dr": "doctor", "st": "saint", "ok": "okay", "&": "and", "%": "percent"}
DOCTOR = ("cpu", "isa", "cores", "memory_bytes", "gpu")


def number(n):
    if n < 20:
        return [ONES[n]]
    if n < 100:
        return [TENS[n // 10]] + ([ONES[n % 10]] if n % 10 else [])
    if n < 1000:
        return [ONES[n // 100], "hundred"] + (number(n % 100) if n % 100 else [])
    if n < 1_000_000:
        return number(n // 1000) + ["thousand"] + (number(n % 1000) if n % 1000 else [])
    return list(map(lambda d: ONES[int(d)], str(n)))


def words(text):
    """Lower case, without punctuation, figures and short forms read out."""
    text = re.sub(r"(?<=\d),(?=\d)", "", text.lower().replace("’", "'").replace("-", " "))
    out = []
    for word in re.findall(r"\d+|[^\W\d_]+(?:'[^\W\d_]+)*|[&%]", text):
        out += number(int(word)) if word.isdigit() else [SHORT.get(word, word)]
    return out


def align(said, heard):
    """Words of `said` that were left out, and that became others; words that were put in."""
    n, m = len(said), len(heard)
    cost = [[0] * (m + 1) for _ in range(n + 1)]
    for i in range(n + 1):
        cost[i][0] = i
    for j in range(m + 1):
        cost[0][j] = j
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            cost[i][j] = min(cost[i - 1][j - 1] + (said[i - 1] != heard[j - 1]), cost[i - 1][j] + 1, cost[i][j - 1] + 1)
    i, j, left_out, changed, put_in = n, m, 0, 0, 0
    while i or j:
        if i and j and cost[i][j] == cost[i - 1][j - 1] + (said[i - 1] != heard[j - 1]):
            changed += said[i - 1] != heard[j - 1]
            i, j = i - 1, j - 1
        elif i and cost[i][j] == cost[i - 1][j] + 1:
            left_out += 1
            i -= 1
        else:
            put_in += 1
            j -= 1
    return left_out, changed, put_in


def windows(samples, rate):
    """Pieces of up to `WINDOW` seconds, cut where a tenth of a second is quietest."""
    step = rate // 20
    while len(samples) > WINDOW * rate:
        power = (samples[: int(WINDOW * rate) // step * step].reshape(-1, step) ** 2).sum(1)
        pairs = power[:-1] + power[1:]
        first = len(pairs) // 2
        cut = (first + int(numpy.argmin(pairs[first:])) + 1) * step
        yield samples[:cut]
        samples = samples[cut:]
    yield samples


class Moonshine:
    def __init__(self):
        from moonshine_voice import transcriber, utils
        self.name = "moonshine-voice 0.0.65, tiny-en"
        self.model = transcriber.Transcriber(utils.get_model_path("tiny-en"), transcriber.ModelArch.TINY)

    def hear(self, samples, rate):
        told = self.model.transcribe_without_streaming(samples.tolist(), rate)
        return " ".join(line.text for line in told.lines)


class Whisper:
    def __init__(self, folder):
        import faster_whisper
        self.name = f"faster-whisper {faster_whisper.__version__}, {pathlib.Path(folder).name}"
        self.model = faster_whisper.WhisperModel(folder, device="cpu", compute_type="int8", cpu_threads=2)

    def hear(self, samples, rate):
        at = numpy.arange(0, len(samples) * 16000 // rate) * (rate / 16000)
        samples = numpy.interp(at, numpy.arange(len(samples)), samples).astype(numpy.float32)
        told, _ = self.model.transcribe(samples, language="en", beam_size=5, condition_on_previous_text=False)
        return " ".join(part.text for part in told)


class Voice:
    def __init__(self, voce, model, seed, home, extra):
        self.command = [voce, "say", "--model", model, "--seed", str(seed), "--json", *extra]
        self.home, self.rate, self.unended, self.codes = home, 24000, 0, set()

    def say(self, text):
        out = pathlib.Path(self.home) / "said.wav"
        run = subprocess.run([*self.command, "-o", str(out), text], capture_output=True, text=True, env=dict(os.environ, VOCE_DEVICE="cpu"))
        if run.returncode not in (0, 3):
            raise SystemExit(f"{' '.join(self.command)}: {run.stderr}")
        told = json.loads(run.stdout)
        with wave.open(str(out)) as file:
            self.rate = file.getframerate()
            samples = numpy.frombuffer(file.readframes(file.getnframes()), "<i2").astype(numpy.float32) / 32768
        return samples, told


def texts(folder, count, seed):
    """`count` runs of words, of each length in turn, each from the start of an utterance on."""
    lines = []
    for path in sorted(pathlib.Path(folder).glob("*/transcripts.tsv")):
        lines += [line.split("\t")[1].lower().split() for line in path.read_text().splitlines()]
    dice = random.Random(seed)
    for n in range(count):
        length = LENGTHS[n % len(LENGTHS)]
        start = dice.randrange(len(lines) - 60)
        yield [word for line in lines[start : start + 60] for word in line][:length]


def judged(judge, parts, rate, said):
    gap = numpy.zeros(rate // 2, numpy.float32)
    samples = numpy.concatenate([piece for part in parts for piece in (part, gap)])
    heard = " ".join(judge.hear(window, rate) for window in windows(samples, rate))
    left_out, changed, put_in = align(words(" ".join(said)), words(heard))
    return {"left_out": left_out, "changed": changed, "put_in": put_in, "seconds": round(len(samples) / rate, 2), "heard": heard}


def missing(rows, which):
    total = sum(row["words"] for row in rows)
    return 100 * sum(row[which]["left_out"] + row[which]["changed"] for row in rows) / max(1, total)


def left_out(rows, which):
    return 100 * sum(row[which]["left_out"] for row in rows) / max(1, sum(row["words"] for row in rows))


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--voce", required=True)
    parse.add_argument("--model", default="nano-voice")
    parse.add_argument("--judge", default="moonshine", help="moonshine, or whisper:FOLDER")
    parse.add_argument("--texts", required=True, help="a folder with */transcripts.tsv")
    parse.add_argument("--count", type=int, default=3 * len(LENGTHS))
    parse.add_argument("--seed", type=int, default=1, help="of the choice of texts, and of the voice")
    parse.add_argument("--margin", type=float, default=3.0)
    parse.add_argument("--out", help="append JSON lines to this file")
    parse.add_argument("--extra", default="", help="more flags of `voce say`")
    a = parse.parse_args()
    judge = Moonshine() if a.judge == "moonshine" else Whisper(a.judge.partition(":")[2])
    doctor = json.loads(subprocess.run([a.voce, "doctor", "--json"], capture_output=True, text=True, check=True).stdout)
    rows = []
    with tempfile.TemporaryDirectory() as home:
        voice = Voice(a.voce, a.model, a.seed, home, a.extra.split())
        for said in texts(a.texts, a.count, a.seed):
            samples, told = voice.say(" ".join(said))
            row = {"words": len(words(" ".join(said))), "length": len(said), "chunks": told["chunks"], "unended": told["unended_chunks"],
                   "text": " ".join(said), "whole": judged(judge, [samples], voice.rate, said)}
            tens = [voice.say(" ".join(said[at : at + TEN]))[0] for at in range(0, len(said), TEN)]
            row["tens"] = judged(judge, tens, voice.rate, said)
            rows.append(row)
            print(f"{len(rows):3} {row['length']:4} words, {row['chunks']:2} passages, {row['unended']} unended: missing "
                  f"{missing([row], 'whole'):5.1f} %, ten at a time {missing([row], 'tens'):5.1f} %", file=sys.stderr)
    print(f"{'words':>6} {'texts':>5} {'missing %':>10} {'tens %':>7} {'left out %':>11} {'tens %':>7}")
    groups = [(f"{low + 1}-{low + 50}", [r for r in rows if low < r["length"] <= low + 50]) for low in range(0, 200, 50)] + [("all", rows)]
    for name, group in groups:
        if group:
            print(f"{name:>6} {len(group):5} {missing(group, 'whole'):10.1f} {missing(group, 'tens'):7.1f} "
                  f"{left_out(group, 'whole'):11.1f} {left_out(group, 'tens'):7.1f}")
    more = missing(rows, "whole") - missing(rows, "tens")
    head = {"what": "unstopped", "date": str(datetime.date.today()), "machine": platform.machine(), "judge": judge.name,
            "doctor": {k: doctor[k] for k in DOCTOR if k in doctor},
            "command": " ".join(["bench/unstopped.py", *(re.sub(r"/\S*/", "", word) for word in sys.argv[1:])]),
            "model": a.model, "seed": a.seed, "texts": len(rows), "words": sum(r["words"] for r in rows),
            "unended": sum(r["unended"] for r in rows), "missing": round(missing(rows, "whole"), 2),
            "missing_tens": round(missing(rows, "tens"), 2), "left_out": round(left_out(rows, "whole"), 2),
            "left_out_tens": round(left_out(rows, "tens"), 2)}
    if a.out:
        with open(a.out, "a") as file:
            file.writelines(json.dumps(line) + "\n" for line in [head, *rows])
    print(f"{more:+.1f} points against the same words ten at a time")
    return more > a.margin


if __name__ == "__main__":
    sys.exit(main())
