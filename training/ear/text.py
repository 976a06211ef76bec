"""The text form the ear writes: lower-case words of a-z and the apostrophe, single spaces."""

import re
import unicodedata

TITLES = {"mr": "mister", "mrs": "missus", "dr": "doctor", "messrs": "messieurs"}
_TITLE = re.compile(r"\b(mr|mrs|dr|messrs)\b\.?")


def plain(raw: str) -> str:
    """`raw` in the ear's alphabet; the empty string where that cannot be done (digits, other scripts)."""
    text = raw.replace("’", "'").replace("‘", "'").replace("`", "'").replace("æ", "ae").replace("œ", "oe").replace("&", " and ")
    text = unicodedata.normalize("NFKD", text.lower())
    text = "".join(c for c in text if not unicodedata.combining(c))
    if re.search(r"[0-9%$£€@#=+<>\[\]{}|\\^~]", text):
        return ""
    text = _TITLE.sub(lambda m: TITLES[m.group(1)], text)
    text = re.sub(r"[^a-z' ]", " ", text)
    words = [w.strip("'") if not re.fullmatch(r"[a-z]+s'|'(?:tis|twas|em|til)", w) else w for w in text.split()]
    return " ".join(w for w in words if w)
