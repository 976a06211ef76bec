"""Builds the lists of lines to be spoken for the ear, and its tokeniser.

    python make_texts.py --books DIR --common-voice DIR --ljspeech metadata.csv --lexicon lexicon_us_gold.json.gz \
        --speech speech/train/transcripts.tsv --unseen speech/dev/transcripts.tsv voice-test.txt --out texts

Writes long.txt (one to four sentences of a book in a row, like an audio book's cuts, and Common Voice
sentences), its phonemes (long.ph), short.txt (single sentences, numbers, word lists), nano.txt (lines of short.txt, half
of them joined in twos and threes) and tokenizer.model (511 BPE pieces). A line that shares six words in a row with a line of `--unseen` is left out.
"""

import argparse
import gzip
import json
import random
import re
import sys
from pathlib import Path

import sentencepiece

from text import plain

END = re.compile(r"(?<=[.!?])[\"”’')]*\s+(?=[\"“‘'(]?[A-Z])")
TITLE = re.compile(r"\b(Mr|Mrs|Ms|Dr|St|Prof|Rev|Gen|Col|Capt|Lt|Sgt|vs|etc|No|Vol|Messrs|[A-Z])\.$")
ODD = re.compile(r"[A-Z]{2}|\b(?![IAO]\b)[A-Z]\.|\b(St|Prof|Rev|Gen|Col|Capt|Lt|Sgt|vs|etc|No|Vol|Ms|Esq|Co|Jr|Sr)\.|\b[XVIL]{2,}\b|_")
ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()


def in_words(n: int) -> str:
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10] + (f" {ONES[n % 10]}" if n % 10 else "")
    if n < 1000:
        return f"{ONES[n // 100]} hundred" + (f" {in_words(n % 100)}" if n % 100 else "")
    return f"{in_words(n // 1000)} thousand" + (f" {in_words(n % 1000)}" if n % 1000 else "")


def year(n: int) -> str:
    return f"{in_words(n // 100)} {'oh ' + ONES[n % 100] if 0 < n % 100 < 10 else in_words(n % 100) if n % 100 else 'hundred'}"


def numbers(rng: random.Random, count: int) -> list[str]:
    frames = ["The answer is {}.", "There are {} of them.", "I counted {} people.", "Chapter {}.", "Take bus number {}.", "{}.", "{}.",
              "Turn to page {}, please.", "We need {} more days.", "It costs {} dollars.", "He lives at {} Oak Street.", "Between {} and {}.",
              "The room number is {}.", "Is it {} or {}?", "About {} percent of the work is done.", "Call me in {} minutes.", "Set a timer for {} minutes."]

    def one() -> str:
        kind = rng.random()
        if kind < 0.3:
            return " ".join(rng.choice(ONES[:10]) for _ in range(rng.randint(2, 8)))
        if kind < 0.6:
            return in_words(rng.randint(0, 99))
        if kind < 0.8:
            return in_words(rng.randint(100, 99999))
        return year(rng.randint(1700, 2030))

    return [re.sub(r"\{\}", lambda _: one(), rng.choice(frames)).capitalize() for _ in range(count)]


def sentences(paragraph: str) -> list[str]:
    out, held = [], ""
    for piece in END.split(paragraph):
        held = f"{held} {piece}".strip()
        if not TITLE.search(held):
            out.append(held)
            held = ""
    return out + ([held] if held else [])


def paragraphs(path: Path) -> list[list[str]]:
    text = path.read_text(encoding="utf-8", errors="ignore").replace("\r", "")
    body = re.split(r"\*\*\* ?START OF.*?\*\*\*", text, maxsplit=1)[-1]
    body = re.split(r"\*\*\* ?END OF", body, maxsplit=1)[0]
    out = []
    for paragraph in re.split(r"\n\s*\n", body):
        paragraph = " ".join(paragraph.split())
        if len(paragraph) < 20 or re.search(r"[\[\]{}|\d]|[A-Z]{3}", paragraph):
            continue
        out.append(sentences(paragraph.replace("_", "")))
    return out


def runs(rng: random.Random, book: list[list[str]]) -> list[str]:
    """Stretches of whole sentences of a book, of a drawn length of 4 to 42 words."""
    stream = [s for paragraph in book for s in paragraph]
    out, held, want = [], [], 0
    for s in stream:
        if not held:
            want = rng.choice((8, 14, 20, 26, 32, 36))
        n = len(s.split())
        have = sum(len(x.split()) for x in held)
        if have + n > 44:
            if held:
                out.append(" ".join(held))
            held = [s] if n <= 44 else []
        else:
            held.append(s)
        if held and sum(len(x.split()) for x in held) >= want:
            out.append(" ".join(held))
            held = []
    return out


def joined(rng: random.Random, lines: list[str]) -> list[str]:
    """The lines in another order, many of them two or three in a row, up to 36 words."""
    lines, out = rng.sample(lines, len(lines)), []
    while lines:
        row = [lines.pop()]
        for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
            if lines and len(" ".join(row + lines[-1:]).split()) <= 36 and row[-1][-1] in ".!?":
                row.append(lines.pop())
        out.append(" ".join(row))
    return out


def grams(text: str, n: int = 6) -> set[str]:
    words = text.split()
    return {" ".join(words[i: i + n]) for i in range(len(words) - n + 1)} or {text}


def main() -> None:
    p = argparse.ArgumentParser()
    for name in ("books", "common-voice", "ljspeech", "lexicon", "speech", "out"):
        p.add_argument("--" + name, type=Path, required=True)
    p.add_argument("--unseen", type=Path, nargs="+", required=True)
    p.add_argument("--hibari", help="folder that holds the hibari package, for phonemes")
    p.add_argument("--long", type=int, default=70000)
    p.add_argument("--short", type=int, default=90000)
    a = p.parse_args()
    rng = random.Random(16)
    a.out.mkdir(parents=True, exist_ok=True)
    unseen: set[str] = set()
    for path in a.unseen:
        for line in path.read_text(encoding="utf-8").splitlines():
            unseen |= grams(plain(line.split("\t")[-1]))

    def good(line: str, low: int, high: int) -> bool:
        label = plain(line)
        return low <= len(label.split()) <= high and len(line) <= 270 and not ODD.search(line) and not grams(label) & unseen

    books = [paragraphs(f) for f in sorted(a.books.glob("*.txt"))]
    common = sorted({s.strip() for f in sorted(a.common_voice.glob("*.txt")) for s in f.read_text(encoding="utf-8").splitlines()})
    common = [s for s in common if good(s, 1, 30)]
    lj = [line.rsplit("|", 1)[-1].strip() for line in a.ljspeech.read_text(encoding="utf-8").splitlines()]
    lj = [s for s in lj if good(s, 3, 44)]
    rng.shuffle(common)
    rng.shuffle(lj)
    long = [s for book in books for s in runs(rng, book)]
    long = [s for s in dict.fromkeys(long) if good(s, 2, 44)]
    rng.shuffle(long)
    print("runs of books", len(long), "common", len(common), "lj", len(lj))
    singles = [s for book in books for paragraph in book for s in paragraph]
    singles = [s for s in dict.fromkeys(singles) if good(s, 1, 26)]
    rng.shuffle(singles)
    words = sorted(w for w in json.load(gzip.open(a.lexicon)) if re.fullmatch(r"[A-Za-z][a-z]{2,13}", w))
    rng.shuffle(words)
    lists = [" ".join(words[i: i + 4]).capitalize() + "." for i in range(0, min(len(words), 48000) - 4, 4)]
    count = numbers(rng, 6000)
    train = long[: int(a.long * 0.72)] + common[: int(a.long * 0.16)] + lj[: int(a.long * 0.08)] + count[:1500] + lists[:1500]
    rng.shuffle(train)
    short = common[int(a.long * 0.1):][: int(a.short * 0.45)] + singles[: int(a.short * 0.35)] + lj + count[1500:] + lists[1500:]
    rng.shuffle(short)
    short = short[: a.short]
    for name, lines in (("long", train), ("short", short), ("nano", joined(random.Random(26), short))):
        (a.out / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(name, len(lines), "words", sum(len(s.split()) for s in lines), flush=True)

    speech = [plain(line.split("\t")[-1]) for line in a.speech.read_text().splitlines()]
    corpus = a.out / "corpus.txt"
    corpus.write_text("\n".join([plain(s) for s in train + short[:40000]] + speech * 3) + "\n", encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(a.out / "tokenizer"), model_type="bpe", vocab_size=511, character_coverage=1.0,
        normalization_rule_name="identity", bos_id=-1, eos_id=-1, pad_id=-1, unk_id=0, num_threads=1, minloglevel=2)
    corpus.unlink()
    if a.hibari:
        sys.path.insert(0, a.hibari)
        from hibari.g2p import G2P
        g2p = G2P(british=False)
        with open(a.out / "long.ph", "w", encoding="utf-8") as out:
            for line in train:
                try:
                    phonemes = g2p(line).replace("\n", " ")
                except Exception:
                    phonemes = ""
                out.write(phonemes + "\n")
    sp = sentencepiece.SentencePieceProcessor(model_file=str(a.out / "tokenizer.model"))
    print("pieces", sp.get_piece_size(), "a word", sum(len(x) for x in sp.encode(speech)) / sum(len(s.split()) for s in speech))


if __name__ == "__main__":
    main()
