"""Counts a small n-gram over the ear's pieces, for `voce hear --lm FILE.arpa --beam 4`.

    python ngram.py --texts texts --order 4 --least 2 --out nano-ear.arpa

Reads long.txt and short.txt; interpolated Kneser-Ney with one discount per order. n-grams of the two highest orders that were
seen fewer than `--least` times are left out.
"""

import argparse
import math
from collections import Counter, defaultdict
from pathlib import Path

import sentencepiece

from text import plain


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--texts", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--order", type=int, default=4)
    p.add_argument("--least", type=int, default=2)
    a = p.parse_args()
    sp = sentencepiece.SentencePieceProcessor(model_file=str(a.texts / "tokenizer.model"))
    lines = [plain(x) for name in ("long", "short") for x in (a.texts / f"{name}.txt").read_text(encoding="utf-8").splitlines()]
    rows = [["<s>", *x, "</s>"] for x in sp.encode(sorted({x for x in lines if x}), out_type=str) if "<unk>" not in x]
    counts = [Counter() for _ in range(a.order + 1)]
    for row in rows:
        for n in range(1, a.order + 1):
            counts[n].update(zip(*(row[i:] for i in range(n))))
    # below the highest order what counts is in how many places an n-gram can follow
    for n in range(a.order - 1, 0, -1):
        kept = Counter(g[1:] for g in counts[n + 1])
        for g in [g for g in counts[n] if g[0] == "<s>"]:
            kept[g] = counts[n][g]
        counts[n] = kept
    for n in (a.order, a.order - 1):
        if n > 1:
            counts[n] = Counter({g: c for g, c in counts[n].items() if c >= a.least})
    probability: list[dict] = [{} for _ in range(a.order + 1)]
    back: list[dict] = [{} for _ in range(a.order + 1)]
    seen = Counter({g: c for g, c in counts[1].items() if g != ("<s>",)})
    total = sum(seen.values())
    probability[1] = {g: c / total for g, c in seen.items()}
    for n in range(2, a.order + 1):
        once, twice = (sum(c == k for c in counts[n].values()) for k in (1, 2))
        discount = once / (once + 2 * twice) if once and twice else 0.5
        groups = defaultdict(list)
        for g, c in counts[n].items():
            if g[:-1] in probability[n - 1] or n == 2:
                groups[g[:-1]].append((g, c))
        for context, members in groups.items():
            whole = sum(c for _, c in members) + (a.least - 1 if n >= a.order - 1 else 0) * len(members)
            left = 1 - sum(c - discount for _, c in members) / whole
            for g, c in members:
                probability[n][g] = (c - discount) / whole + left * probability[n - 1].get(g[1:], 1e-7)
            # what is left for those that were not seen, over their weight below
            back[n - 1][context] = max(1e-4, 1 - sum(probability[n][g] for g, _ in members)) / max(
                1e-4, 1 - sum(probability[n - 1].get(g[1:], 0.0) for g, _ in members))
    with a.out.open("w", encoding="utf-8") as out:
        out.write("\\data\\\n")
        table = [[]] + [[(g, math.log10(max(q, 1e-9))) for g, q in probability[n].items()] for n in range(1, a.order + 1)]
        table[1].append((("<s>",), -99.0))
        for n in range(1, a.order + 1):
            out.write(f"ngram {n}={len(table[n])}\n")
        for n in range(1, a.order + 1):
            out.write(f"\n\\{n}-grams:\n")
            for g, q in table[n]:
                tail = f"\t{math.log10(back[n][g]):.3f}" if g in back[n] else ""
                out.write(f"{q:.3f}\t{' '.join(g)}{tail}\n")
        out.write("\n\\end\\\n")
    print([len(t) for t in table[1:]], a.out.stat().st_size)


if __name__ == "__main__":
    main()
