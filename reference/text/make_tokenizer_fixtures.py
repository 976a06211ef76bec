"""Build small tokenisers and record what `sentencepiece`, `tokenizers` and `pocket_tts` do with mixed text.

Packages: requirements.txt (Python 3.11).
usage: python make_tokenizer_fixtures.py [--out ../../crates/voce-text/tests/fixtures]

Writes into <out>:
  texts.jsonl        one JSON string per line: the lines every tokeniser is run on
  NAME.model|.json   the tokenisers
  NAME.ids           per line: 8 hex digits of FNV-1a-64 over the ids (u32 little endian), then over the decoded text;
                     every tenth line also lists the ids
  prompt.jsonl       the package's text preparation and chunking: one record per line
"""
import argparse
import json
import logging
import random
import struct
import tempfile
from pathlib import Path

import sentencepiece as spm
import tokenizers
from sentencepiece import sentencepiece_model_pb2 as spb
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

HERE = Path(__file__).resolve().parent
ap = argparse.ArgumentParser()
ap.add_argument("--out", default=str(HERE / "../../crates/voce-text/tests/fixtures"))
OUT = Path(ap.parse_args().out)
OUT.mkdir(parents=True, exist_ok=True)
rng = random.Random(20)

NOUNS = ("river station engine teacher window garden machine letter mountain question market doctor village summer "
         "computer language history picture morning evening kitchen bottle ticket travel signal number pocket voice "
         "harbour island winter concert question answer bridge forest lantern captain weather newspaper").split()
VERBS = ("opens follows carries finds remembers builds repairs watches crosses paints describes measures records "
         "forgets answers collects delivers explains imagines translates").split()
ADJ = ("quiet old bright narrow heavy wooden careful distant green sudden ordinary broken gentle early electric "
       "unusual thirty-second well-known internationalisation-ready").split()
ADV = "slowly quickly often never always perhaps again together yesterday today".split()
OTHER = ["Où est-elle allée après l'été ?", "Ça coûte 3,50 € à Noël.", "Straße und Größe, Übermut tut selten gut.",
         "¿Dónde está el niño? ¡Aquí!", "Não há coração sem razão.", "Perché no? Così è la città.", "Привет, как дела?",
         "Γειά σου Κόσμε", "こんにちは、世界。", "今天天气很好,我们去公园吧。", "한국어 문장입니다.", "مرحبا بالعالم، كيف حالك؟",
         "שלום עולם", "नमस्ते दुनिया", "สวัสดีชาวโลก"]


def sentence(r):
    parts = ["The", r.choice(ADJ), r.choice(NOUNS), r.choice(VERBS), "the", r.choice(NOUNS)]
    if r.random() < 0.5:
        parts += ["and", r.choice(ADV), r.choice(VERBS), "a", r.choice(ADJ), r.choice(NOUNS)]
    if r.random() < 0.3:
        parts.insert(r.randrange(1, len(parts)), str(r.choice([3, 42, 1999, 2024, "3.14", "10,000", "7%", "$5.20"])))
    s = " ".join(parts)
    if r.random() < 0.4:
        s = s.replace(" and ", ", and ")
    return s + r.choice([".", ".", ".", "!", "?", "...", ";", ":", ""])


SOUP = [
    list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"),
    list(".,!?;:'\"()[]{}<>/\\|@#$%^&*-_=+~`"),
    [" ", " ", "  ", "   ", "\t", "\n", "\r\n", "\u00a0", "\u2003", "\u3000", "\u1680", "\u2028", "\u202f"],
    ["😀", "👍🏽", "👩‍👩‍👧", "🇫🇷", "❤️", "🏴‍☠️", "⚡", "🤷‍♂️"],
    ["e\u0301", "n\u0303", "a\u030a", "o\u0308\u0304", "q\u0307\u0323", "\u0301", "Å", "ﬁ", "ﬃ", "ǆ", "ß", "İ", "Ⅷ", "№", "™", "½", "①", "²"],
    list("ＡＢＣａｂｃ１２３！？，。「」ｱｲｳﾞ"),
    list("日本語漢字仮名交じり文中文字符한국어말씀가각힣"),
    list("مرحباكيفحالكעבריתไทยहिन्दी"),
    ["\u200b", "\u200d", "\u200e", "\ufeff", "\u00ad", "\u2060", "\ufffd", "\u2581", "\u2581\u2581"],
    ["\x01", "\x07", "\x0b", "\x0c", "\x1b", "\x1f", "\x7f", "\x85", "\x8f", "\x9f", "\x00"],
    ["—", "–", "…", "“", "”", "‘", "’", "«", "»", "¡", "¿", "•", "€", "£", "°C", "µ", "Ω", "ﷺ", "㍿", "㎏", "Å", "豈", "힣", "각"],
    ["<unk>", "<s>", "</s>", "<0x41>", "<laugh>", "[pause]", "<mask>", "<new>", "<new> ", " <mask> ", "[P]"],
]


def soup(r):
    kinds = r.sample(range(len(SOUP)), r.choice([1, 2, 3, 4]))
    return "".join(r.choice(SOUP[r.choice(kinds + [2])]) for _ in range(r.choice([1, 2, 4, 8, 16, 24])))


def texts():
    r = random.Random(5)
    out = ["", " ", "  ", "\n", "\u2581", "a", "\x01", "\u200b", "▁▁▁", ".!...?", ",;:", "Hello world. I hope you'll like me.",
           "a" * 300, "supercalifragilisticexpialidocious" * 5, "\u0301" * 20, "😀" * 30, "1234567890" * 10, " leading", "trailing ",
           " both  sides ", "tabs\tand\nnew\r\nlines", "<laugh>ha<laugh>", "x<mask>y", "  <s> </s>  "]
    out += OTHER
    while len(out) < 700:
        out.append(" ".join(sentence(r) for _ in range(r.choice([1, 1, 2]))))
    while len(out) < 1500:
        out.append(soup(r))
    while len(out) < 2000:
        words = sentence(r).split()
        for _ in range(r.choice([1, 2])):
            words.insert(r.randrange(len(words) + 1), r.choice([soup(r), r.choice(OTHER)])[:20])
        out.append(r.choice([" ", " ", "  "]).join(words))
    return out


TEXTS = texts()
(OUT / "texts.jsonl").write_text("".join(json.dumps(t, ensure_ascii=False) + "\n" for t in TEXTS), encoding="utf-8")


def fnv(data: bytes) -> str:
    h = 0xCBF29CE484222325
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{h & 0xFFFFFFFF:08x}"


def record(name, encode, decode):
    lines = []
    for i, text in enumerate(TEXTS):
        ids = encode(text)
        line = fnv(struct.pack(f"<{len(ids)}I", *ids)) + " " + fnv(decode(ids).encode("utf-8"))
        if i % 10 == 0:
            line += " " + " ".join(map(str, ids))
        lines.append(line + "\n")
    (OUT / f"{name}.ids").write_text("".join(lines))


# ---- SentencePiece models
work = Path(tempfile.mkdtemp())
corpus = work / "corpus.txt"
r = random.Random(1)
SYLLABLES = [a + b + c for a in ("b", "st", "tr", "m", "n", "sh", "l", "pr", "w", "k") for b in ("a", "e", "i", "o", "ea", "ou") for c in ("", "n", "r", "st", "ng")]
LEXICON = ["".join(r.choice(SYLLABLES) for _ in range(r.choice([1, 2, 3]))) + r.choice(["", "s", "ed", "ing", "tion", "'s"]) for _ in range(1500)]


def training_line():
    made = " ".join(r.choice(LEXICON[: r.choice([100, 1500])]) for _ in range(8))
    return sentence(r) + " " + made.capitalize() + r.choice([".", "!", "?", ", 12.", "; 7:30."])


corpus.write_text("\n".join([training_line() for _ in range(4000)] + OTHER * 3), encoding="utf-8")
rules = work / "rules.tsv"
RULES = {"ﬁ": "fi", "ﬃ": "ffi", "“": '"', "”": '"', "‘": "'", "’": "'", "…": "...", "\t": " ", "\n": " ", "\u3000": " ",
         "e\u0301": "é", "n\u0303": "ñ", "Ａ": "A", "Ｂ": "B", "１": "1", "㍿": "株式会社", "\u200b": "", "½": "1⁄2", "ß": "ss", "A": "a"}
rules.write_text("".join(" ".join(f"{ord(c):X}" for c in a) + "\t" + " ".join(f"{ord(c):X}" for c in b) + "\n" for a, b in RULES.items()))


def train(name, **kw):
    args = dict(input=str(corpus), model_prefix=str(work / name), num_threads=1, minloglevel=2, character_coverage=0.9995)
    args.update(kw)
    spm.SentencePieceTrainer.train(**args)
    m = spb.ModelProto.FromString((work / f"{name}.model").read_bytes())
    m.trainer_spec.ClearField("input")
    m.trainer_spec.ClearField("model_prefix")
    return m


def save(name, m):
    data = m.SerializeToString(deterministic=True)
    (OUT / f"{name}.model").write_bytes(data)
    sp = spm.SentencePieceProcessor(model_proto=data)
    record(name, lambda t: sp.encode(t, out_type=int), lambda ids: sp.decode(ids))
    return sp


USER = ["<laugh>", "[pause]", "…!"]
nfkc = train("unigram_nfkc", model_type="unigram", vocab_size=900, byte_fallback=True, user_defined_symbols=USER, normalization_rule_name="nmt_nfkc")
save("unigram_nfkc", nfkc)
ident = train("unigram_identity", model_type="unigram", vocab_size=450, normalization_rule_name="identity", remove_extra_whitespaces=False, control_symbols=["<mask>"])
ident.pieces[200].type = spb.ModelProto.SentencePiece.UNUSED
save("unigram_identity", ident)
rulem = train("bpe_rules", model_type="bpe", vocab_size=800, byte_fallback=True, user_defined_symbols=USER, normalization_rule_tsv=str(rules))
for i in (300, 330, 360, 400):
    rulem.pieces[i].type = spb.ModelProto.SentencePiece.UNUSED
rulem.normalizer_spec.ClearField("normalization_rule_tsv")
save("bpe_rules", rulem)
save("bpe_suffix", train("bpe_suffix", model_type="bpe", vocab_size=400, normalization_rule_name="identity", treat_whitespace_as_suffix=True, add_dummy_prefix=True))
save("unigram_noprefix", train("unigram_noprefix", model_type="unigram", vocab_size=300, normalization_rule_name="identity", add_dummy_prefix=False, max_sentencepiece_length=8, split_by_whitespace=False))

# ---- tokenizer.json files
def hf(name, tok):
    text = json.dumps(json.loads(tok.to_str()), ensure_ascii=False, separators=(",", ":"))
    (OUT / f"{name}.json").write_text(text, encoding="utf-8")
    tok = tokenizers.Tokenizer.from_str(text)
    record(name, lambda t: tok.encode(t).ids, lambda ids: tok.decode(ids))


def vocab(m, limit=None):
    # Five decimals keep the files small; both sides read the same numbers.
    return [(p.piece, round(p.score, 5)) for p in m.pieces][:limit]


tok = tokenizers.Tokenizer(models.Unigram(vocab(nfkc), unk_id=0, byte_fallback=True))
tok.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")])
tok.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
tok.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(replacement="▁", prepend_scheme="always")])
hf("pocket", tok)

tok = tokenizers.Tokenizer(models.Unigram(vocab(rulem, 500), unk_id=0, byte_fallback=True))
tok.normalizer = normalizers.Sequence([normalizers.Precompiled(rulem.normalizer_spec.precompiled_charsmap), normalizers.Strip(left=False, right=True),
    normalizers.Lowercase(), normalizers.NFC(), normalizers.Replace("``", '"'), normalizers.Replace(tokenizers.Regex(r"\s+"), " ")])
tok.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
tok.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="first", split=False)
tok.add_special_tokens([AddedToken("<s>", special=True, normalized=False), AddedToken("<mask>", special=True, normalized=False, lstrip=True)])
tok.add_tokens([AddedToken("<new>", normalized=False, rstrip=True), AddedToken("[P]", normalized=True), AddedToken("station", normalized=True, single_word=True)])
hf("precompiled", tok)

tok = tokenizers.Tokenizer(models.Unigram(vocab(ident), unk_id=0))
tok.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
hf("prepend", tok)

tok = tokenizers.Tokenizer(models.Unigram(vocab(ident), unk_id=0))
tok.normalizer = normalizers.NFKD()
tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="never")])
tok.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
hf("whitespace", tok)

# BPE as converted from SentencePiece: every way to make a piece from two others is a merge, in the order of the pieces.
bpe = {p.piece: i for i, p in enumerate(rulem.pieces[:700])}
merges = sorted((i, len(p), p[:k], p[k:]) for p, i in bpe.items() for k in range(1, len(p)) if p[:k] in bpe and p[k:] in bpe)
tok = tokenizers.Tokenizer(models.BPE(bpe, [(a, b) for _, _, a, b in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
tok.normalizer = normalizers.Sequence([normalizers.Precompiled(rulem.normalizer_spec.precompiled_charsmap), normalizers.Strip(left=False, right=True), normalizers.Replace(tokenizers.Regex(" {2,}"), "▁")])
tok.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
tok.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
tok.add_special_tokens([AddedToken("<unk>", special=True, normalized=False), AddedToken("<pad>", special=True, normalized=False)])
hf("bpe_merges", tok)

# ---- what the package does with prompts
from pocket_tts.models.text_chunking import prepare_text_prompt, split_into_best_sentences  # noqa: E402
from pocket_tts.modules.text_conditioner import JsonTokenizer, SentencePieceTokenizer  # noqa: E402

logging.disable(logging.WARNING)  # chunks over the limit are recorded on purpose
TOKS = {"pocket.json": JsonTokenizer(900, str(OUT / "pocket.json")), "unigram_nfkc.model": SentencePieceTokenizer(900, str(OUT / "unigram_nfkc.model")),
        "bpe_rules.model": SentencePieceTokenizer(800, str(OUT / "bpe_rules.model"))}
FRENCH = {'"': "", "“": "", "”": "", "«": "", "»": "", "’": "'", "‘": "'", ":": ",", "(": "", ")": "", "[": "", "]": "", "–": ","}
RULESETS = [
    dict(pad_with_spaces_for_short_inputs=False, remove_semicolons=False),
    dict(pad_with_spaces_for_short_inputs=True, remove_semicolons=True),
    dict(pad_with_spaces_for_short_inputs=False, remove_semicolons=True, replace_characters=FRENCH),
    dict(pad_with_spaces_for_short_inputs=True, remove_semicolons=False, append_terminal_punctuation=False, capitalize_first_letter=False),
    dict(pad_with_spaces_for_short_inputs=False, remove_semicolons=False, replace_characters={"’": "'", "‘": "'", "&": " and "}),
]
PROMPTS = ["", "   ", "\n", "hi", "Hello world", "hello, world,", "wait -", "he said \"no\"", "he said \"no.\"", "«Oui», dit-il", '"Hi?", she said. "Yes!", he said.',
    "ßtraße", "ǆ", "élan vital", "a.b.c", "Pi is 3.14159 and e is 2.718.", "Section 3. 5 apples. Version 1.2.3 is out... really?! Yes.",
    "One. Two! Three? Four… Five; six: seven, eight", "no stop at all " * 30, "comma, " * 40, "a;b:c," * 30, "Wait... 5 more. ٣.٤ and ².5 and 7.² end.",
    "x" * 400, "tabs\there\x1cand\x1fthere\x0b", "one  two   three    four", "line\r\nbreak\n\n\nagain", ")", "...", ",", "- -", "” ’", "end,”", "end:)", "end —", "😀 😀. 😀! 😀", "\x01", "\u200b.", "¿Qué? ¡Sí!"]
r = random.Random(9)
while len(PROMPTS) < 340:
    n = r.choice([1, 2, 3, 6])
    parts = [sentence(r) if r.random() < 0.8 else soup(r) for _ in range(n)]
    text = r.choice([" ", " ", "  ", "\n"]).join(parts)
    if r.random() < 0.3:
        text = text.replace(".", ",").replace("?", ";")
    PROMPTS.append(text)
lines = []
for i, text in enumerate(PROMPTS):
    name = list(TOKS)[i % 3]
    for which in range(5) if i < 42 else [i % 5]:
        rules_ = RULESETS[which]
        rec = {"t": text, "k": name, "r": which}
        try:
            rec["p"], rec["g"] = prepare_text_prompt(text, **rules_)
            rec["m"] = r.choice([50, 50, 12])
            rec["c"] = split_into_best_sentences(TOKS[name], text, rec["m"], **rules_)
        except ValueError as e:
            rec["e"] = str(e)
        lines.append(json.dumps(rec, ensure_ascii=False, separators=(",", ":")) + "\n")
(OUT / "prompt.jsonl").write_text("".join(lines), encoding="utf-8")
print({p.name: p.stat().st_size for p in sorted(OUT.iterdir())}, sum(p.stat().st_size for p in OUT.iterdir()))
