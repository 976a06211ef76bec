"""Made-up unigram vocabularies, saved as a SentencePiece `.model` and as a `tokenizer.json`.

The pieces are bytes, single characters, common words and random letter groups, so that every text
has an encoding and the two files give the same ids for plain text.
"""

import random
import string
import struct
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

SPACE = "▁"
WORDS = (
    "the of and to in a is that for it was on are as with his they be at one have this from or had by "
    "hot word but what some we can out other were all there when up use your how said an each she which "
    "do their time if will way about many then them write would like so these her long make thing see him "
    "two has look more day could go come did number sound no most people my over know water than call "
    "first who may down side been now find quick brown fox jumps lazy dog speech engine runs fast small "
    "hello world hope you me enough"
).split()
N_SPECIAL = 259  # <unk>, <s>, </s>, 256 bytes


def make_pieces(n_bins: int, seed: int) -> list[tuple[str, float]]:
    """`n_bins` (piece, score) pairs; the order is the id."""
    rng = random.Random(seed)
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0)]
    pieces += [(f"<0x{i:02X}>", 0.0) for i in range(256)]
    seen = {p for p, _ in pieces}

    def add(piece: str, score: float):
        if piece not in seen and len(pieces) < n_bins:
            seen.add(piece)
            pieces.append((piece, score))

    for char in SPACE + string.ascii_letters + string.digits + ".,!?;:'-\"()":
        add(char, -6.0 - rng.random())
    for word in WORDS:
        add(SPACE + word, -7.0 - rng.random())
        add(SPACE + word.capitalize(), -7.5 - rng.random())
    while len(pieces) < n_bins:
        letters = "".join(rng.choice(string.ascii_lowercase) for _ in range(rng.choice([2, 2, 3, 3, 4])))
        add(rng.choice(["", SPACE]) + letters, -9.0 - 3.0 * rng.random())
    # Scores are f32 in a `.model` and decimal text in a `tokenizer.json`: multiples of 1/64 are the same in both.
    return [(p, round(s * 64) / 64) for p, s in pieces]


def save_json(pieces: list[tuple[str, float]], path: Path, style: str = "converted"):
    """`converted`: as the Hugging Face SentencePiece converter writes it; `plain`: no normaliser; `nfkc`."""
    tok = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    if style == "converted":
        tok.normalizer = normalizers.Sequence(
            [normalizers.Strip(left=False, right=True), normalizers.Replace(tokenizers.Regex(" {2,}"), SPACE)]
        )
    elif style == "nfkc":
        tok.normalizer = normalizers.Sequence(
            [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
        )
    tok.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
    tok.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(replacement=SPACE, prepend_scheme="always")]
    )
    tok.save(str(path))


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, value) -> bytes:
    """One protobuf field: int as a varint, float as fixed 32 bits, str and bytes with a length."""
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def save_model(pieces: list[tuple[str, float]], path: Path, remove_extra_whitespaces: bool = True):
    """The same pieces as a SentencePiece `ModelProto` of type unigram, without a character map."""
    body = b""
    for i, (piece, score) in enumerate(pieces):
        kind = 2 if i == 0 else 3 if i < 3 else 6 if i < N_SPECIAL else 1  # unknown, control, byte, normal
        body += _field(1, _field(1, piece) + _field(2, float(score)) + _field(3, kind))
    trainer = _field(3, 1) + _field(4, len(pieces)) + _field(35, 1)  # model_type, vocab_size, byte_fallback
    trainer += _field(40, 0) + _field(41, 1) + _field(42, 2) + _field(43, -1)  # unk, bos, eos, pad
    normaliser = _field(1, "identity") + _field(3, 1) + _field(4, int(remove_extra_whitespaces)) + _field(5, 1)
    path.write_bytes(body + _field(2, trainer) + _field(3, normaliser))
