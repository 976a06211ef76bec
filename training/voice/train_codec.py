"""Trains the codec: encoder and decoder first, then the decoder alone.

    python train_codec.py --shards shards --out run --joint 330 --total 1300

Time-based, so that it fits a lease: `--joint` seconds of encoder + decoder, after which the
encoder is frozen and written to OUT/encoder.pt (the language model's targets come from it);
then the decoder alone until `--total`. When OUT/predicted.npy appears (the language model's own
latents for a prefix of the stream), the decoder also learns from those, so that it fits what it
will be fed. OUT/codec.pt is rewritten every `--save` seconds; `--resume` starts from one, with encoder.pt beside
it, and trains the decoder only.
"""

import argparse
import copy
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
import yaml

from discriminator import Critics, critic_loss, feature_loss, fooling_loss
from model import FRAME, Decoder, Encoder, Mel
from stream import Stream, adam, graph

HERE = Path(__file__).parent
BEFORE, LEAD, AFTER = 1, 2, 1  # frames seen by the encoder only; decoded but not judged; encoder only


class Trainer:
    def __init__(self, a, device: torch.device):
        self.a, self.device = a, device
        config = yaml.safe_load((HERE / "config.yaml").read_text())
        torch.manual_seed(a.seed)
        self.encoder, self.decoder = Encoder().to(device), Decoder(config["mimi"]).to(device)
        self.critics = Critics(a.critic_width).to(device)
        self.mels = torch.nn.ModuleList(
            Mel(size, size // 4, bands) for size, bands in ((2048, 160), (1024, 120), (512, 80), (256, 40), (128, 20), (64, 10))
        ).to(device)
        self.generator = list(self.encoder.parameters()) + list(self.decoder.parameters())
        self.optimiser, self.rate = adam(self.generator, device, (0.8, 0.99), 0.0)
        self.critic_optimiser, self.critic_rate = adam(list(self.critics.parameters()), device, (0.8, 0.99), 0.0)
        self.averaged = None
        self.starts = torch.zeros(a.batch, dtype=torch.long, device=device)
        self.cut = torch.zeros(a.batch, dtype=torch.long, device=device)
        self.log = torch.zeros(5, device=device)
        self.predicted = None
        self.steps = 0
        if a.resume:
            state = torch.load(a.resume, map_location=device)
            self.encoder.load_state_dict(torch.load(a.resume.parent / "encoder.pt", map_location=device))
            self.decoder.load_state_dict(state["decoder"])
            if "critics" in state:
                self.critics.load_state_dict(state["critics"])
        self.track()

    def track(self) -> None:
        self.live = [p.data for m in (self.encoder, self.decoder) for p in m.parameters()]
        if self.averaged is None:
            self.encoder_average, self.decoder_average = copy.deepcopy(self.encoder), copy.deepcopy(self.decoder)
            self.averaged = [p.data for m in (self.encoder_average, self.decoder_average) for p in m.parameters()]

    def mel_loss(self, real: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:
        return sum((mel(real) - mel(fake)).abs().mean() for mel in self.mels)

    def latents(self, wave: torch.Tensor, joint: bool) -> torch.Tensor:
        """Latents of the decoded frames, noisy, and (later) partly the language model's."""
        if joint:
            z = self.encoder(wave, update=True)[:, BEFORE:-AFTER]
            return z + torch.randn_like(z) * self.a.noise
        with torch.no_grad():
            z = self.encoder_average(wave)[:, BEFORE:-AFTER]
            z = z + torch.randn_like(z) * (self.a.noise * torch.rand(len(z), 1, 1, device=z.device))
            if self.predicted is not None:
                index = self.starts[:, None] + torch.arange(BEFORE, BEFORE + z.shape[1], device=z.device)
                from_model = self.predicted[index].float()
                chosen = torch.rand(len(z), 1, 1, device=z.device) < self.a.predicted_share
                z = torch.where(chosen, from_model, z)
        return z

    def step(self, joint: bool, adversarial: bool) -> None:
        a = self.a
        span = BEFORE + LEAD + a.frames + AFTER
        index = self.starts[:, None] * FRAME + torch.arange(span * FRAME, device=self.device)
        wave = self.stream.audio[index].float() / 32767
        real = wave[:, (BEFORE + LEAD) * FRAME: -AFTER * FRAME]
        # caching casts across a captured step is not allowed
        cast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda", cache_enabled=False)
        fake = self.decoder(self.latents(wave, joint))[:, LEAD * FRAME:]
        spectral = self.mel_loss(real, fake)
        loss = spectral * (a.mel_weight / 6)
        zero = torch.zeros((), device=self.device)
        judged, fooled, features = zero, zero, zero
        if adversarial:
            # the critics hear the same random part of every row
            size = a.critic_frames * FRAME
            at = self.cut[:, None] + torch.arange(size, device=self.device)
            real, fake = real.gather(1, at), fake.gather(1, at)
            with cast:
                both = self.critics(torch.cat([real, fake.detach()]))
                judged = critic_loss([(x[: len(real)], 0) for x, _ in both], [(x[len(real):], 0) for x, _ in both])
            grads = torch.autograd.grad(judged, list(self.critics.parameters()))
            for p, g in zip(self.critics.parameters(), grads):
                p.grad = g.contiguous()
            torch.nn.utils.clip_grad_norm_(self.critics.parameters(), 10.0)
            self.critic_optimiser.step()
            with cast:
                with torch.no_grad():
                    on_real = self.critics(real)
                on_fake = self.critics(fake)
                fooled, features = fooling_loss(on_fake), feature_loss(on_real, on_fake)
            loss = loss + fooled * a.adversarial_weight + features * a.feature_weight
        grads = torch.autograd.grad(loss, self.generator, allow_unused=True)
        for p, g in zip(self.generator, grads):
            p.grad = None if g is None else g.contiguous()
        torch.nn.utils.clip_grad_norm_(self.generator, 5.0)
        self.optimiser.step()
        with torch.no_grad():
            torch._foreach_lerp_(self.averaged, self.live, 0.002)
            self.encoder_average.mean.copy_(self.encoder.mean)
            self.encoder_average.variance.copy_(self.encoder.variance)
            self.log.copy_(torch.stack([spectral.detach(), judged.detach(), fooled.detach(), features.detach(), loss.detach()]))

    def freeze_encoder(self) -> None:
        """No more changes to the averaged encoder; a new one gets its exact statistics."""
        if not self.a.resume:
            self.measure_encoder()
        self.encoder.load_state_dict(self.encoder_average.state_dict())
        self.generator = list(self.decoder.parameters())
        self.live = [p.data for p in self.decoder.parameters()]
        self.averaged = [p.data for p in self.decoder_average.parameters()]
        moments = {p: self.optimiser.state[p] for p in self.generator if p in self.optimiser.state}
        self.optimiser, self.rate = adam(self.generator, self.device, (0.8, 0.99), 0.0)
        for p, state in moments.items():
            self.optimiser.state[p] = state
        put(self.a.out / "encoder.pt", self.encoder_average.state_dict())

    def measure_encoder(self) -> None:
        with torch.no_grad():
            self.encoder_average.mean.zero_()
            self.encoder_average.variance.fill_(1 - 1e-5)
            frames = min(self.stream.total, 40000) // 500 * 500
            if frames == 0:
                frames = self.stream.total
            wave = self.stream.audio[: frames * FRAME].float().view(-1, min(500, frames) * FRAME) / 32767
            z = torch.cat([self.encoder_average(w).flatten(0, 1) for w in wave.split(16)])
            self.encoder_average.mean.copy_(z.mean(0))
            self.encoder_average.variance.copy_(z.var(0))

    def save(self) -> None:
        critics = {k: v.to(torch.bfloat16) for k, v in self.critics.state_dict().items()}
        put(self.a.out / "codec.pt", dict(
            decoder=self.decoder_average.state_dict(), critics=critics, steps=self.steps,
        ))

    def run(self) -> None:
        a, began = self.a, time.time()
        self.stream = Stream(a.shards, self.device, a.hours)
        while self.stream.total < a.first_hours * 45000:
            self.stream.grow(50)
            time.sleep(0.5)
        phase, replay, last_save, last_log, counted = None, None, time.time(), time.time(), 0
        frozen, seen = bool(a.resume), None
        if frozen:
            self.freeze_encoder()
        losses = []
        while True:
            passed = time.time() - began
            if passed > a.total or (a.steps and self.steps >= a.steps):
                break
            if not frozen and passed > a.joint:
                frozen = True
                self.freeze_encoder()
                print(f"[{passed:6.0f}s] encoder frozen", flush=True)
            path = a.out / "predicted.npy"
            if frozen and self.steps % 50 == 0 and path.exists() and path.stat().st_mtime != seen:
                seen = path.stat().st_mtime
                self.starts.zero_()  # the next capture may run on fewer frames
                self.stream.grow()
                given = torch.from_numpy(np.load(path)).to(self.device)[: self.stream.total]
                if self.predicted is None:
                    self.predicted = given
                else:  # in place: a captured step reads this tensor
                    common = min(len(given), len(self.predicted))
                    self.predicted[:common] = given[:common]
                print(f"[{passed:6.0f}s] learning from {len(self.predicted)} predicted frames", flush=True)
            wanted = (not frozen, self.steps >= a.plain_steps or bool(a.resume), self.predicted is not None)
            if wanted != phase:
                phase = wanted
                replay = graph(lambda: self.step(wanted[0], wanted[1]))
                print(f"[{time.time() - began:6.0f}s] phase joint={wanted[0]} adversarial={wanted[1]} predicted={wanted[2]}", flush=True)
            left = max(0.0, 1 - passed / a.total)
            rate = a.rate * min(1.0, (self.steps + 1) / 200) * min(1.0, left / a.decay) + 1e-6
            self.rate.fill_(rate)
            self.critic_rate.fill_(rate)
            limit = (len(self.predicted) if self.predicted is not None else self.stream.total) - 40
            self.starts.random_(0, max(1, limit))
            self.cut.random_(0, (a.frames - a.critic_frames) * FRAME + 1)
            replay()
            self.steps += 1
            counted += 1
            if self.steps % 200 == 0 or a.steps:
                values = [round(v, 3) for v in self.log.tolist()]
                if time.time() - last_log > 10 or a.steps:
                    speed = counted / (time.time() - last_log)
                    print(f"[{passed:6.0f}s] step {self.steps} {speed:.1f}/s mel {values[0]} critic {values[1]} fool {values[2]} "
                          f"features {values[3]} rate {rate:.1e} hours {self.stream.total / 45000:.1f}", flush=True)
                    losses.append([round(passed), self.steps, *values])
                    last_log, counted = time.time(), 0
                    if self.predicted is None:
                        self.stream.grow(60)
                if values[0] != values[0]:
                    raise SystemExit("the loss is not a number")
                if time.time() - last_save > a.save:
                    self.save()
                    last_save = time.time()
        self.save()
        (a.out / "codec-log.json").write_text(json.dumps(losses))
        print(f"codec finished: {self.steps} steps, {time.time() - began:.0f} s", flush=True)


def put(path: Path, value) -> None:
    torch.save(value, path.with_suffix(".part"))
    os.replace(path.with_suffix(".part"), path)


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--shards", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--joint", type=float, default=330)
    p.add_argument("--total", type=float, default=1300)
    p.add_argument("--save", type=float, default=120)
    p.add_argument("--resume", type=Path)
    p.add_argument("--steps", type=int, default=0, help="stop after so many steps (for a check)")
    p.add_argument("--plain-steps", type=int, default=1500, help="steps before the critics join")
    p.add_argument("--batch", type=int, default=24)
    p.add_argument("--frames", type=int, default=14)
    p.add_argument("--critic-frames", type=int, default=8)
    p.add_argument("--hours", type=float, default=200)
    p.add_argument("--first-hours", type=float, default=0.5)
    p.add_argument("--critic-width", type=int, default=32)
    p.add_argument("--noise", type=float, default=0.2)
    p.add_argument("--predicted-share", type=float, default=0.6)
    p.add_argument("--rate", type=float, default=5e-4)
    p.add_argument("--decay", type=float, default=0.35, help="last part of the time, in which the rate falls")
    p.add_argument("--mel-weight", type=float, default=25.0)
    p.add_argument("--adversarial-weight", type=float, default=1.0)
    p.add_argument("--feature-weight", type=float, default=2.0)
    p.add_argument("--seed", type=int, default=6)
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    Trainer(a, torch.device("cuda" if torch.cuda.is_available() else "cpu")).run()


if __name__ == "__main__":
    main()
