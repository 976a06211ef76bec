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
from transducer import ctc_loss, lattice_loss

SEGMENTS, GAP = 3, (0.05, 0.7)
WEIGHTS = {"libri": (2.0, 3.0), "speechocean": (0.5, 0.4), "an4": (0.1, 0.1), "ljspeech": (0.3, 0.3), "kokoro": (5.0, 4.5), "hibari": (0.6, 0.3),
           "flite": (0.2, 0.1), "nano": (1.0, 1.2)}  # draws at the start, at the end
ENOUGH = 600  # utterances; a source with fewer is drawn less
AHEAD = (0.12, 0.18, 0.4, 0.3)


class Trainer:
    def __init__(self, a, device: torch.device):
        self.a, self.device, self.cuda = a, device, device.type == "cuda"
        torch.manual_seed(a.seed)
        self.rng = np.random.default_rng(a.seed + a.skip)
        self.weights = WEIGHTS | {n: (float(w), float(w)) for n, w in (x.split("=") for x in a.weights)}
        self.samples = int(a.seconds * RATE) // HOP * HOP
        self.sound = Sound(device, self.samples)
        self.sp = sentencepiece.SentencePieceProcessor(model_file=str(a.tokenizer))
        self.ear = Ear().to(device)
        self.saved = list(self.ear.parameters())
        self.names = [n for n, p in self.ear.named_parameters() if p.requires_grad]
        self.parameters = [p for p in self.saved if p.requires_grad]
        self.steps = 0
        moments = self.load(a.resume) if a.resume else None
        self.fresh = moments is None
        self.average = copy.deepcopy(self.ear)
        self.live, self.averaged = [p.data for p in self.saved], [p.data for p in self.average.parameters()]
        wide = self.ear.encoder.subsampling.linear.weight  # seven times more inputs than any other matrix: a step moves its output more
        self.rates = [torch.tensor(0.0, device=device) for _ in range(3)]
        parts = ([wide], [p for p in self.parameters if p.dim() > 1 and p is not wide], [p for p in self.parameters if p.dim() < 2])
        groups = [{"params": x, "weight_decay": a.decay if i < 2 else 0.0, "lr": self.rates[i] if self.cuda else 0.0} for i, x in enumerate(parts)]
        self.optimiser = torch.optim.AdamW(groups, lr=self.rates[1] if self.cuda else 0.0, betas=(0.9, 0.98), fused=self.cuda, capturable=self.cuda)
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
        self.side = torch.tensor(a.side, device=device)
        self.log = torch.zeros(5, device=device)
        self.typical = torch.tensor(4.0, device=device)
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
        weight = np.array([(self.weights[n][0] + (self.weights[n][1] - self.weights[n][0]) * self.part) * min(1.0, len(members[n]) / ENOUGH) for n in names])
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
        alone = rng.random(b) < a.alone
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
        """Log-probabilities of blank and of the next label: [B, T, U + 1] each for the transducer; [B, T] and [B, T, U] for CTC."""
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
        return blank, label, side[:, :, BLANK], side.gather(2, tokens[:, None].expand(-1, x.shape[1], -1))

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
        return lattice_loss(blank, label, n, count).sum() / words, ctc_loss(side_blank, side_label, tokens, n, count).sum() / words

    def features(self):
        s, w = SEGMENTS, self.whole
        with torch.no_grad():
            samples = w[:, 3 * s]
            wave = self.run_rows(self.stream, w[:, :s], w[:, s: 2 * s], w[:, 2 * s: 3 * s], w[:, 3 * s + 3].float() / 1e6)
            strength = (torch.rand(len(w), device=self.device) < 0.88).float() * self.strong
            wave = self.sound.change(wave, samples, strength)
            mel, frames = self.sound.mel(wave, samples, w[:, 3 * s + 4])
            return self.run_hide(mel, frames, self.strong), frames

    @torch.no_grad()
    def start_centre(self) -> None:
        """Takes the first batch's mean out of what the blocks see."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.cuda, cache_enabled=False):
            self.ear.encoder.subsampling(*self.features())
        for ear in (self.ear, self.average):
            ear.encoder.subsampling.centre.copy_(self.ear.encoder.subsampling.seen)

    def gradients(self, mel, frames):
        s, w = SEGMENTS, self.whole
        main, side = self.losses(mel, frames, w[:, 3 * s + 1], w[:, 3 * s + 5:], w[:, 3 * s + 2])
        return main, side, torch.autograd.grad(main + self.side * side, self.parameters)

    def step(self) -> None:
        main, side, grads = self.gradients(*self.features())
        norm = torch.nn.utils.get_total_norm(grads)
        usual = torch.isfinite(norm) & (norm < 8 * self.typical)  # a spike is left out
        scale = torch.where(usual, (self.a.clip * self.typical / (norm + 1e-6)).clamp(max=1.0), torch.zeros_like(norm))
        self.typical.lerp_(torch.minimum(torch.nan_to_num(norm, nan=0.0, posinf=1e9), 2 * self.typical).clamp(0.05, 20.0), 0.02)
        for p, g in zip(self.parameters, grads):
            p.grad = torch.nan_to_num(g.contiguous(), nan=0.0, posinf=0.0, neginf=0.0) * scale
        self.optimiser.step()
        subsampling = self.ear.encoder.subsampling
        with torch.no_grad():
            subsampling.recentre(0.02)
            torch._foreach_mul_(self.averaged, 1 - self.take)
            torch._foreach_add_(self.averaged, torch._foreach_mul(self.live, self.take))
            away = (subsampling.seen - subsampling.centre).norm() / subsampling.seen.norm().clamp(min=1e-6)
            self.log.copy_(torch.stack([main.detach(), side.detach(), norm.detach(), scale, away]))

    def settle(self, say) -> None:
        """Compiles; goes on without where that fails or gives other gradients than the plain step (dropout and rounding apart)."""
        try:
            mel, frames = self.features()
            main, side, fast = self.gradients(mel, frames)
            say(f"compiled: losses {float(main):.4f} {float(side):.4f}")
            good = True
        except Exception as error:
            say(f"compilation failed: {error!r}"[:600])
            good = False
        try:
            if good:
                with torch.compiler.set_stance("force_eager"):
                    main2, side2, slow = self.gradients(mel, frames)
                a, b = (torch.cat([g.flatten().float() for g in x]) for x in (fast, slow))
                alike = float(F.cosine_similarity(a, b, 0))
                each = sorted((round(float(F.cosine_similarity(x.flatten().float(), y.flatten().float(), 0)), 2), round(float(x.norm() / y.norm()), 2), n)
                              for x, y, n in zip(fast, slow, self.names) if x.dim() > 1)
                say(f"plain: losses {float(main2):.4f} {float(side2):.4f}; gradients' cosine {alike:.3f}, norms {float(a.norm()):.3f} {float(b.norm()):.3f}; worst {each[:4]}")
                good = abs(float(main - main2)) < 0.1 and abs(float(side - side2)) < 0.1 and alike > 0.6 and 0.7 < float(a.norm() / b.norm()) < 1.4
        except Exception as error:  # out of memory, say: no reason to doubt the compiled step
            say(f"not compared: {error!r}"[:400])
        if not good:
            say("going on without compilation")
            torch.compiler.set_stance("force_eager")

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
        torch.cuda.synchronize() if self.cuda else None
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

        def vectors(name, like):
            flat = torch.cat([torch.load(folder / f"{name}-{i}.pt", map_location="cpu") for i in range(2)]).float()
            return [x.view(p.shape) for x, p in zip(flat.split([p.numel() for p in like]), like)]

        with torch.no_grad():
            for p, x in zip(self.saved, vectors("ear", self.saved)):
                p.copy_(x)
        return (vectors("m", self.parameters), vectors("v", self.parameters)) if (folder / "v-1.pt").exists() else None

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

    def compile(self) -> None:
        """Compiles by parts: the blocks are alike, so one compilation serves them all."""
        for name in ("recompile_limit", "cache_size_limit"):
            if hasattr(torch._dynamo.config, name):
                setattr(torch._dynamo.config, name, 64)
        for layer in self.ear.encoder.layers:
            layer.compile(dynamic=False)
        subsampling = self.ear.encoder.subsampling
        subsampling.convolve = torch.compile(subsampling.convolve, dynamic=False)
        self.run_score = torch.compile(self.score, dynamic=False)
        self.run_rows = torch.compile(self.sound.rows, dynamic=False)
        self.run_hide = torch.compile(self.sound.hide, dynamic=False)

    def everything(self) -> list[torch.Tensor]:
        return self.live + self.averaged + [self.optimiser.state[p][k] for p in self.parameters for k in ("exp_avg", "exp_avg_sq")] + [self.typical]

    @torch.no_grad()
    def guard(self, loss: float) -> bool:
        """Keeps a copy of a healthy state; goes back to it when the loss has jumped, the first two times with half the rate."""
        if self.kept is None:
            self.kept, self.healthy = [t.clone() for t in self.everything()], loss
        elif not loss < self.healthy + 0.8:
            torch._foreach_copy_(self.everything(), self.kept)
            self.slower = max(0.25, 0.5 * self.slower)
            return False
        elif loss < self.healthy + 0.25:
            torch._foreach_copy_(self.kept, self.everything())
            self.healthy = min(loss, 0.7 * self.healthy + 0.3 * loss)
        else:
            self.healthy += 0.02  # the data may have become harder
        return True

    def capture(self, say):
        """Warms up and captures the step; gives what runs one step."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for i in range(3):
                self.step()
                torch.cuda.synchronize()
                say(f"warm-up {i}: {[round(x, 3) for x in self.log.tolist()]} memory {torch.cuda.max_memory_allocated() / 1e9:.1f} GB")
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.empty_cache()
        try:
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured, capture_error_mode="thread_local"):
                self.step()
            say("captured")
            return captured.replay
        except Exception as error:
            say(f"not captured: {error!r}"[:500])
            torch.cuda.synchronize()
            return self.step

    def run(self) -> None:
        a = self.a
        began = time.time()
        say = lambda text: print(f"[{time.time() - began:6.0f}s] {text}", flush=True)
        self.run_score, self.run_rows, self.run_hide = self.score, self.sound.rows, self.sound.hide
        compiled = not a.eager and (self.cuda or a.compile)
        if compiled:
            self.compile()
        if self.cuda:
            transducer.USE_TRITON = check_triton(self.device)
            say(f"triton lattice: {transducer.USE_TRITON}")
        while not (a.shards.exists() and any(p.is_dir() for p in a.shards.iterdir())):
            time.sleep(0.5)
        while sum(len(v) for v in self.members.values()) < a.least:
            time.sleep(0.5)
            self.grow()
        self.judges: dict = {}
        say(f"data {sum(len(v) for v in self.members.values())} utterances")
        if not self.steps:
            self.start_heads()
        self.history = []
        deadline = a.deadline or began + a.total
        line: queue.Queue = queue.Queue(8)
        threading.Thread(target=self.feed, args=(line,), daemon=True).start()
        self.ear.train()
        self.whole.copy_(line.get())
        if not self.steps:
            with torch.compiler.set_stance("force_eager"):
                self.start_centre()
        if compiled:
            self.settle(say)
        replay = self.capture(say) if self.cuda else self.step
        self.ready = True
        start = time.time()
        total = deadline - start
        last_log, last_save, last_judge, counted = time.time(), time.time(), time.time() - a.judge_every + 50, 0
        sums, polls = torch.zeros(5, device=self.device), 0
        self.kept, self.healthy, self.slower, before, looked = None, 99.0, 1.0, torch.zeros(5, device=self.device), 0
        while True:
            done = (time.time() - start) / total
            if done >= 1 or (a.steps and counted >= a.steps):
                break
            self.part = min(1.0, done) if not a.late else 1.0
            warm = min(1.0, ((counted if self.fresh else self.steps) + 1) / a.warm)
            fall = min(1.0, max(0.0, (done - a.hold) / (1 - a.hold)))
            rate = self.slower * a.rate * warm * max(0.003, 0.5 * (1 + math.cos(math.pi * fall)))
            for own, group, part in zip(self.rates, self.optimiser.param_groups, (0.3, 1.0, 1.0)):
                own.fill_(rate * part)
                if not self.cuda:
                    group["lr"] = rate * part
            self.take.fill_(max(a.average, 9 / (10 + counted)))
            self.strong.fill_(min(a.strength, self.steps / a.ramp))
            self.side.fill_(max(a.side, a.side + (1 - a.side) * (1 - self.steps / a.ramp)))
            self.whole.copy_(line.get(), non_blocking=True)
            replay()
            self.steps += 1
            counted += 1
            sums += self.log
            polls += 1
            if self.steps % a.look == 0 or a.steps:
                torch.cuda.synchronize() if self.cuda else None
                if counted - looked >= 50:
                    if counted > 150 and not self.guard(float((sums - before)[0]) / (counted - looked)):
                        say(f"step {self.steps}: back to the last healthy state, rate x {self.slower:.2f}")
                    before.copy_(sums)
                    looked = counted
                if time.time() - last_log > a.look / 5:
                    values = [round(x, 4) for x in (sums / polls).tolist()]
                    say(f"step {self.steps} {polls / (time.time() - last_log):.1f}/s loss {values} rate {rate:.1e} done {100 * done:.0f} % audio {self.filled / RATE / 3600:.1f} h "
                        f"{ {k: len(v) for k, v in self.members.items()} } queue {line.qsize()}")
                    self.history.append([round(time.time() - began), self.steps, *values])
                    last_log = time.time()
                    sums.zero_()
                    before.zero_()
                    polls, looked = 0, counted
                if (a.out / "deadline").exists():
                    try:
                        total = float((a.out / "deadline").read_text()) - start
                    except ValueError:
                        pass
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
        (a.out / "finished").touch()
        got = {r: self.judge(r) for r in LOOKAHEADS}
        say(f"JUDGE final {got}")
        self.history.append([round(time.time() - began), self.steps, got])
        self.save()
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
    p.add_argument("--save", type=float, default=60)
    p.add_argument("--judge", nargs="*", default=[], help="NAME=PACK")
    p.add_argument("--judge-every", type=float, default=90)
    p.add_argument("--libopus")
    p.add_argument("--take-in", type=float, default=5)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--seconds", type=float, default=17.6)
    p.add_argument("--labels", type=int, default=111)
    p.add_argument("--hours", type=float, default=200, help="room for sound on the device")
    p.add_argument("--rate", type=float, default=8e-4)
    p.add_argument("--warm", type=int, default=1000)
    p.add_argument("--ramp", type=int, default=2500, help="steps until the changes of sound are at full strength and CTC's weight is down from 1 to --side")
    p.add_argument("--strength", type=float, default=0.8, help="part of the rows that are changed in the end")
    p.add_argument("--hold", type=float, default=0.3, help="part of the time before the rate falls")
    p.add_argument("--weights", nargs="*", default=[], help="SOURCE=DRAWS, in place of WEIGHTS")
    p.add_argument("--late", action="store_true", help="the mix of the end from the start")
    p.add_argument("--decay", type=float, default=0.02)
    p.add_argument("--clip", type=float, default=1.5, help="times the usual norm of the gradient")
    p.add_argument("--drop", type=float, default=0.08)
    p.add_argument("--side", type=float, default=0.3, help="weight of CTC in the end")
    p.add_argument("--average", type=float, default=0.002)
    p.add_argument("--least", type=int, default=200, help="utterances to start with")
    p.add_argument("--eager", action="store_true", help="no compilation")
    p.add_argument("--compile", action="store_true", help="compilation on a CPU too")
    p.add_argument("--look", type=int, default=50, help="steps between looks at the clock and the loss")
    p.add_argument("--steps", type=int, default=0, help="stop after so many steps (for a check)")
    p.add_argument("--alone", type=float, default=0.35, help="part of the rows that hold one utterance")
    p.add_argument("--seed", type=int, default=6)
    p.add_argument("--skip", type=int, default=0, help="added to the seed of the draws")
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    Trainer(a, torch.device("cuda" if torch.cuda.is_available() else "cpu")).run()


if __name__ == "__main__":
    main()
