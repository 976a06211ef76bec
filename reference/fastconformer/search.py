"""The searches, one utterance at a time and as plain as possible. README.md states every rule; nemo_check.py compares
greedy and MALSD with NeMo's own decoders."""

import math
from dataclasses import dataclass, field, replace

import torch
from fusion import Automaton

NEVER = -math.inf


def log_add(a: float, b: float) -> float:
    hi = max(a, b)
    return hi if hi == NEVER else hi + math.log(math.exp(a - hi) + math.exp(b - hi))


class Transducer:
    """Predictor and joint of a transformers model with explicit state."""

    def __init__(self, model):
        self.model = model
        self.blank = model.config.blank_token_id
        self.size = model.config.vocab_size  # with blank
        self.durations = list(getattr(model.config, "durations", []))

    def start(self):
        return self.step(self.blank, None)

    def step(self, token: int, state):
        emb = self.model.decoder.embedding(torch.tensor([[token]]))
        out, state = self.model.decoder.lstm(emb, state)
        return self.model.decoder.decoder_projector(out)[0, 0], state

    def joint(self, frame: torch.Tensor, pred: torch.Tensor) -> torch.Tensor:
        return self.model.joint.head(self.model.joint.activation(frame + pred))


@dataclass
class Fusion:
    """Automata with their weights. `mode` and `pruning` matter to MALSD alone."""

    parts: list[tuple[Automaton, float]]
    mode: str = "no_score"
    pruning: str = "late"
    size: int = 0  # tokens without blank

    def start(self) -> tuple[int, ...]:
        return tuple(a.start for a, _ in self.parts)

    def scores(self, states: tuple[int, ...]) -> torch.Tensor:
        rows = [torch.tensor(a.scores(s, self.size)) * w for (a, w), s in zip(self.parts, states)]
        return torch.stack(rows).sum(0)

    def step(self, states: tuple[int, ...], token: int) -> tuple[int, ...]:
        return tuple(a.step(s, token)[1] for (a, _), s in zip(self.parts, states))

    def cost(self, states: tuple[int, ...], token: int) -> float:
        return sum(w * a.step(s, token)[0] for (a, w), s in zip(self.parts, states))

    @property
    def alpha(self) -> float:
        return sum(w for _, w in self.parts)


def confidence(logp: torch.Tensor, alpha: float = 0.33) -> float:
    """Tsallis entropy of a label distribution, mapped to 1 (certain) ... 0 (uniform) through an exponential."""
    floor = math.exp((1 - len(logp) ** (1 - alpha)) / (1 - alpha))
    entropy = ((alpha * logp).exp().sum() - 1) / (1 - alpha)
    return (math.exp(-float(entropy)) - floor) / (1 - floor)


@dataclass
class Greedy:
    tokens: list[int] = field(default_factory=list)
    frames: list[int] = field(default_factory=list)
    durations: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    steps: list[list[int]] = field(default_factory=list)  # frame, label (, duration) of every joint call
    logits: list[torch.Tensor] = field(default_factory=list)
    state: tuple = ()
    jump: int = 0  # frames that the last duration reaches past the end
    margin: float = math.inf  # smallest distance of an argmax to the runner-up

    def report(self) -> dict:
        out = {"tokens": self.tokens, "frames": self.frames, "logprobs": self.logprobs}
        out |= {"confidence": self.confidence, "steps": self.steps}
        if self.durations:
            out["durations"] = self.durations
        return out


def _margin(z: torch.Tensor) -> float:
    top = z.topk(2).values
    return float(top[0] - top[1])


def greedy(
    p: Transducer, enc: torch.Tensor, max_symbols: int = 10, state=None, first: int = 0, jump: int = 0, fusion=None
):
    """RNN-T and TDT. `enc`: projected frames. `first`: number of frame 0; `state`, `jump`: from the chunk before."""
    out = Greedy()
    pred, lstm, fused = state or (*p.start(), fusion.start() if fusion else ())
    t, here = jump, 0
    while t < enc.shape[0]:
        z = p.joint(enc[t], pred)
        out.logits.append(z)
        labels = z[: p.size]
        k = int(labels.argmax())
        out.margin = min(out.margin, _margin(labels))
        if fusion and k != p.blank:
            biased = labels[: p.size - 1] + fusion.scores(fused)
            k = int(biased.argmax())
            out.margin = min(out.margin, _margin(biased))
        if p.durations:
            d = p.durations[int(z[p.size :].argmax())]
            out.margin = min(out.margin, _margin(z[p.size :]))
            d = max(d, 1) if k == p.blank else d
        else:
            d = int(k == p.blank)
        out.steps.append([first + t, k, d] if p.durations else [first + t, k])
        if k != p.blank:
            out.tokens.append(k)
            out.frames.append(first + t)
            logp = labels.log_softmax(-1)
            out.logprobs.append(float(logp[k]))
            out.confidence.append(confidence(logp))
            if p.durations:
                out.durations.append(d)
            pred, lstm = p.step(k, lstm)
            fused = fusion.step(fused, k) if fusion else ()
            here += 1
            if d == 0 and here >= max_symbols:
                d = 1
        if d:
            here = 0
        t += d
    out.state = (pred, lstm, fused)
    out.jump = t - enc.shape[0]
    return out


@dataclass
class Hyp:
    score: float
    pred: torch.Tensor = None
    lstm: tuple = None
    tokens: tuple = ()
    frames: tuple = ()
    durations: tuple = ()
    t: int = 0
    here: int = 0  # labels since the last advance in time
    fused: tuple = ()


def _nbest(hyps: list[Hyp]) -> list[dict]:
    rows = [
        {
            "tokens": list(h.tokens),
            "frames": list(h.frames),
            "score": h.score,
            "normalised": h.score / (len(h.tokens) + 1),
        }
        | ({"durations": list(h.durations)} if h.durations else {})
        for h in hyps
        if h.score > NEVER
    ]
    return sorted(rows, key=lambda r: -r["normalised"])


def _candidates(
    p: Transducer, h: Hyp, z: torch.Tensor, beam: int, fusion
) -> tuple[list[tuple[float, int, int]], float, int]:
    """The `beam` best (score, label, duration) of one hypothesis; the score and duration of a forced blank."""
    logp = z[: p.size].log_softmax(-1)
    blank = float(logp[p.blank])
    allowed = None
    if fusion:
        bonus = fusion.scores(h.fused)
        not_blank = math.log1p(-min(math.exp(blank), 1 - 1e-2))
        weighted = fusion.mode == "lm_weighted_full"
        if fusion.pruning == "early":
            allowed = logp.topk(beam).indices
        labels = logp[: p.size - 1] + bonus + (fusion.alpha * not_blank if weighted else 0.0)
        fused_blank = blank * (1 + fusion.alpha) if weighted else blank
        logp = torch.cat([labels, torch.tensor([fused_blank])])
        if fusion.pruning == "late":
            blank = fused_blank
    if allowed is not None:
        kept = torch.full_like(logp, NEVER)
        kept[allowed] = logp[allowed]
        logp = kept
    if not p.durations:
        v, i = logp.topk(beam)
        return [(s, k, int(k == p.blank)) for s, k in zip(v.tolist(), i.tolist())], blank, 1
    durp = z[p.size :].log_softmax(-1)
    both = (logp[:, None] + durp[None, :]).flatten()
    v, i = both.topk(beam)
    out = []
    for s, j in zip(v.tolist(), i.tolist()):
        k, d = divmod(j, len(p.durations))
        out.append((s, k, max(p.durations[d], 1) if k == p.blank else p.durations[d]))
    return out, blank + float(durp.max()), max(out[0][2], 1)


def malsd(
    p: Transducer,
    enc: torch.Tensor,
    beam: int,
    max_symbols: int = 10,
    fusion=None,
    hyps=None,
    first: int = 0,
    by_time: bool = True,
):
    """Every slot has its own time; finished slots keep competing. Returns slots; `_nbest` sorts them.

    `by_time`: join equal labels only where their times are equal too. Within one call that is always so for RNN-T.
    """
    frames = enc.shape[0]
    if hyps is None:
        pred, lstm = p.start()
        empty = Hyp(0.0, pred, lstm, fused=fusion.start() if fusion else ())
        hyps = [empty] + [replace(empty, score=NEVER) for _ in range(beam - 1)]
    while any(h.t < frames for h in hyps if h.score > NEVER):
        found: list[tuple[float, int, int, int]] = []
        for slot, h in enumerate(hyps):
            if h.score == NEVER:
                continue
            if h.t >= frames:
                found.append((h.score, slot, -1, 0))
                continue
            options, blank, blank_duration = _candidates(p, h, p.joint(enc[h.t], h.pred), beam, fusion)
            if h.here >= max_symbols:
                options = [(blank, p.blank, blank_duration)]
            found += [(h.score + s, slot, k, d) for s, k, d in options if s > NEVER]
        found.sort(key=lambda c: -c[0])
        new: list[Hyp] = []
        for score, slot, k, d in found[:beam]:
            h = hyps[slot]
            if k == -1:
                new.append(h)
                continue
            n = replace(h, score=score, t=h.t + d)
            if k != p.blank:
                n.pred, n.lstm = p.step(k, h.lstm)
                n.tokens, n.frames = h.tokens + (k,), h.frames + (first + h.t,)
                n.durations = h.durations + (d,) if p.durations else ()
                n.fused = fusion.step(h.fused, k) if fusion else ()
            n.here = 0 if d else h.here + 1
            new.append(n)
        for i, a in enumerate(new):
            for j in range(i + 1, len(new)):
                b = new[j]
                if a.score > NEVER and b.score > NEVER and a.tokens == b.tokens and (a.t == b.t or not by_time):
                    a = new[i] = replace(a, score=log_add(a.score, b.score))
                    new[j] = replace(b, score=NEVER)
        hyps = new
    return hyps


def malsd_nbest(p: Transducer, enc: torch.Tensor, beam: int, max_symbols: int = 10, fusion=None) -> list[dict]:
    return _nbest(malsd(p, enc, beam, max_symbols, fusion))


def malsd_chunked(
    p: Transducer, chunks: list[torch.Tensor], beam: int, max_symbols: int = 10, fusion=None, by_time: bool = True
) -> list[dict]:
    """All slots reach the end of a chunk before the next one starts."""
    hyps, first, last = None, 0, 0
    for c in chunks:
        if hyps is not None:
            hyps = [replace(h, t=h.t - last) for h in hyps]
        hyps = malsd(p, c, beam, max_symbols, fusion, hyps, first, by_time)
        first += c.shape[0]
        last = c.shape[0]
    return _nbest(hyps)


def modified_beam(p: Transducer, enc: torch.Tensor, beam: int, fusion=None) -> list[dict]:
    """At most one label a frame; equal label strings are joined at every frame."""
    pred, lstm = p.start()
    hyps = {(): Hyp(0.0, pred, lstm, fused=fusion.start() if fusion else ())}
    for t in range(enc.shape[0]):
        held = list(hyps.values())
        rows = []
        for h in held:
            logp = p.joint(enc[t], h.pred).log_softmax(-1)
            if fusion:
                logp = torch.cat([logp[: p.size - 1] + fusion.scores(h.fused), logp[p.size - 1 :]])
            rows.append(logp + h.score)
        v, i = torch.stack(rows).flatten().topk(beam)
        hyps = {}
        for score, j in zip(v.tolist(), i.tolist()):
            slot, k = divmod(j, p.size)
            n = replace(held[slot], score=score)
            if k != p.blank:
                n.pred, n.lstm = p.step(k, held[slot].lstm)
                n.tokens, n.frames = n.tokens + (k,), n.frames + (t,)
                n.fused = fusion.step(n.fused, k) if fusion else ()
            if n.tokens in hyps:
                hyps[n.tokens].score = log_add(hyps[n.tokens].score, n.score)
            else:
                hyps[n.tokens] = n
    return _nbest(list(hyps.values()))


def ctc_greedy(logits: torch.Tensor, blank: int) -> dict:
    logp = logits.log_softmax(-1)
    best = logp.argmax(-1).tolist()
    keep = [t for t, k in enumerate(best) if k != blank and (t == 0 or best[t - 1] != k)]
    margin = min(_margin(row) for row in logits)
    return {
        "tokens": [best[t] for t in keep],
        "frames": keep,
        "logprobs": [float(logp[t, best[t]]) for t in keep],
        "confidence": [confidence(logp[t]) for t in keep],
        "frame_labels": best,
    }, margin


def ctc_prefix_beam(logits: torch.Tensor, blank: int, beam: int, fusion=None) -> list[dict]:
    """Prefix search over all labels; a prefix holds the probability of ending in blank and in its last label."""
    logp = logits.log_softmax(-1).tolist()
    beams = {(): (0.0, NEVER, 0.0, fusion.start() if fusion else ())}  # blank, label, bonus, automata
    for row in logp:
        new: dict[tuple, list] = {}

        def add(prefix, slot, value, bonus, fused):
            entry = new.setdefault(prefix, [NEVER, NEVER, bonus, fused])
            entry[slot] = log_add(entry[slot], value)

        for prefix, (pb, pl, bonus, fused) in beams.items():
            both = log_add(pb, pl)
            for k, lp in enumerate(row):
                if k == blank:
                    add(prefix, 0, both + lp, bonus, fused)
                    continue
                grown = prefix + (k,)
                more = bonus + fusion.cost(fused, k) if fusion else 0.0
                nxt = fusion.step(fused, k) if fusion else ()
                if prefix and prefix[-1] == k:
                    add(prefix, 1, pl + lp, bonus, fused)
                    add(grown, 1, pb + lp, more, nxt)
                else:
                    add(grown, 1, both + lp, more, nxt)
        rank = sorted(new.items(), key=lambda e: -(log_add(e[1][0], e[1][1]) + e[1][2]))
        beams = {prefix: tuple(e) for prefix, e in rank[:beam]}
    return [
        {"tokens": list(prefix), "score": log_add(pb, pl) + bonus, "acoustic": log_add(pb, pl)}
        for prefix, (pb, pl, bonus, _) in beams.items()
    ]
