"""The text form the voice model reads.

The same rewrites are written into the model's config.yaml (`replace_characters`), so a runtime
that follows the config arrives at the same string: lower case, letters, digits, the apostrophe
and the marks . , ! ? only.
"""

import re
import string

_ACCENTS = {
    "a": "àáâãäåāÀÁÂÃÄÅ", "c": "çćčÇ", "e": "èéêëēÈÉÊË", "i": "ìíîïīÌÍÎÏ", "n": "ñńÑ",
    "o": "òóôõöøōÒÓÔÕÖØ", "u": "ùúûüūÙÚÛÜ", "y": "ýÿ", "s": "śšşŠ", "z": "źżžŽ",
}

REPLACE: dict[str, str] = {c: c.lower() for c in string.ascii_uppercase}
REPLACE |= {c: plain for plain, group in _ACCENTS.items() for c in group}
REPLACE |= {"æ": "ae", "Æ": "ae", "œ": "oe", "Œ": "oe", "ß": "ss"}
REPLACE |= {"’": "'", "‘": "'", "`": "'", "´": "'"}
REPLACE |= {c: "" for c in "\"“”„«»*_#~^|\\<>{}[]"}
REPLACE |= {"–": ", ", "—": ", ", "-": " ", "/": " ", "(": ", ", ")": ", "}
REPLACE |= {";": ",", ":": ",", "…": ".", "&": " and ", "%": " percent", "+": " plus ", "=": " equals ", "@": " at "}

_TABLE = str.maketrans(REPLACE)
_AFTER_END = re.compile(r"([.!?\u2026])\s*[,;:]")
_TERMINAL, _WEAK, _CLOSERS = ".!?…", ",;:-–—", "\"'”’)]»"
ALLOWED = set(string.ascii_lowercase + string.digits + "' .,!?")


def model_text(raw: str) -> str:
    """`raw` as the tokeniser sees it: the config's rewrites, then a sure final mark."""
    text = _AFTER_END.sub(r"\1", " ".join(raw.strip().translate(_TABLE).split()))
    if not text:
        return ""
    core = text.rstrip(_CLOSERS + " ")
    tail = text[len(core):].strip()
    if core and core[-1] in _WEAK:
        return core.rstrip(_WEAK + " ") + "." + tail
    if core and core[-1] not in _TERMINAL:
        return text + "."
    return text


def usable(text: str) -> bool:
    """Whether every character of a model text is in the model's alphabet."""
    return bool(text) and set(text) <= ALLOWED and any(c.isalnum() for c in text)
