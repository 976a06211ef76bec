"""Build a small byte-level BPE in the files of Qwen's tokenisers and record what `transformers` does with mixed text.

Packages: transformers==4.57.3 (as qwen-tts 0.1.1 pins it), tokenizers.
usage: python make_byte_level_fixture.py [--out ../../crates/voce-text/tests/fixtures]

Reads <out>/texts.jsonl and writes
  byte_level/{vocab.json,merges.txt,tokenizer_config.json}
  byte_level.ids             as make_tokenizer_fixtures.py describes, for every line of texts.jsonl
  byte_level_random.jsonl    one record per line: a random text and its ids
"""
import argparse
import json
import random
import struct
import unicodedata
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import Qwen2TokenizerFast

HERE = Path(__file__).resolve().parent
ap = argparse.ArgumentParser()
ap.add_argument("--out", default=str(HERE / "../../crates/voce-text/tests/fixtures"))
OUT = Path(ap.parse_args().out)
TEXTS = [json.loads(line) for line in (OUT / "texts.jsonl").read_text(encoding="utf-8").split("\n") if line]
FOLDER = OUT / "byte_level"
FOLDER.mkdir(exist_ok=True)

tok = Tokenizer(models.BPE())
tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
tok.train_from_iterator(TEXTS[24:700], trainer)
model = json.loads(tok.to_str())["model"]
merges = [" ".join(m) if isinstance(m, list) else m for m in model["merges"]]
(FOLDER / "vocab.json").write_text(json.dumps(model["vocab"], ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
(FOLDER / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>"]
added = {str(len(model["vocab"]) + i): dict(content=n, lstrip=False, normalized=False, rstrip=False, single_word=False, special=True)
         for i, n in enumerate(names)}
config = dict(add_prefix_space=False, added_tokens_decoder=added, additional_special_tokens=names[1:], bos_token=None,
              clean_up_tokenization_spaces=False, eos_token="<|im_end|>", errors="replace", pad_token="<|endoftext|>",
              split_special_tokens=False, tokenizer_class="Qwen2Tokenizer", unk_token=None)
(FOLDER / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
qwen = Qwen2TokenizerFast.from_pretrained(str(FOLDER))


def fnv(data: bytes) -> str:
    h = 0xCBF29CE484222325
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{h & 0xFFFFFFFF:08x}"


lines = []
for i, text in enumerate(TEXTS):
    ids = qwen(text)["input_ids"]
    line = fnv(struct.pack(f"<{len(ids)}I", *ids)) + " " + fnv(qwen.decode(ids, skip_special_tokens=True).encode("utf-8"))
    lines.append(line + (" " + " ".join(map(str, ids)) if i % 10 == 0 else "") + "\n")
(OUT / "byte_level.ids").write_text("".join(lines))

r = random.Random(12)
RANGES = [(0x20, 0x7F), (0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0xE80), (0x1100, 0x1200),
          (0x1E00, 0x2070), (0x2070, 0x2190), (0x3000, 0x3100), (0x4E00, 0x4F00), (0xAC00, 0xAD00), (0xFF00, 0xFFF0), (0x1F300, 0x1F700)]
SPECIAL = ["'s", "'T", "'ll", "'LL", "'\u017f", "\n", "\r\n", " \n ", "  ", "\t", "\u3000", "\u0085", "\u2028", "<|im_start|>", "<|im_end|>\n", "1", "23"]


def letter():
    while True:
        c = chr(r.randrange(*r.choice(RANGES)))
        # Assigned long ago: newer Unicode versions class what was not assigned.
        if unicodedata.category(c) not in ("Cn", "Cs", "Co"):
            return c


with open(OUT / "byte_level_random.jsonl", "w", encoding="utf-8") as f:
    for _ in range(600):
        text = "".join(r.choice(SPECIAL) if r.random() < 0.35 else letter() for _ in range(r.choice([1, 2, 4, 8, 16, 30])))
        f.write(json.dumps({"t": text, "ids": qwen(text)["input_ids"]}, ensure_ascii=False, separators=(",", ":")) + "\n")
