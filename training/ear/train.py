"""Trains the ear on whatever shards are there, by the clock.

    python train.py --shards shards --tokenizer tokenizer.model --out run --total 1500

New shards are taken in every few seconds. OUT/ear-*.pt (averaged weights, float16), OUT/m-*.pt and OUT/v-*.pt
(moments, bfloat16) and OUT/meta.json are rewritten every `--save` seconds; `--resume DIR` starts from such a
set, with its step count. `--judge NAME=PACK` names a pack whose word error rate is logged now and then (it has no other use).
"""

import argparse
import copy
import json
import math
import os
import queue
import threading
import time
from pathlib import Path

import numpy as np
import sentencepiece
import torch
import torch._dynamo
from torch.nn import functional as F

import transducer
from decode import errors, greedy
from model import BLANK, CONFIG, LOOKAHEADS, Ear
from sound import HOP, RATE, Sound
from transducer import lattice_loss

SEGMENTS, GAP = 3, (0.05, 0.7)
WEIGHTS = {"libri": (2.4, 4.0), "speechocean": (0.5, 0.3), "an4": (0.08, 0.08), "ljspeech": (0.3, 0.3), "kokoro": (3.5, 3.5), "hibari": (1.0, 0.5),
           "flite": (0.3, 0.2), "nano": (1.1, 1.3)}  # draws at the start, at the end
AHEAD = (0.12, 0.18, 0.4, 0.3)


class Trainer:
    def __init__(self, a, device: torch.device):
        self.a, self.device, self.cuda = a, device, device.type == "cuda"
        torch.manual_seed(a.seed)
        self.rng = np.random.default_rng(a.seed + a.skip)
        self.samples = int(a.seconds * RATE) // HOP * HOP
        self.sound = Sound(device, self.samples)
        self.sp = sentencepiece.SentencePieceProcessor(model_file=str(a.tokenizer))
        self.ear = Ear().to(device)
        self.names = [n for n, _ in self.ear.named_parameters()]
        self.parameters = list(self.ear.parameters())
        self.steps = 0
        moments = self.load(a.resume) if a.resume else None
        self.fresh = moments is None
        self.average = copy.deepcopy(self.ear)
        self.live, self.averaged = [p.data for p in self.parameters], [p.data for p in self.average.parameters()]
        self.rate = torch.tensor(0.0, device=device)
        groups = [{"params": [p for p in self.parameters if p.dim() > 1], "weight_decay": a.decay}, {"params": [p for p in self.parameters if p.dim() < 2], "weight_decay": 0.0}]
        self.optimiser = torch.optim.AdamW(groups, lr=self.rate if self.cuda else 1e-3, betas=(0.9, 0.98), fused=self.cuda, capturable=self.cuda)
        if moments:
            for p, m, v in zip(self.parameters, *moments):
                self.optimiser.state[p] = {"step": torch.tensor(float(self.steps), device=device), "exp_avg": m.to(device), "exp_avg_sq": v.to(device)}
        self.stream = torch.zeros(int(a.hours * 3600 * RATE) + 4 * RATE, dtype=torch.int16, device=device)
        self.filled, self.seen = 0, set()
        self.first, self.length, self.token_first, self.token_count = ([] for _ in range(4))
        self.tokens: list[np.ndarray] = []
        self.token_total = 0
        self.members: dict[str, list[int]] = {}
        self.tables = None
        b = a.batch
        self.whole = torch.zeros(b, 3 * SEGMENTS + 5 + a.labels, dtype=torch.long, device=device)
        self.strong, self.take = torch.tensor(1.0, device=device), torch.tensor(1.0, device=device)
        self.log = torch.zeros(5, device=device)
        self.typical = torch.tensor(5.0, device=device)
        self.part = 0.0
        self.ready = False  # no other thread may touch the device while a step is being captured

    # -- data
    def grow(self) -> None:
        for folder in sorted(p for p in self.a.shards.iterdir() if p.is_dir()):
            for path in sorted(folder.glob("*.npz")):
                if path in self.seen or path.name.endswith(".part.npz"):
                    continue
                try:
                    with np.load(path) as shard:
                        audio, lengths, texts = shard["audio"], shard["lengths"], shard["texts"]
                except Exception:
                    continue
                self.seen.add(path)
                if self.filled + len(audio) > len(self.stream) - RATE or not len(audio):
                    continue
                self.stream[self.filled: self.filled + len(audio)] = torch.from_numpy(audio).to(self.device)
                at = self.filled
                for n, text, tokens in zip(lengths.tolist(), texts, self.sp.encode([str(t) for t in texts])):
                    if tokens and len(tokens) <= self.a.labels and n <= self.samples * 1.1 and 0 not in tokens and len(tokens) < n / RATE * 12.5:
                        self.members.setdefault(folder.name, []).append(len(self.first))
                        self.first.append(at)
                        self.length.append(n)
                        self.token_first.append(self.token_total)
                        self.token_count.append(len(tokens))
                        self.tokens.append(np.array(tokens, np.int64))
                        self.token_total += len(tokens)
                    at += n
                self.filled += len(audio)
        flat = np.concatenate(self.tokens + [np.zeros(512, np.int64)])
        self.tables = tuple(np.array(x) for x in (self.first, self.length, self.token_first, self.token_count)) + (flat, {k: np.array(v) for k, v in self.members.items()})

    def rows(self) -> np.ndarray:
        """A batch in numbers: first, length, start (three each), samples, R, label count, speed in millionths, warp, labels."""
        first, length, token_first, token_count, flat, members = self.tables
        rng, b, a = self.rng, self.a.batch, self.a
        names = list(members)
        weight = np.array([WEIGHTS[n][0] + (WEIGHTS[n][1] - WEIGHTS[n][0]) * self.part for n in names])
        out = np.zeros((b, 3 * SEGMENTS + 5 + a.labels), np.int64)
        drawn = rng.choice(len(names), (b, SEGMENTS + 1), p=weight / weight.sum())
        pick = np.zeros((b, SEGMENTS + 1), np.int64)
        for i, n in enumerate(names):
            where = drawn == i
            pick[where] = members[n][rng.integers(0, len(members[n]), where.sum())]
        speed = np.where(rng.random(b) < 0.35, 1.0, rng.uniform(0.86, 1.18, b))
        speed = np.maximum(speed, length[pick[:, 0]] / (self.samples - 200.0))
        at = np.round(rng.uniform(0, 0.4, b) * RATE * (rng.random(b) < 0.7)).astype(np.int64)
        at = np.minimum(at, np.maximum(0, self.samples - (length[pick[:, 0]] / speed).astype(np.int64) - 100))
        used, labels = np.zeros(b, np.int64), np.zeros(b, np.int64)
        end = np.zeros(b, np.int64)
        row_tokens = out[:, 3 * SEGMENTS + 5:]
        alone = rng.random(b) < 0.35
        for k in range(SEGMENTS + 1):
            u = pick[:, k]
            n = np.ceil(length[u] / speed).astype(np.int64)
            ok = (at + n <= self.samples) & (labels + token_count[u] <= a.labels) & (used < SEGMENTS) & ((k == 0) | ~alone)
            for r in np.flatnonzero(ok):
                s, c = used[r], token_count[u[r]]
                out[r, s], out[r, SEGMENTS + s], out[r, 2 * SEGMENTS + s] = first[u[r]], length[u[r]], at[r]
                row_tokens[r, labels[r]: labels[r] + c] = flat[token_first[u[r]]: token_first[u[r]] + c]
                labels[r] += c
                used[r] += 1
                end[r] = at[r] + n[r]
                at[r] = end[r] + int(rng.uniform(*GAP) * RATE)
        tail = (rng.uniform(0, 0.6, b) * RATE).astype(np.int64)
        out[:, 3 * SEGMENTS] = np.minimum(np.maximum(end, 4800) + tail, self.samples)
        out[:, 3 * SEGMENTS + 1] = rng.choice(LOOKAHEADS, b, p=AHEAD)
        out[:, 3 * SEGMENTS + 2] = labels
        out[:, 3 * SEGMENTS + 3] = (speed * 1e6).astype(np.int64)
        out[:, 3 * SEGMENTS + 4] = np.where(rng.random(b) < 0.4, 12, rng.integers(0, Sound.WARPS, b))
        return out

    def feed(self, line: queue.Queue) -> None:
        last = time.time()
        while True:
            if self.ready and time.time() - last > self.a.take_in:
                self.grow()
                last = time.time()
            line.put(torch.from_numpy(self.rows()))

    # -- model
    def score(self, ear: Ear, x, g, tokens):
        """Log-probabilities of blank and of the next label, [B, T, U + 1] each, for the transducer and the encoder-only head."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.cuda, cache_enabled=False):
            f = ear.encoder_projector(x)
            logits = ear.joint(f[:, :, None], g[:, None].to(f.dtype))
            side = ear.auxiliary(x)
        v = torch.arange(logits.shape[-1], device=x.device)
        next_label = F.pad(tokens, (0, 1))
        total = torch.logsumexp(logits.float(), -1)
        label = torch.where(v == next_label[:, None, :, None], logits.float(), 0.0).sum(-1) - total
        blank = torch.where(v == BLANK, logits.float(), 0.0).sum(-1) - total
        side = torch.log_softmax(side.float(), -1)
        t, u = x.shape[1], next_label.shape[1]
        side_label = side.gather(2, next_label[:, None].expand(-1, t, -1))
        side_blank = side[:, :, BLANK:].expand(-1, -1, u)
        return blank, label, side_blank, side_label

    @torch.no_grad()
    def start_heads(self) -> None:
        """Lets both heads start from the labels' own frequencies, so that no layer must learn a constant."""
        count = np.bincount(np.concatenate(self.tokens), minlength=CONFIG["vocabulary"])[: CONFIG["vocabulary"]] + 1.0
        count[BLANK] = 0
        share = 0.25 * count / count.sum()
        share[BLANK] = 0.75
        bias = torch.from_numpy(np.log(share)).float().to(self.device)
        for ear in (self.ear, self.average):
            for head in (ear.joint.head, ear.auxiliary):
                head.bias.copy_(bias)
                head.weight.mul_(0.5)

    def losses(self, mel, frames, ahead, tokens, count):
        with torch.autocast(self.device.type, enabled=False):
            g = F.dropout(self.ear.decoder(tokens), self.a.drop, True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.cuda, cache_enabled=False):
            x, n = self.ear.encoder(mel, frames, ahead, self.a.drop)
        blank, label, side_blank, side_label = self.run_score(self.ear, x, g, tokens)
        words = count.sum().clamp(min=1)
        main = lattice_loss(blank, label, n, count).sum() / words
        side = lattice_loss(side_blank.contiguous(), side_label, n, count).sum() / words
        return main, side

    def features(self):
        s, w = SEGMENTS, self.whole
        with torch.no_grad():
            samples = w[:, 3 * s]
            wave = self.run_rows(self.stream, w[:, :s], w[:, s: 2 * s], w[:, 2 * s: 3 * s], w[:, 3 * s + 3].float() / 1e6)
            strength = (torch.rand(len(w), device=self.device) < 0.88).float() * self.strong
            wave = self.sound.change(wave, samples, strength)
            mel, frames = self.sound.mel(wave, samples, w[:, 3 * s + 4])
            return self.run_hide(mel, frames, self.strong), frames

    def step(self) -> None:
        s, w = SEGMENTS, self.whole
        mel, frames = self.features()
        main, side = self.losses(mel, frames, w[:, 3 * s + 1], w[:, 3 * s + 5:], w[:, 3 * s + 2])
        grads = torch.autograd.grad(main + self.a.side * side, self.parameters)
        norm = torch.nn.utils.get_total_norm(grads)
        usual = torch.isfinite(norm) & (norm < 6 * self.typical)  # a spike is left out
        scale = torch.where(usual, (self.a.clip / (norm + 1e-6)).clamp(max=1.0), torch.zeros_like(norm))
        self.typical.lerp_(torch.nan_to_num(norm, nan=30.0, posinf=30.0).clamp(max=30.0), 0.02)
        for p, g in zip(self.parameters, grads):
            p.grad = torch.nan_to_num(g.contiguous(), nan=0.0, posinf=0.0, neginf=0.0) * scale
        self.optimiser.step()
        with torch.no_grad():
            torch._foreach_mul_(self.averaged, 1 - self.take)
            torch._foreach_add_(self.averaged, torch._foreach_mul(self.live, self.take))
            wrong = torch.stack([g.norm() for g, n in zip(grads, self.names) if n.endswith("k_proj.bias")]).max()  # must be 0: see README
            self.log.copy_(torch.stack([main.detach(), side.detach(), norm.detach(), scale, wrong]))

    # -- judging
    def load_judges(self) -> None:
        """Takes in the packs that are there by now."""
        from opus import library, read_pack
        for name, path in (j.split("=") for j in self.a.judge):
            if name not in self.judges and Path(path).exists():
                items = sorted(read_pack(Path(path), library(self.a.libopus)), key=lambda x: len(x[0]))
                groups = []
                for i in range(0, len(items), 48):
                    part = items[i: i + 48]
                    wave = np.zeros((len(part), -(-max(len(w) for w, _ in part) // HOP) * HOP), np.float32)
                    for r, (w, _) in enumerate(part):
                        wave[r, : len(w)] = w / 32768
                    n = torch.tensor([len(w) for w, _ in part], device=self.device)
                    groups.append((*self.sound.mel(torch.from_numpy(wave).to(self.device), n), [t for _, t in part]))
                self.judges[name] = groups

    @torch.no_grad()
    def judge(self, ahead: int = 6) -> dict[str, float]:
        self.load_judges()
        ear, out = self.average.eval(), {}
        for name, groups in self.judges.items():
            wrong = words = 0
            for mel, frames, texts in groups:
                with torch.autocast(self.device.type, torch.bfloat16, enabled=self.cuda):
                    x, n = ear.encoder(mel, frames, torch.full((len(mel),), ahead, device=self.device))
                for text, tokens in zip(texts, greedy(ear, x, n)):
                    wrong += errors(text.split(), self.sp.decode(tokens).split())
                    words += len(text.split())
            out[name] = round(100 * wrong / max(1, words), 2)
        return out

    # -- checkpoints
    def load(self, folder: Path):
        meta = json.loads((folder / "meta.json").read_text())
        self.steps = meta["steps"]

        def vectors(name):
            flat = torch.cat([torch.load(folder / f"{name}-{i}.pt", map_location="cpu") for i in range(2)]).float()
            return [x.view(p.shape) for x, p in zip(flat.split([p.numel() for p in self.parameters]), self.parameters)]

        with torch.no_grad():
            for p, x in zip(self.parameters, vectors("ear")):
                p.copy_(x)
        return (vectors("m"), vectors("v")) if (folder / "v-1.pt").exists() else None

    def save(self) -> None:
        out = self.a.out

        def put(name, tensors, kind):
            flat = torch.cat([t.reshape(-1).to(kind) for t in tensors]).cpu()
            for i, x in enumerate(flat.tensor_split(2)):
                torch.save(x.clone(), out / f"{name}-{i}.part")
                os.replace(out / f"{name}-{i}.part", out / f"{name}-{i}.pt")

        put("ear", self.averaged, torch.float16)
        put("m", [self.optimiser.state[p]["exp_avg"] for p in self.parameters], torch.bfloat16)
        put("v", [self.optimiser.state[p]["exp_avg_sq"] for p in self.parameters], torch.bfloat16)
        hours = {k: round(sum(self.length[u] for u in v) / RATE / 3600, 2) for k, v in self.members.items()}
        (out / "meta.json").write_text(json.dumps({"steps": self.steps, "config": CONFIG, "names": self.names, "hours": hours, "history": self.history}))

    def compile(self, **how) -> None:
        """Compiles by parts: the blocks are alike, so one compilation serves them all."""
        for name in ("recompile_limit", "cache_size_limit"):
            if hasattr(torch._dynamo.config, name):
                setattr(torch._dynamo.config, name, 64)
        for part in (*self.ear.encoder.layers, self.ear.encoder.subsampling):
            part.compile(dynamic=False, **how)
        self.run_score = torch.compile(self.score, dynamic=False, **how)
        self.run_rows = torch.compile(self.sound.rows, dynamic=False, **how)
        self.run_hide = torch.compile(self.sound.hide, dynamic=False, **how)

    def everything(self) -> list[torch.Tensor]:
        return self.live + self.averaged + [self.optimiser.state[p][k] for p in self.parameters for k in ("exp_avg", "exp_avg_sq")] + [self.typical]

    @torch.no_grad()
    def guard(self, loss: float) -> bool:
        """Keeps a copy of a healthy state; goes back to it, with a lower rate, when the loss has jumped."""
        if self.kept is None:
            self.kept, self.healthy = [t.clone() for t in self.everything()], loss
        elif not loss < self.healthy + 0.6:
            torch._foreach_copy_(self.everything(), self.kept)
            self.slower *= 0.6
            return False
        elif loss < self.healthy + 0.2:
            torch._foreach_copy_(self.kept, self.everything())
            self.healthy = min(loss, 0.7 * self.healthy + 0.3 * loss)
        return True

    def run(self) -> None:
        a = self.a
        began = time.time()
        say = lambda text: print(f"[{time.time() - began:6.0f}s] {text}", flush=True)
        self.run_score, self.run_rows, self.run_hide = self.score, self.sound.rows, self.sound.hide
        if self.cuda and not a.eager:
            self.compile()
        if self.cuda:
            transducer.USE_TRITON = check_triton(self.device)
            say(f"triton lattice: {transducer.USE_TRITON}")
        while not (a.shards.exists() and any(p.is_dir() for p in a.shards.iterdir())):
            time.sleep(0.5)
        while not self.members:
            self.grow()
            time.sleep(0.5)
        self.judges: dict = {}
        say(f"data {sum(len(v) for v in self.members.values())} utterances")
        if not self.steps:
            self.start_heads()
        self.history = []
        deadline = a.deadline or began + a.total
        line: queue.Queue = queue.Queue(8)
        threading.Thread(target=self.feed, args=(line,), daemon=True).start()
        self.ear.train()
        replay = self.step
        if self.cuda:
            self.whole.copy_(line.get())
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for i in range(3):
                    self.step()
                    torch.cuda.synchronize()
                    say(f"warm-up {i}: {[round(x, 3) for x in self.log.tolist()]} memory {torch.cuda.max_memory_allocated() / 1e9:.1f} GB")
            torch.cuda.current_stream().wait_stream(side)
            try:
                captured = torch.cuda.CUDAGraph()
                with torch.cuda.graph(captured):
                    self.step()
                replay = captured.replay
                say("captured")
            except Exception as error:
                say(f"not captured: {error!r}"[:500])
                torch.cuda.synchronize()
        self.ready = True
        start = time.time()
        total = deadline - start
        last_log, last_save, last_judge, counted = time.time(), time.time(), time.time() - a.judge_every + 40, 0
        sums, polls = torch.zeros(5, device=self.device), 0
        self.kept, self.healthy, self.slower, before = None, 99.0, 1.0, torch.zeros(5, device=self.device)
        while True:
            done = (time.time() - start) / total
            if done >= 1 or (a.steps and counted >= a.steps):
                break
            self.part = min(1.0, done) if not a.late else 1.0
            rate = a.rate * min(1.0, ((counted if self.fresh else self.steps) + 1) / a.warm) * max(0.01, 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, (done - a.hold) / (1 - a.hold))))))
            rate *= self.slower
            self.rate.fill_(rate)
            if not self.cuda:
                for group in self.optimiser.param_groups:
                    group["lr"] = rate
            self.take.fill_(max(a.average, 9 / (10 + counted)))
            self.strong.fill_(min(a.strength, self.steps / a.ramp))
            self.whole.copy_(line.get(), non_blocking=True)
            replay()
            self.steps += 1
            counted += 1
            sums += self.log
            polls += 1
            if self.steps % 50 == 0 or a.steps:
                torch.cuda.synchronize() if self.cuda else None
                if polls >= 50 and counted > 150 and not self.guard(float((sums - before)[0]) / 50):
                    say(f"step {self.steps}: back to the last healthy state, rate x {self.slower:.2f}")
                before.copy_(sums)
                if time.time() - last_log > 10 or a.steps:
                    values = [round(x, 4) for x in (sums / polls).tolist()]
                    say(f"step {self.steps} {polls / (time.time() - last_log):.1f}/s loss {values} rate {rate:.1e} audio {self.filled / RATE / 3600:.1f} h "
                        f"{ {k: len(v) for k, v in self.members.items()} } queue {line.qsize()}")
                    self.history.append([round(time.time() - began), self.steps, *values])
                    last_log = time.time()
                    sums.zero_()
                    before.zero_()
                    polls = 0
                if (a.out / "deadline").exists():
                    total = float((a.out / "deadline").read_text()) - start
                if time.time() - last_judge > a.judge_every:
                    at = time.time()
                    got = self.judge()
                    say(f"JUDGE {got} ({time.time() - at:.1f} s)")
                    self.history.append([round(time.time() - began), self.steps, got])
                    last_judge = time.time()
                if time.time() - last_save > a.save:
                    self.save()
                    last_save = time.time()
        self.save()
        say(f"JUDGE final { {r: self.judge(r) for r in LOOKAHEADS} }")
        (a.out / "finished").touch()
        say(f"finished after {self.steps} steps")
        os._exit(0)


def check_triton(device) -> bool:
    """The Triton lattice against the plain one, at the shapes and strides of training."""
    try:
        torch.manual_seed(0)
        z = (torch.randn(8, 221, 112, 3, device=device) * 2).log_softmax(-1)
        blank, label = z[..., 0].clone().requires_grad_(), z[..., 1].clone().requires_grad_()
        numbers = torch.randint(1, 112, (8, 20), device=device)
        frames, labels = torch.randint(100, 222, (8,), device=device), numbers[:, 7]
        out = []
        for transducer.USE_TRITON in (False, True):
            loss = lattice_loss(blank, label, frames, labels)
            out.append((loss.detach(), *torch.autograd.grad(loss.sum(), (blank, label))))
        worst = [float((x - y).abs().max()) for x, y in zip(*out)]
        print("triton against torch:", worst, "losses", [round(x, 1) for x in out[0][0].tolist()], flush=True)
        return worst[0] < 0.05 and max(worst[1:]) < 0.02
    except Exception as error:
        print("triton failed:", repr(error)[:300], flush=True)
        return False


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--shards", type=Path, required=True)
    p.add_argument("--tokenizer", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--total", type=float, default=1500, help="seconds")
    p.add_argument("--deadline", type=float, default=0, help="end at this Unix time instead (OUT/deadline, if there, is read again and again)")
    p.add_argument("--resume", type=Path)
    p.add_argument("--save", type=float, default=90)
    p.add_argument("--judge", nargs="*", default=[], help="NAME=PACK")
    p.add_argument("--judge-every", type=float, default=60)
    p.add_argument("--libopus")
    p.add_argument("--take-in", type=float, default=5)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--seconds", type=float, default=17.6)
    p.add_argument("--labels", type=int, default=111)
    p.add_argument("--hours", type=float, default=320, help="room for sound on the device")
    p.add_argument("--rate", type=float, default=1.2e-3)
    p.add_argument("--warm", type=int, default=1000)
    p.add_argument("--ramp", type=int, default=2500, help="steps until the changes of sound are at full strength")
    p.add_argument("--strength", type=float, default=1.0, help="part of the rows that are changed in the end")
    p.add_argument("--hold", type=float, default=0.0, help="part of the time before the rate falls")
    p.add_argument("--late", action="store_true", help="the mix of the end from the start")
    p.add_argument("--decay", type=float, default=0.01)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--drop", type=float, default=0.08)
    p.add_argument("--side", type=float, default=0.3, help="weight of the encoder-only head")
    p.add_argument("--average", type=float, default=0.001)
    p.add_argument("--eager", action="store_true")
    p.add_argument("--steps", type=int, default=0, help="stop after so many steps (for a check)")
    p.add_argument("--seed", type=int, default=6)
    p.add_argument("--skip", type=int, default=0, help="added to the seed of the draws")
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    Trainer(a, torch.device("cuda" if torch.cuda.is_available() else "cpu")).run()


if __name__ == "__main__":
    main()
