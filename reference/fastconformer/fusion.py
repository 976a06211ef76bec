"""Phrase boosting and n-gram models as back-off automata over token ids.

Both answer one question: in this state, what does token k add, and what is the next state. README.md states the rules.
"""

import math
from pathlib import Path


class Automaton:
    """States with arcs, a back-off state and a back-off weight; state 0 has every token."""

    def __init__(self):
        self.arcs: list[dict[int, tuple[float, int]]] = [{}]
        self.back: list[tuple[float, int]] = [(0.0, 0)]
        self.start = 0
        self.otherwise = 0.0  # what state 0 gives to a token without an arc

    def state(self) -> int:
        self.arcs.append({})
        self.back.append((0.0, 0))
        return len(self.arcs) - 1

    def step(self, state: int, token: int) -> tuple[float, int]:
        total = 0.0
        while token not in self.arcs[state]:
            if state == 0:
                return total + self.otherwise, 0
            weight, state = self.back[state]
            total += weight
        weight, nxt = self.arcs[state][token]
        return total + weight, nxt

    def scores(self, state: int, size: int) -> list[float]:
        return [self.step(state, k)[0] for k in range(size)]


def boosting_tree(phrases: list[list[int]], context_score: float, depth_scaling: float, weights=None) -> Automaton:
    """`weights`: a token score for each phrase instead of `context_score`; 0 means `context_score`."""
    tree = Automaton()
    token_score, node_score, ends, parent = [0.0], [0.0], [False], [(0, -1)]
    for i, phrase in enumerate(phrases):
        base = (weights[i] if weights else 0.0) or context_score
        node = 0
        for depth, token in enumerate(phrase):
            if token in tree.arcs[node]:
                child = tree.arcs[node][token][1]
                token_score[child] = max(base, token_score[child])
            else:
                child = tree.state()
                token_score.append(base if depth == 0 else base * depth_scaling + math.log(depth + 1))
                node_score.append(0.0)
                ends.append(False)
                parent.append((node, token))
            node_score[child] = node_score[node] + token_score[child]
            ends[child] = ends[child] or depth == len(phrase) - 1
            tree.arcs[node][token] = (token_score[child], child)
            node = child
    # Breadth first: a node's failure state is the longest proper suffix that is also in the tree.
    order, fail = [0], [0] * len(tree.arcs)
    for node in order:
        for token, (_, child) in tree.arcs[node].items():
            if node != 0:
                f = fail[node]
                while f != 0 and token not in tree.arcs[f]:
                    f = fail[f]
                fail[child] = tree.arcs[f][token][1] if token in tree.arcs[f] else 0
            order.append(child)
    for node in order[1:]:
        refund = 0.0 if ends[node] else node_score[fail[node]] - node_score[node]
        tree.back[node] = (refund, fail[node])
    return tree


def read_arpa(path: Path, pieces: list[str]) -> Automaton:
    """Words are token pieces. Missing tokens share <unk>, divided by their number."""
    ids = {p: i for i, p in enumerate(pieces)}
    ln10 = math.log(10)
    grams: dict[tuple[str, ...], tuple[float, float]] = {}
    order = top = 0
    for line in path.read_text().splitlines():
        if line.startswith("\\"):
            order = int(line[1]) if line.endswith("-grams:") else 0
            top = max(top, order)
        elif order and line.strip():
            logp, words, *back = line.split("\t")
            grams[tuple(words.split(" "))] = (float(logp) * ln10, float(back[0]) * ln10 if back else 0.0)
    lm = Automaton()
    states = {("<s>",): lm.state()}
    lm.back[states[("<s>",)]] = (grams[("<s>",)][1], 0)
    lm.start = states[("<s>",)]
    for gram in sorted(grams, key=len):
        logp, back = grams[gram]
        if gram[-1] in ("<s>", "</s>", "<unk>"):
            continue
        source = states[gram[:-1]] if len(gram) > 1 else 0
        if len(gram) < top:
            states[gram] = lm.state()
            lm.back[states[gram]] = (back, states[gram[1:]] if len(gram) > 1 else 0)
            target = states[gram]
        else:
            target = states[gram[1:]]
        lm.arcs[source][ids[gram[-1]]] = (logp, target)
    missing = len(pieces) - len(lm.arcs[0])
    lm.otherwise = grams[("<unk>",)][0] - (math.log(missing) if missing > 1 else 0.0)
    return lm


def make_arpa(sentences: list[list[int]], pieces: list[str], order: int = 3) -> str:
    """Add-half counts with back-off, over the pieces seen; every suffix of an n-gram is present."""
    counts: list[dict] = [{} for _ in range(order + 1)]
    for s in sentences:
        words = ["<s>", *[pieces[k] for k in s], "</s>"]
        for n in range(1, order + 1):
            for i in range(len(words) - n + 1):
                g = tuple(words[i : i + n])
                counts[n][g] = counts[n].get(g, 0) + 1
    counts[1][("<unk>",)] = 1
    total = sum(c for g, c in counts[1].items() if g != ("<s>",)) + 0.5 * len(counts[1])
    logp: dict[tuple, float] = {}
    back: dict[tuple, float] = {}
    for g, c in counts[1].items():
        logp[g] = -99.0 if g == ("<s>",) else math.log10((c + 0.5) / total)

    def prob(g: tuple) -> float:
        if g in logp:
            return logp[g]
        return back.get(g[:-1], 0.0) + prob(g[1:]) if len(g) > 1 else logp[("<unk>",)]

    for n in range(2, order + 1):
        for g, c in counts[n].items():
            logp[g] = math.log10(0.7 * c / counts[n - 1][g[:-1]])
        for h in {g[:-1] for g in counts[n]}:
            kept = [g for g in counts[n] if g[:-1] == h]
            seen = sum(10 ** logp[g] for g in kept)
            lower = sum(10 ** prob(g[1:]) for g in kept)
            back[h] = math.log10(max(1e-3, 1 - seen) / max(1e-3, 1 - lower))
    out = ["\\data\\", *[f"ngram {n}={len(counts[n])}" for n in range(1, order + 1)], ""]
    for n in range(1, order + 1):
        out.append(f"\\{n}-grams:")
        for g in sorted(counts[n]):
            tail = f"\t{back.get(g, 0.0):.6f}" if n < order else ""
            out.append(f"{logp[g]:.6f}\t{' '.join(g)}{tail}")
        out.append("")
    return "\n".join([*out, "\\end\\", ""])


def encoded_arpa(text: str, pieces: list[str], offset: int = 100) -> str:
    """The same file as NeMo's own tools write it: each token one character, chr(id + offset)."""
    ids = {p: i for i, p in enumerate(pieces)}
    out = []
    for line in text.splitlines():
        if "\t" in line:
            logp, words, *back = line.split("\t")
            coded = [w if w in ("<s>", "</s>", "<unk>") else chr(ids[w] + offset) for w in words.split(" ")]
            line = "\t".join([logp, " ".join(coded), *back])
        out.append(line)
    return "\n".join(out) + "\n"
