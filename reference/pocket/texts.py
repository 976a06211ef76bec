"""Texts that try the package's preparation and splitting rules, and what it makes of them."""

from pocket_tts.models.text_chunking import prepare_text_prompt, split_into_best_sentences

TEXTS = [
    "Hello world.",
    "hello world",
    "  lots   of \n new\nlines\r\n and \t tabs  ",
    "One two three four",
    "One two three four five",
    "It was 3.14 then 2.71. and 10.5! Then 7.",
    "Wait... what? no!? Yes...! ok",
    "she said, that is it;",
    "she said: look -",
    'He said "go away"',
    'He said "go away."',
    "(so they say)",
    "(so they say).",
    "“What?”, she said. ‘No’, he said; fine: ok",
    "don’t — do it – now",
    "straße élan ßtart",
    "ßtart",
    "éa été là… déjà vu",
    "日本語 text 😀 mixed",
    "42 is the number",
    "A.B.C. is not D.E.F.",
    ". starts with a dot",
    "...",
    "?",
    "a, b, c; d: e, f, g; h: i, j, k; l: m, n, o; p: q, r, s; t: u, v, w; x: y, z, and so on and on to the end",
    "the quick brown fox jumps over the lazy dog and " * 6,
    "First one. Second one! Third one? Fourth one... Fifth one. Sixth one; still the sixth. Seventh: the last",
    "no punctuation at the end of a long line of many words that go on and on, and then some more, and then",
    "\u00a0non\u2003breaking\u3000spaces\u200b here\u00a0",
    "",
    "   \n ",
    '"',
]


def texts(model) -> list[dict]:
    rules = (
        model.pad_with_spaces_for_short_inputs,
        model.remove_semicolons,
        model.append_terminal_punctuation,
        model.capitalize_first_letter,
        model.replace_characters,
    )
    tok = model.flow_lm.conditioner.tokenizer
    rows = []
    for text in TEXTS:
        wide = None
        for limit in (50, 12):
            row = {"text": text, "max_tokens": limit}
            try:
                row["chunks"] = []
                for chunk in split_into_best_sentences(tok, text, limit, *rules):
                    prepared, guess = prepare_text_prompt(chunk, *rules)
                    row["chunks"].append(
                        {"chunk": chunk, "prepared": prepared, "tokens": tok.encode(prepared), "guess": guess}
                    )
            except Exception as e:  # the package's own refusal is part of the record
                row["error"] = f"{type(e).__name__}: {e}"
            outcome = (row["chunks"], row.get("error"))
            if outcome != wide:  # the small limit is listed only where it changes something
                rows.append(row)
            wide = outcome
    return rows
