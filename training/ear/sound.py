"""From utterances on the training device to features: cutting rows together, changing the sound, log-mel.

A row is up to three utterances with pauses between them, resampled by one factor (speed and pitch), then
reverberated, filtered, mixed with noise and other rows' speech, and scaled; vocal-tract length is changed
in the mel filters, and stripes of the spectrum are hidden. Everything has a fixed shape and no host
synchronisation, so a whole step can be captured as one CUDA graph.
"""


import numpy as np
import torch
from torch.nn import functional as F

RATE, HOP, FFT, WINDOW = 16000, 160, 512, 400
FLOOR = 2.0**-24


def slaney(bins: int = 80, warp: float = 1.0) -> np.ndarray:
    """Slaney-style mel filters [bins, FFT / 2 + 1], the spectrum read at warped frequencies."""
    def to_mel(f):
        return np.where(f < 1000, f * 3 / 200, 15 + np.log(np.maximum(f, 1e-9) / 1000) / (np.log(6.4) / 27))

    def to_hertz(m):
        return np.where(m < 15, m * 200 / 3, 1000 * np.exp((m - 15) * (np.log(6.4) / 27)))

    edges = to_hertz(np.linspace(to_mel(np.array(0.0)), to_mel(np.array(RATE / 2)), bins + 2))
    f = np.linspace(0, RATE / 2, FFT // 2 + 1)
    if warp != 1.0:  # piecewise linear, the top bin stays where it is
        knee = 4800 * min(1.0, 1 / warp)
        f = np.where(f <= knee, f * warp, RATE / 2 - (RATE / 2 - knee * warp) / (RATE / 2 - knee) * (RATE / 2 - f))
    rise = (f[None] - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - f[None]) / (edges[2:] - edges[1:-1])[:, None]
    return (np.maximum(0, np.minimum(rise, fall)) * (2 / (edges[2:] - edges[:-2]))[:, None]).astype(np.float32)


class Sound:
    WARPS = 25

    def __init__(self, device: torch.device, samples: int):
        self.device, self.samples = device, samples
        self.frames = samples // HOP
        self.long = next(n for k in range(10, 20) for n in sorted((2**k, 9 * 2**(k - 3), 5 * 2**(k - 2), 3 * 2**(k - 1))) if n >= samples + 8192)
        warps = np.linspace(0.86, 1.14, self.WARPS)
        self.filters = torch.from_numpy(np.stack([slaney(80, w).T for w in warps])).to(device)
        self.plain = torch.from_numpy(slaney(80).T).to(device)
        window = torch.hann_window(WINDOW, periodic=False, device=device)
        self.window = F.pad(window, (56, 56))
        self.hertz = torch.fft.rfftfreq(self.long, 1 / RATE, device=device)

    def rows(self, stream: torch.Tensor, first: torch.Tensor, length: torch.Tensor, start: torch.Tensor, speed: torch.Tensor):
        """stream int16 [N]; first, length (source samples), start (row samples) [B, 3]; speed [B]: [B, samples]."""
        p = torch.arange(self.samples, device=stream.device)
        out = torch.zeros(first.shape[0], self.samples, device=stream.device)
        for s in range(first.shape[1]):
            q = (p[None] - start[:, s, None]).float() * speed[:, None]
            last = length[:, s, None] - 1
            inside = (q >= 0) & (q < last)
            i = q.floor()
            x = q - i
            i = i.long()
            taps = [stream[first[:, s, None] + torch.minimum((i + k).clamp(min=0), last.clamp(min=0))].float() for k in (-1, 0, 1, 2)]
            a, b, c, d = taps
            value = b + 0.5 * x * (c - a + x * (2 * a - 5 * b + 4 * c - d + x * (3 * (b - c) + d - a)))
            out = out + torch.where(inside, value, 0.0)
        return out / 32768

    def change(self, wave: torch.Tensor, samples: torch.Tensor, strength: torch.Tensor):
        """Room, filter, noise, babble, level. strength [B]: 0 leaves a row almost alone."""
        b = wave.shape[0]

        def draw(low, high):
            return torch.rand(b, 1, device=wave.device) * (high - low) + low

        def chance(p):
            return (torch.rand(b, 1, device=wave.device) < p * strength[:, None]).float()

        inside = (torch.arange(self.samples, device=wave.device) < samples[:, None]).float()
        count = samples[:, None].float()
        power = (wave.square().sum(1, keepdim=True) / count).clamp(min=1e-9)
        x = torch.fft.rfft(wave, self.long)
        t = torch.arange(8000, device=wave.device) / RATE
        tail = torch.randn(b, 8000, device=wave.device) * torch.exp(-6.9 * t / draw(0.08, 0.6)) * (t > draw(0.002, 0.02))
        tail = tail / tail.square().sum(1, keepdim=True).clamp(min=1e-9).sqrt()
        tail = tail * chance(0.3) * 10 ** (draw(-20, 0) / 20)
        tail = F.pad(tail, (0, self.long - 8000))
        room = 1 + torch.fft.rfft(tail)
        octave = torch.log2(self.hertz.clamp(min=60) / 1000)
        gain = draw(-2.5, 2.5) * octave + draw(-4, 4) * torch.exp(-(octave - draw(-2.5, 2.8)).square() / 0.5)
        low, high = draw(0, 250) * chance(0.3), 8200 - chance(0.18) * draw(700, 4800)
        band = torch.sigmoid((self.hertz - low) / 30 + 4) * torch.sigmoid((high - self.hertz) / 80)
        x = x * room * (10 ** (gain * strength[:, None] / 20) * band)
        colour = self.hertz.clamp(min=40) ** (-0.5 * draw(0, 2.2)) * torch.exp(-(octave - draw(-3, 3)).square() * draw(0, 0.5))
        noise = torch.view_as_complex(torch.randn(b, len(self.hertz), 2, device=wave.device)) * colour
        level = torch.sqrt(2 * noise.abs().square().sum(1, keepdim=True)) / self.long
        noise = noise * (chance(0.5) * torch.sqrt(power) * 10 ** (-draw(7, 40) / 20) / level)
        others = x.roll(1, 0) + x.roll(3, 0) * draw(0, 1) + x.roll(7, 0) * draw(0, 1)
        crowd = (others.abs().square().sum(1, keepdim=True) / x.abs().square().sum(1, keepdim=True).clamp(min=1e-9)).clamp(min=1e-6)
        x = x + noise + others * (chance(0.15) * 10 ** (-draw(9, 30) / 20) / torch.sqrt(crowd))
        wave = torch.fft.irfft(x, self.long)[:, : self.samples]
        now = (wave.square().sum(1, keepdim=True) / count).clamp(min=1e-9).sqrt()
        wave = wave * (10 ** (draw(-38, -15) / 20) / now)
        wave = wave + torch.randn_like(wave) * (10 ** draw(-5.2, -3.4) * (draw(0, 1) < 0.8))
        return wave.clamp(-1, 1) * inside

    def mel(self, wave: torch.Tensor, samples: torch.Tensor, which: torch.Tensor | None = None):
        """([B, frames, 80], valid frames [B]); `which` [B] picks warped filters."""
        inside = torch.arange(wave.shape[1], device=wave.device) < samples[:, None]
        wave = torch.cat([wave[:, :1], wave[:, 1:] - 0.97 * wave[:, :-1]], 1) * inside
        pieces = F.pad(wave, (FFT // 2, FFT // 2)).unfold(1, FFT, HOP)[:, : wave.shape[1] // HOP]
        spectrum = torch.fft.rfft(pieces * self.window)
        power = spectrum.real.square() + spectrum.imag.square()
        mel = torch.log(power @ (self.plain if which is None else self.filters[which]) + FLOOR)
        frames = torch.div(samples, HOP, rounding_mode="floor")
        return mel * (torch.arange(mel.shape[1], device=mel.device) < frames[:, None])[:, :, None], frames

    def hide(self, mel: torch.Tensor, frames: torch.Tensor, strong: torch.Tensor):
        """Hides stripes of mel bins and of time behind the row's mean, in a part `strong` of the rows."""
        b, t, f = mel.shape
        mean = mel.sum((1, 2), keepdim=True) / (frames[:, None, None] * f).clamp(min=1)
        bins, steps = torch.arange(f, device=mel.device), torch.arange(t, device=mel.device)
        hidden = torch.zeros(b, t, f, dtype=torch.bool, device=mel.device)
        for _ in range(2):
            width = torch.rand(b, 1, device=mel.device) * 18
            low = torch.rand(b, 1, device=mel.device) * (f - width)
            hidden = hidden | ((bins >= low) & (bins < low + width))[:, None, :]
        for _ in range(5):
            width = torch.rand(b, 1, device=mel.device) * torch.minimum(frames[:, None] * 0.04, torch.tensor(45.0, device=mel.device))
            low = torch.rand(b, 1, device=mel.device) * (frames[:, None] - width)
            hidden = hidden | ((steps >= low) & (steps < low + width))[:, :, None]
        valid = (steps < frames[:, None])[:, :, None] & (torch.rand(b, 1, 1, device=mel.device) < strong)
        return torch.where(hidden & valid, mean, mel)
