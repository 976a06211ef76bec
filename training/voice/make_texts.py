"""Builds the list of sentences to be spoken by the teacher.

    python make_texts.py --common-voice DIR --books DIR --ljspeech metadata.csv \
        --lexicon lexicon_us_gold.json.gz --out texts

Writes train.txt, dev.txt and test.txt (one raw sentence a line, shuffled with a fixed seed) and
tokenizer.model (SentencePiece unigram over the train sentences in their model form).
`--second DIR` writes a further train.txt there (new book sentences, new word lists and numbers, a
part of the Common Voice sentences again) with the same tokenizer, for a last stretch of training; `--third DIR` one
more, with the LJ Speech sentences again, still other book sentences, and every word of the lexicon in lists.
"""

import argparse
import gzip
import json
import random
import re
import shutil
from pathlib import Path

import sentencepiece

from text import model_text, usable

END = re.compile(r"(?<=[.!?])[\"”’')]*\s+(?=[\"“‘'(]?[A-Z])")
TITLE = re.compile(r"\b(Mr|Mrs|Ms|Dr|St|Prof|Rev|Gen|Col|Capt|Lt|Sgt|vs|etc|No|Vol|[A-Z])\.$")
GREETINGS = """Hello. Hello there. Hi! Good morning. Good evening. Good night. Goodbye. See you later. Thank you.
Thank you very much. You're welcome. Yes. No. Yes, please. No, thanks. Maybe. Okay. Of course. Certainly. Sorry.
I'm sorry. Excuse me. How are you? How are you today? I'm fine. What time is it? Where are you? Who is it? Why not?
Really? Are you sure? Never mind. Wait a moment. One moment, please. Come in. Stop! Help! Let's go. Well done. Great!
Welcome. Welcome back. Ready. Done. Is anybody there? Testing, one, two, three. Hello, world. How can I help you?""".split("\n")


def sentences(paragraph: str) -> list[str]:
    out, held = [], ""
    for piece in END.split(paragraph):
        held = f"{held} {piece}".strip()
        if not TITLE.search(held):
            out.append(held)
            held = ""
    return out + ([held] if held else [])


def from_book(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8", errors="ignore").replace("\r", "")
    body = re.split(r"\*\*\* ?START OF.*?\*\*\*", text, maxsplit=1)[-1]
    body = re.split(r"\*\*\* ?END OF", body, maxsplit=1)[0]
    found = []
    for paragraph in re.split(r"\n\s*\n", body):
        paragraph = " ".join(paragraph.split())
        if len(paragraph) < 20 or re.search(r"[\[\]_{}|\d]|[A-Z]{3}", paragraph):
            continue
        found += [s for s in sentences(paragraph) if s[-1] in ".!?\"”’'"]
    return found


def keep(sentence: str, low: int, high: int) -> bool:
    words = sentence.split()
    return low <= len(words) <= high and len(sentence) <= 230 and usable(model_text(sentence))


def numbers(rng: random.Random, count: int) -> list[str]:
    frames = [
        "The answer is {}.", "There are {} of them.", "I counted {} people.", "It happened in {}.", "{} is enough.",
        "Chapter {}.", "Take bus number {}.", "Turn to page {}, please.", "She was born in {}.", "We need {} more days.",
        "It costs {} dollars.", "He lives at {} Oak Street.", "Between {} and {}.", "The room number is {}.",
        "Is it {} or {}?", "About {} percent of the work is done.", "{}.", "Call me in {} minutes.",
    ]

    def number() -> str:
        kind = rng.random()
        if kind < 0.35:
            return str(rng.randint(0, 99))
        if kind < 0.6:
            return str(rng.randint(100, 999))
        if kind < 0.8:
            return str(rng.randint(1700, 2030))
        if kind < 0.9:
            return f"{rng.randint(1, 99)},{rng.randint(0, 999):03d}"
        return f"{rng.randint(0, 99)}.{rng.randint(1, 99)}"

    return [re.sub(r"\{\}", lambda _: number(), rng.choice(frames)) for _ in range(count)]


def word_lists(rng: random.Random, words: list[str], most: int) -> tuple[list[str], list[str]]:
    """Lists of three to six words, and the words left over."""
    lists = []
    while words and len(lists) < most:
        take = rng.randint(3, 6)
        lists.append(", ".join(words[:take]) + ".")
        words = words[take:]
    return lists, words


def pairs_of(sentences: list[str], most: int) -> list[str]:
    short = [s for s in sentences if 2 <= len(s.split()) <= 8 and s[-1] in ".!?"]
    return [f"{x} {y}" for x, y in zip(short[:most], short[most: 2 * most])]


def second_list(out: Path, first: list[str], unseen: set[str], common: list[str], books: list[list[str]], words: list[str]) -> list[str]:
    rng, old, new = random.Random(66), set(first), []
    for book in books:
        book = [s for s in dict.fromkeys(book) if s not in old and keep(s, 2, 30)]
        rng.shuffle(book)
        new += book[:2500]
    rng.shuffle(new)
    common, words = sorted(common), sorted(words)
    rng.shuffle(common)
    rng.shuffle(words)
    lists, rest = word_lists(rng, words, 9000)
    singles = [w.capitalize() + rng.choice("...!?") for w in rest[:2500]]
    new = common[:26000] + new[:40000] + lists + singles + pairs_of(common, 4000) + numbers(rng, 4500)
    new = [s for s in new if usable(model_text(s)) and model_text(s) not in unseen]
    rng.shuffle(new)
    out.mkdir(parents=True, exist_ok=True)
    (out / "train.txt").write_text("\n".join(new) + "\n", encoding="utf-8")
    print("second list", len(new))
    return new


def third_list(out: Path, before: list[str], unseen: set[str], common: list[str], lj: list[str], books: list[list[str]], words: list[str]) -> None:
    rng, old, new = random.Random(666), set(before), []
    for book in books:
        book = [s for s in dict.fromkeys(book) if s not in old and keep(s, 4, 30)]
        rng.shuffle(book)
        new += book[:3000]
    rng.shuffle(new)
    common, words = sorted(common), sorted(words)
    rng.shuffle(common)
    rng.shuffle(words)
    lists, _ = word_lists(rng, words, 20000)
    new = sorted(lj) + common[:32000] + new[:34000] + lists + pairs_of(common, 2500) + numbers(rng, 3500)
    new = [s for s in new if usable(model_text(s)) and model_text(s) not in unseen]
    rng.shuffle(new)
    out.mkdir(parents=True, exist_ok=True)
    (out / "train.txt").write_text("\n".join(new) + "\n", encoding="utf-8")
    print("third list", len(new))


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--common-voice", type=Path, required=True)
    arguments.add_argument("--books", type=Path, required=True)
    arguments.add_argument("--ljspeech", type=Path, required=True)
    arguments.add_argument("--lexicon", type=Path, required=True)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--second", type=Path)
    arguments.add_argument("--third", type=Path, help="with --second")
    arguments.add_argument("--book-sentences", type=int, default=60000)
    arguments.add_argument("--vocabulary", type=int, default=2000)
    a = arguments.parse_args()
    rng = random.Random(6)
    a.out.mkdir(parents=True, exist_ok=True)

    common = {s.strip() for f in sorted(a.common_voice.glob("*.txt")) for s in f.read_text(encoding="utf-8").splitlines()}
    common = sorted(s for s in common if keep(s, 1, 32))
    lj = [line.rsplit("|", 1)[-1].strip() for line in a.ljspeech.read_text(encoding="utf-8").splitlines()]
    lj = sorted({s for s in lj if keep(s, 3, 32) and not re.search(r"\d", s)})
    rng.shuffle(common)
    rng.shuffle(lj)
    held = [s for s in common[:400] if len(s.split()) >= 4 and not re.search(r"\d", s)]
    test = held[:70] + [s for s in lj[:60] if len(s.split()) >= 6][:30]
    dev = held[70:270] + lj[60:160]
    unseen = {model_text(s) for s in test + dev}
    common, lj = common[400:], lj[160:]

    books = [from_book(f) for f in sorted(a.books.glob("*.txt"))]
    share = 1 + a.book_sentences // max(len(books), 1)
    from_books = []
    for book in books:
        book = [s for s in dict.fromkeys(book) if keep(s, 2, 30)]
        rng.shuffle(book)
        from_books += book[: 2 * share]
    rng.shuffle(from_books)
    from_books = from_books[: a.book_sentences]

    lexicon = json.load(gzip.open(a.lexicon))
    words = sorted(w for w in lexicon if re.fullmatch(r"[A-Za-z][a-z]{2,13}", w))
    rng.shuffle(words)
    singles = [w.capitalize() + rng.choice("...!?") for w in words[:4000]]
    lists, _ = word_lists(rng, words[4000:], 14000)
    mixed = list(common)
    rng.shuffle(mixed)
    pairs = pairs_of(mixed, 7000)
    hello = [s.strip() for line in GREETINGS for s in END.split(line)] * 4

    train = common + lj + from_books + singles + lists + pairs + hello + numbers(rng, 7000)
    train = [s for s in train if usable(model_text(s)) and model_text(s) not in unseen]
    rng.shuffle(train)
    for name, lines in (("train", train), ("dev", dev), ("test", test)):
        (a.out / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    counts = dict(common=len(common), lj=len(lj), books=len(from_books), singles=len(singles), lists=len(lists), pairs=len(pairs))
    print(counts, "train", len(train), "words", sum(len(s.split()) for s in train))

    corpus = a.out / "tokenizer-corpus.txt"
    corpus.write_text("\n".join(model_text(s) for s in train) + "\n", encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(a.out / "tokenizer"), model_type="unigram", vocab_size=a.vocabulary,
        character_coverage=1.0, normalization_rule_name="identity", split_digits=True, max_sentencepiece_length=12,
        user_defined_symbols=[".", ",", "!", "?"], num_threads=2, minloglevel=2,
    )
    corpus.unlink()
    if a.second:
        second = second_list(a.second, train, unseen, common, books, words)
        shutil.copy(a.out / "tokenizer.model", a.second / "tokenizer.model")
        if a.third:
            third_list(a.third, train + second, unseen, common, lj, books, words)
            shutil.copy(a.out / "tokenizer.model", a.third / "tokenizer.model")


if __name__ == "__main__":
    main()
