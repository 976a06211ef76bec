"""Trains the latent language model on the frozen encoder's latents.

    python train_lm.py --shards shards --texts texts --out run --total 780

Waits for OUT/encoder.pt, encodes every shard that is there (and, now and then, the new ones),
and trains for `--total` seconds from then on. The head is trained with the energy score of
`--samples` draws; the inputs are noised and, after the first tenth of the time, partly the model's
own draws. At each `--predict-at` part of the time the model's latents for the whole stream are
written to OUT/predicted.npy for the decoder. OUT/lm.pt (averaged weights) and OUT/lm-state.pt (optimiser)
are rewritten every `--save` seconds; `--resume DIR` starts from such a pair.
"""

import argparse
import copy
import json
import os
import random
import time
from pathlib import Path

import numpy as np
import sentencepiece
import torch
import yaml
from torch.nn import functional as F

from model import FRAME, LATENT, Encoder, FlowLM, energy_score
from stream import Muon, Stream, adam, graph, packed
from text import model_text

HERE = Path(__file__).parent
SHAPES = [(28, 56, 384), (46, 100, 216), (112, 240, 80)]  # tokens, frames, rows
SHORT = SHAPES[:2] + [(76, 160, 128)]  # without very long rows
ONE_SHAPE = [(72, 160, 112)]  # for short runs: a third of the compilation, no very long rows
VARIANTS = 3  # the plain segmentation and two drawn ones


class Trainer:
    def __init__(self, a, device: torch.device):
        self.a, self.device = a, device
        self.shapes = [(n, t, max(1, int(b * a.scale))) for n, t, b in (ONE_SHAPE if a.one_shape else SHORT if a.short else SHAPES)]
        torch.manual_seed(a.seed)
        random.seed(a.seed)
        config = yaml.safe_load((HERE / "config.yaml").read_text())
        self.lm = FlowLM(config["flow_lm"]).to(device)
        if a.resume:
            self.lm.load_state_dict(torch.load(a.resume / "lm.pt", map_location=device))
        self.average = copy.deepcopy(self.lm)
        self.live, self.averaged = [p.data for p in self.lm.parameters()], [p.data for p in self.average.parameters()]
        inner = [p for n, p in self.lm.named_parameters() if a.muon and p.dim() == 2 and n.startswith(("transformer.", "flow_net.res_blocks."))]
        self.adam_part = [p for p in self.lm.parameters() if not any(p is q for q in inner)]
        self.optimiser, self.rate = adam(self.adam_part, device, (0.9, 0.98), 0.01)
        self.muon = Muon(inner, self.rate)
        if a.resume and (a.resume / "lm-state.pt").exists():
            moments = torch.load(a.resume / "lm-state.pt", map_location=device)
            for p, state in zip(self.adam_part, moments):
                self.optimiser.state[p] = {k: v.float() for k, v in state.items()}
        self.log = torch.zeros(3, device=device)
        self.steps = 0

    def tokenise(self) -> None:
        a = self.a
        if (a.texts / "tokens.npz").exists():
            with np.load(a.texts / "tokens.npz") as saved:
                self.token_count, flat = saved["count"].astype(np.int64), saved["flat"].astype(np.int32)
            self.place_tokens(flat)
            return
        sp = sentencepiece.SentencePieceProcessor(model_file=str(a.texts / "tokenizer.model"))
        lines = [model_text(s) for s in (a.texts / "train.txt").read_text(encoding="utf-8").splitlines()[: a.limit or None]]
        plain = sp.encode(lines)
        kinds = [plain]
        for _ in range(VARIANTS - 1):
            drawn = sp.encode(lines, enable_sampling=True, alpha=0.25, nbest_size=-1)
            kinds.append([d if len(d) <= 1.6 * len(p) + 4 else p for d, p in zip(drawn, plain)])
        self.token_count = np.array([[len(x) for x in kind] for kind in kinds])
        self.place_tokens(np.array([t for kind in kinds for x in kind for t in x], np.int32))

    def place_tokens(self, flat: np.ndarray) -> None:
        first = np.concatenate([[0], np.cumsum(self.token_count.reshape(-1))])[:-1].reshape(self.token_count.shape)
        self.tokens = torch.from_numpy(np.concatenate([flat, np.zeros(256, np.int32)])).to(self.device)
        self.token_first = torch.from_numpy(first).to(self.device)
        self.token_counts = torch.from_numpy(self.token_count).to(self.device)

    def prepare(self) -> None:
        a, most = self.a, self.a.limit or 400000
        self.stream = Stream(a.shards, self.device, a.hours)
        self.latents = torch.zeros(self.stream.capacity + 512, LATENT, device=self.device)
        self.first, self.frames, self.spoken, self.line = (torch.zeros(most, dtype=torch.long, device=self.device) for _ in range(4))
        self.frames.fill_(4)  # so that a step before any data has frames to weigh
        self.members: list[list[int]] = [[] for _ in self.shapes]
        self.held: list[int] = []
        self.known = 0
        self.rows = [torch.zeros(b, dtype=torch.long, device=self.device) for _, _, b in self.shapes]
        self.kinds = [torch.zeros(b, dtype=torch.long, device=self.device) for _, _, b in self.shapes]
        self.own = torch.zeros((), device=self.device)
        self.encoder = Encoder().to(self.device)

    @torch.no_grad()
    def take_in(self) -> None:
        """Encodes what the stream has grown by and sorts its utterances into shapes."""
        self.stream.grow()
        last = len(self.stream.first)
        span = slice(self.known, last)
        known = self.stream
        for whole, part in ((self.first, known.first), (self.frames, known.frames), (self.spoken, known.spoken), (self.line, known.index)):
            whole[span] = torch.tensor(part[span], dtype=torch.long, device=self.device)
        for from_ in range(self.known, last, 1024):
            new = range(from_, min(last, from_ + 1024))
            order = sorted(new, key=lambda u: self.stream.frames[u])
            for group in (order[i: i + 32] for i in range(0, len(order), 32)):
                rows, longest = torch.tensor(group, device=self.device), self.stream.frames[group[-1]]
                step = torch.arange(longest, device=self.device)
                inside = step < self.frames[rows][:, None]
                place = self.first[rows][:, None] * FRAME + torch.arange(longest * FRAME, device=self.device)
                wave = self.stream.audio[place].float() / 32767 * inside.repeat_interleave(FRAME, 1)
                z = self.encoder(F.pad(wave, (4 * FRAME, 4 * FRAME)))[:, 4: 4 + longest]
                self.latents[(self.first[rows][:, None] + step)[inside]] = z[inside]
            for u in new:
                if self.stream.index[u] % 400 == 7:
                    self.held.append(u)
                elif (most := self.token_count[:, self.stream.index[u]].max()) <= self.shapes[-1][0] and self.stream.frames[u] <= self.shapes[-1][1]:
                    self.members[self.shape_of(u, most)].append(u)
        self.known = last
        self.pools = [torch.tensor(m, dtype=torch.long, device=self.device) for m in self.members]

    def shape_of(self, u: int, tokens: int) -> int:
        for i, (n, t, _) in enumerate(self.shapes):
            if tokens <= n and self.stream.frames[u] <= t:
                return i
        return len(self.shapes) - 1

    def batch(self, rows: torch.Tensor, kind: torch.Tensor, n: int, t: int):
        line = self.line[rows]
        count = self.token_counts[kind, line].clamp(max=n)
        tokens = self.tokens[self.token_first[kind, line][:, None] + torch.arange(n, device=self.device)].long()
        step = torch.arange(t, device=self.device)[None]
        target = self.latents[self.first[rows][:, None] + step]
        inside = step < self.frames[rows][:, None]
        over = (step >= self.spoken[rows][:, None]).float()
        return tokens, count, target, inside, over

    def loss(self, model: FlowLM, rows, kind, n: int, t: int, augment: bool):
        cast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda", cache_enabled=False)
        tokens, count, target, inside, over = self.batch(rows, kind, n, t)
        b = len(rows)
        previous = F.pad(target, (0, 0, 1, 0))[:, :-1]
        if augment:
            strength = self.a.noise * torch.rand(b, 1, 1, device=self.device)
            noised = previous + strength * torch.randn_like(previous)
            with torch.no_grad(), cast:
                drawn = model.flow_net(model.hidden(tokens, count, noised), torch.randn_like(noised) * 0.7).float()
            chosen = torch.rand(b, t, 1, device=self.device) < torch.rand(b, 1, 1, device=self.device) * self.own
            previous = torch.where(chosen, F.pad(drawn, (0, 0, 1, 0))[:, :-1], noised)
        with cast:
            h = model.hidden(tokens, count, previous)
            samples = model.flow_net(h[None], torch.randn(self.a.samples, *target.shape, device=self.device))
            ends = model.out_eos(h)[..., 0]
        weight = inside.float()
        score = energy_score(samples.float().flatten(1, 2), target.flatten(0, 1)).view(b, t)
        score = (score * weight).sum() / weight.sum()
        ending = F.binary_cross_entropy_with_logits(ends.float(), over, reduction="none")
        ending = (ending * weight).sum() / weight.sum()
        return score, ending

    def step(self, i: int) -> None:
        n, t, _ = self.shapes[i]
        score, ending = self.training_loss(self.lm, self.rows[i], self.kinds[i], n, t, True)
        grads = torch.autograd.grad(score + self.a.end_weight * ending, list(self.lm.parameters()))
        for p, g in zip(self.lm.parameters(), grads):
            p.grad = g.contiguous()
        norm = torch.nn.utils.clip_grad_norm_(self.lm.parameters(), 1.0)
        self.optimiser.step()
        self.muon.step()
        with torch.no_grad():
            torch._foreach_lerp_(self.averaged, self.live, self.a.average)
            self.log.copy_(torch.stack([score.detach(), ending.detach(), norm.detach()]))

    @torch.no_grad()
    def judge(self) -> list[float]:
        n, t, b = self.shapes[-1]
        totals = np.zeros(2)
        groups = [self.held[i: i + b] for i in range(0, min(len(self.held), 4 * b), b)]
        for group in groups:
            rows = torch.tensor(group, device=self.device)
            score, ending = self.loss(self.average, rows, torch.zeros_like(rows), n, t, False)
            totals += [score.item(), ending.item()]
        return [round(float(x), 4) for x in totals / max(1, len(groups))]

    @torch.no_grad()
    def predict(self) -> None:
        """The averaged model's latents for every frame of the stream, from half its own past."""
        began = time.time()
        cast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda", cache_enabled=False)
        out = torch.zeros(self.stream.total, LATENT, dtype=torch.float16, device=self.device)
        model = self.average
        order = sorted(range(self.known), key=lambda u: self.stream.frames[u])
        for i in range(0, len(order), 256):
            group = order[i: i + 256]
            rows = torch.tensor(group, device=self.device)
            t = max(self.stream.frames[u] for u in group)
            n = max(1, max(int(self.token_count[0, self.stream.index[u]]) for u in group))
            tokens, count, target, inside, _ = self.batch(rows, torch.zeros_like(rows), n, t)
            previous = F.pad(target, (0, 0, 1, 0))[:, :-1]
            for _ in range(2):
                with cast:
                    drawn = model.flow_net(model.hidden(tokens, count, previous), torch.randn_like(target) * 0.3**0.5).float()
                mixed = torch.rand(len(group), t, 1, device=self.device) < 0.5
                previous = torch.where(mixed, F.pad(drawn, (0, 0, 1, 0))[:, :-1], previous)
            where = (self.first[rows][:, None] + torch.arange(t, device=self.device))[inside]
            out[where] = drawn[inside].half()
        temporary = self.a.out / "predicted.part.npy"
        np.save(temporary, out.cpu().numpy())
        os.replace(temporary, self.a.out / "predicted.npy")
        print(f"predicted {len(out)} frames in {time.time() - began:.0f} s", flush=True)

    def save(self) -> None:
        put(self.a.out / "lm.pt", self.average.state_dict())
        put(self.a.out / "lm-state.pt", [packed(self.optimiser.state[p]) for p in self.adam_part])

    def run(self) -> None:
        a = self.a
        self.tokenise()
        print("tokenised", len(self.tokens), flush=True)
        self.prepare()
        self.training_loss = self.loss if a.eager or self.device.type == "cpu" else torch.compile(self.loss, dynamic=False)
        replays, began = {}, time.time()
        if self.device.type == "cuda":  # compile and capture while the encoder is still in training; the rate is 0
            for i in range(len(self.shapes)):
                replays[i] = graph(lambda i=i: self.step(i))
                self.stream.grow()
                print(f"shape {i} ready after {time.time() - began:.0f} s", flush=True)
        while not (a.out / "encoder.pt").exists():
            self.stream.grow(20)
            time.sleep(0.2)
        time.sleep(0.5)
        began = time.time()
        if a.deadline:
            a.total = a.deadline - began
        self.encoder.load_state_dict(torch.load(a.out / "encoder.pt", map_location=self.device))
        while not self.known or self.stream.total < a.first_hours * 45000:
            self.take_in()
            time.sleep(0.2)
        sizes = [len(m) for m in self.members]
        print(f"[{time.time() - began:6.0f}s] {self.known} utterances, {self.stream.total / 45000:.1f} h, shapes {sizes}", flush=True)
        history, to_predict = [], sorted(a.predict_at)
        last_save, last_log, counted, last_in = time.time(), time.time(), 0, time.time()
        while True:
            done = (time.time() - began) / a.total
            if done > 1 or (a.steps and self.steps >= a.steps):
                break
            if to_predict and done >= to_predict[0]:
                to_predict.pop(0)
                self.predict()
            weights = [len(m) / b for m, (_, _, b) in zip(self.members, self.shapes)]
            i = random.choices(range(len(self.shapes)), weights)[0]
            b = self.shapes[i][2]
            self.rows[i].copy_(self.pools[i][torch.randint(0, len(self.pools[i]), (b,), device=self.device)])
            self.kinds[i].copy_((torch.rand(b, device=self.device) * 5 - 2).clamp(0, VARIANTS - 1).long())  # 60 % plain
            self.own.fill_(min(1.0, max(0.0, (done - a.own_from) / 0.2)))
            warmup = min(1.0, (self.steps + 1) / 400)
            rate = a.rate * warmup * (0.02 + 0.98 * 0.5 * (1 + np.cos(np.pi * min(1.0, done))))
            self.rate.fill_(rate)
            if i not in replays:
                replays[i] = graph(lambda i=i: self.step(i))
            replays[i]()
            self.steps += 1
            counted += 1
            if self.steps % 100 == 0 or a.steps:
                values = [round(v, 4) for v in self.log.tolist()]
                if values[0] != values[0]:
                    raise SystemExit("the loss is not a number")
                if time.time() - last_log > 15 or a.steps:
                    held = self.judge()
                    passed = time.time() - began
                    speed = counted / (time.time() - last_log)
                    print(f"[{passed:6.0f}s] step {self.steps} {speed:.1f}/s train {values} held {held} own {self.own.item():.2f} "
                          f"rate {rate:.1e}", flush=True)
                    history.append([round(passed), self.steps, *values, *held])
                    last_log, counted = time.time(), 0
                if time.time() - last_in > a.take_in:
                    self.take_in()
                    last_in = time.time()
                    print(f"now {self.known} utterances, {self.stream.total / 45000:.1f} h", flush=True)
                if time.time() - last_save > a.save:
                    self.save()
                    last_save = time.time()
        self.save()
        (a.out / "lm-log.json").write_text(json.dumps(history))
        print(f"language model finished: {self.steps} steps, held {self.judge()}", flush=True)


def put(path: Path, value) -> None:
    torch.save(value, path.with_suffix(".part"))
    os.replace(path.with_suffix(".part"), path)


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--shards", type=Path, required=True)
    p.add_argument("--texts", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--total", type=float, default=780)
    p.add_argument("--save", type=float, default=120)
    p.add_argument("--resume", type=Path)
    p.add_argument("--steps", type=int, default=0, help="stop after so many steps (for a check)")
    p.add_argument("--limit", type=int, default=0, help="use this many lines only (for a check)")
    p.add_argument("--scale", type=float, default=1.0, help="multiplies the rows of each batch")
    p.add_argument("--hours", type=float, default=200)
    p.add_argument("--samples", type=int, default=8)
    p.add_argument("--noise", type=float, default=0.6)
    p.add_argument("--eager", action="store_true", help="do not compile the loss")
    p.add_argument("--own-from", type=float, default=0.1, help="part of the time after which its own draws are fed back (-1: at once)")
    p.add_argument("--predict-at", type=float, nargs="*", default=[0.5, 0.98])
    p.add_argument("--take-in", type=float, default=60, help="seconds between looks for new shards")
    p.add_argument("--first-hours", type=float, default=0, help="sound to wait for before the first step")
    p.add_argument("--deadline", type=float, default=0, help="end at this Unix time instead of after --total")
    p.add_argument("--one-shape", action="store_true")
    p.add_argument("--short", action="store_true", help="leave out rows above 160 frames or 76 tokens")
    p.add_argument("--muon", action="store_true", help="orthogonal steps for the inner matrices")
    p.add_argument("--end-weight", type=float, default=1.0)
    p.add_argument("--average", type=float, default=0.001)
    p.add_argument("--rate", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=6)
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    Trainer(a, torch.device("cuda" if torch.cuda.is_available() else "cpu")).run()


if __name__ == "__main__":
    main()
