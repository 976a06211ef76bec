"""Critics for the codec: spectrogram critics at three resolutions and waveform critics at five periods."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm


PAD = 8  # the least channel count that the fast convolutions take


def widen(x: torch.Tensor) -> torch.Tensor:
    """Zero channels up to PAD, channels last in memory."""
    return F.pad(x, (0, 0, 0, 0, 0, PAD - x.shape[1])).contiguous(memory_format=torch.channels_last)


def conv2(inputs: int, outputs: int, kernel, stride=(1, 1), dilation=(1, 1)) -> nn.Module:
    pad = [(k - 1) * d // 2 for k, d in zip(kernel, dilation)]
    return weight_norm(nn.Conv2d(inputs, outputs, kernel, stride, pad, dilation))


class SpectrumCritic(nn.Module):
    def __init__(self, size: int, width: int):
        super().__init__()
        self.size, self.hop = size, size // 4
        self.register_buffer("window", torch.hann_window(size), persistent=False)
        self.layers = nn.ModuleList([
            conv2(PAD, width, (3, 9), (1, 2)),
            conv2(width, 2 * width, (3, 9), (1, 2)),
            conv2(2 * width, 2 * width, (3, 9), (1, 2)),
            conv2(2 * width, 4 * width, (3, 3), (2, 1)),
        ])
        self.out = conv2(4 * width, PAD, (3, 3))

    def forward(self, wave: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        with torch.autocast(wave.device.type, enabled=False):
            s = torch.stft(wave.float(), self.size, self.hop, window=self.window, return_complex=True)
            x = torch.view_as_real(s).permute(0, 3, 2, 1) * (4.0 / self.size**0.5)
        features, x = [], widen(x)
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.2)
            features.append(x)
        return self.out(x)[:, :1], features


class PeriodCritic(nn.Module):
    def __init__(self, period: int, width: int):
        super().__init__()
        self.period = period
        sizes = [PAD, width, 2 * width, 4 * width, 8 * width]
        self.layers = nn.ModuleList(conv2(a, b, (5, 1), (3, 1)) for a, b in zip(sizes, sizes[1:]))
        self.out = conv2(sizes[-1], PAD, (3, 1))

    def forward(self, wave: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        length = wave.shape[-1] // self.period * self.period
        x = wave[:, None, :length].reshape(len(wave), 1, -1, self.period)
        features, x = [], widen(x)
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.2)
            features.append(x)
        return self.out(x)[:, :1], features


class Critics(nn.Module):
    def __init__(self, width: int = 32):
        super().__init__()
        self.critics = nn.ModuleList(
            [SpectrumCritic(size, width) for size in (2048, 1024, 512)] + [PeriodCritic(p, width) for p in (2, 3, 5, 7, 11)]
        )

    def forward(self, wave: torch.Tensor):
        return [critic(wave) for critic in self.critics]


def critic_loss(real, fake) -> torch.Tensor:
    return sum(((1 - r.float()) ** 2).mean() + (f.float() ** 2).mean() for (r, _), (f, _) in zip(real, fake)) / len(real)


def fooling_loss(fake) -> torch.Tensor:
    return sum(((1 - f.float()) ** 2).mean() for f, _ in fake) / len(fake)


def feature_loss(real, fake) -> torch.Tensor:
    total, count = 0.0, 0
    for (_, rs), (_, fs) in zip(real, fake):
        for r, f in zip(rs, fs):
            distance = (r.detach() - f).abs().mean(dtype=torch.float32)
            total = total + distance / r.detach().abs().mean(dtype=torch.float32).clamp(min=1e-3)
            count += 1
    return total / count
