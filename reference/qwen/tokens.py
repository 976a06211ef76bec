"""A byte-level BPE vocabulary in the published layout: vocab.json, merges.txt and the added tokens of tokenizer_config.json."""

import json
from pathlib import Path

WORDS = ("assistant", "user", "Ġthe", "ing", "Ġa", "er", "on", "Ġs", "in", "he", "Ġw", "Ġtest", "ll", "Ġi", "ä½", "å¥", "'s", "42")
ADDED = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|audio_start|>",
         "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>", "<|audio_pad|>"]

TEXTS = [
    "Hello there, it's a tiny test: naïve café 你好 42!",
    "<|im_start|>assistant\nHi<|im_end|>\n<|im_start|>assistant\n",
    "don't  stop\n\n now", "ABC123 ...", "日本語テスト", " the user assistants winner", "", " ", "\n", "a\r\n b\t c   ",
    "I'LL we'Re They've 'tis", "x²³ ½ ٣٤", "e\u0301 \u00e9 Ａ", "emoji 👩‍👩‍👧 flag 🇩🇪", "tabs\t\tand  trailing  ",
    "<tts_pad><|unknown|> <|im_end|", "don\u2019t \u00a0nbsp\u3000wide", "«¡¿»…—“”", "ǅ ᾈ ß İ", "हिन्दी ไทย עברית",
]


def alphabet() -> list[str]:
    """The 256 printable stand-ins for bytes, as GPT-2 chose them."""
    keep = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    out, n = {}, 0
    for b in range(256):
        if b in keep:
            out[b] = chr(b)
        else:
            out[b] = chr(256 + n)
            n += 1
    return sorted(out.values(), key=ord)


def write(folder: Path):
    """Writes the files; gives the ids of the added tokens, the number of ids and the vocabulary."""
    vocab = {u: i for i, u in enumerate(alphabet())}
    merges = []
    for word in WORDS:
        left = word[0]
        for c in word[1:]:
            if f"{left} {c}" not in merges:
                merges.append(f"{left} {c}")
            left += c
            vocab.setdefault(left, len(vocab))
    ids = {name: len(vocab) + i for i, name in enumerate(ADDED)}
    (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    added = {str(i): dict(content=n, lstrip=False, normalized=False, rstrip=False, single_word=False, special=True)
             for n, i in ids.items()}
    config = dict(add_bos_token=False, add_prefix_space=False, added_tokens_decoder=added,
                  additional_special_tokens=ADDED[1:], bos_token=None, clean_up_tokenization_spaces=False,
                  eos_token="<|im_end|>", errors="replace", model_max_length=131072, pad_token="<|endoftext|>",
                  split_special_tokens=False, tokenizer_class="Qwen2Tokenizer", processor_class="Qwen3TTSProcessor", unk_token=None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    (folder / "preprocessor_config.json").write_text(json.dumps(
        dict(processor_class="Qwen3TTSProcessor", padding_side="left", padding_value=0.0, return_attention_mask=True), indent=1))
    return ids, len(vocab) + len(ADDED), vocab


def published(folder: Path):
    """The tokeniser with the published split: the package, given a local folder, may swap in another one (`fix_mistral_regex`)."""
    from transformers import Qwen2Tokenizer, Qwen2TokenizerFast

    fast, slow = Qwen2TokenizerFast.from_pretrained(str(folder)), Qwen2Tokenizer.from_pretrained(str(folder))
    for text in TEXTS:
        assert fast(text)["input_ids"] == slow(text)["input_ids"], text
    return fast
