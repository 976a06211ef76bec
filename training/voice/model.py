"""The voice model in training form.

Whole sequences at once, no streaming state; parameter names are the published ones, so a state
dict of `FlowLM` is the `flow_lm.*` part of a model file and one of `Decoder` the `mimi.*` part.
`Encoder` exists for training only: it turns the log-mel spectrum into the 32-wide latents.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

LATENT, FRAME, RATE = 32, 1920, 24000


def rotate(x: torch.Tensor, period: float = 10000.0) -> torch.Tensor:
    """Rotary positions on interleaved pairs; x is [batch, time, heads, width]."""
    t, width = x.shape[1], x.shape[-1]
    rate = torch.exp(torch.arange(width // 2, device=x.device, dtype=torch.float32) * (-math.log(period) * 2 / width))
    angle = torch.arange(t, device=x.device, dtype=torch.float32)[:, None] * rate
    cos, sin = angle.cos()[None, :, None], angle.sin()[None, :, None]
    even, odd = x.float().unflatten(-1, (width // 2, 2)).unbind(-1)
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, inner: int, context: int | None):
        super().__init__()
        self.heads, self.kv_heads, self.inner, self.context = heads, kv_heads, inner, context
        self.head_width = inner // heads
        self.in_proj = nn.Linear(width, inner + 2 * kv_heads * self.head_width, bias=False)
        self.out_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q, kv = self.in_proj(x).split([self.inner, 2 * self.kv_heads * self.head_width], -1)
        q = rotate(q.view(b, t, self.heads, self.head_width)).transpose(1, 2)
        k, v = kv.view(b, t, 2, self.kv_heads, self.head_width).unbind(2)
        k, v = rotate(k).transpose(1, 2), v.transpose(1, 2)
        if self.kv_heads != self.heads:
            k = k.repeat_interleave(self.heads // self.kv_heads, 1)
            v = v.repeat_interleave(self.heads // self.kv_heads, 1)
        if self.context is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            position = torch.arange(t, device=x.device)
            delta = position[:, None] - position[None, :]
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=(delta >= 0) & (delta < self.context))
        return self.out_proj(y.transpose(1, 2).reshape(b, t, self.inner))


class Scale(nn.Module):
    def __init__(self, width: int, start: float):
        super().__init__()
        self.scale = nn.Parameter(torch.full((width,), start))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, inner: int, hidden: int, context: int | None, scale: float | None):
        super().__init__()
        self.self_attn = Attention(width, heads, kv_heads, inner, context)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.linear1 = nn.Linear(width, hidden, bias=False)
        self.linear2 = nn.Linear(hidden, width, bias=False)
        self.layer_scale_1 = nn.Identity() if scale is None else Scale(width, scale)
        self.layer_scale_2 = nn.Identity() if scale is None else Scale(width, scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.layer_scale_1(self.self_attn(self.norm1(x)))
        hidden = F.gelu(self.linear1(self.norm2(x)), approximate="tanh")
        return x + self.layer_scale_2(self.linear2(hidden))


class Transformer(nn.Module):
    def __init__(self, layers: int, **shape):
        super().__init__()
        self.layers = nn.ModuleList(Layer(**shape) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class HeadBlock(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.in_ln = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 3 * width))
        nn.init.zeros_(self.adaLN_modulation[1].weight)
        nn.init.zeros_(self.adaLN_modulation[1].bias)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        shift, scale, gate = self.adaLN_modulation(condition).chunk(3, -1)
        return x + gate * self.mlp(self.in_ln(x) * (1 + scale) + shift)


class HeadEnd(nn.Module):
    def __init__(self, width: int, out: int):
        super().__init__()
        self.linear = nn.Linear(width, out)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        shift, scale = self.adaLN_modulation(condition).chunk(2, -1)
        return self.linear(F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift)


class Head(nn.Module):
    """Noise to latent in one step, given the backbone's output (head type `drifting`)."""

    def __init__(self, width: int, depth: int, condition: int):
        super().__init__()
        self.cond_embed = nn.Linear(condition, width)
        self.input_proj = nn.Linear(LATENT, width)
        self.res_blocks = nn.ModuleList(HeadBlock(width) for _ in range(depth))
        self.final_layer = HeadEnd(width, LATENT)

    def forward(self, condition: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        x, y = self.input_proj(noise), self.cond_embed(condition)
        for block in self.res_blocks:
            x = block(x, y)
        return self.final_layer(x, y)


class TextTable(nn.Module):
    def __init__(self, bins: int, rank: int, width: int):
        super().__init__()
        self.embed = nn.Embedding(bins + 1, rank)
        self.proj = nn.Linear(rank, width, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.proj(self.embed(tokens))


class FlowLM(nn.Module):
    def __init__(self, config: dict):
        super().__init__()
        t, table, flow = config["transformer"], config["lookup_table"], config["flow"]
        width = t["d_model"]
        self.register_buffer("emb_std", torch.ones(LATENT))
        self.register_buffer("emb_mean", torch.zeros(LATENT))
        self.bos_emb = nn.Parameter(torch.randn(LATENT))
        self.bos_before_voice = nn.Parameter(torch.randn(1, 1, width))
        self.conditioner = TextTable(table["n_bins"], table["rank"], width)
        self.input_linear = nn.Linear(LATENT, width, bias=False)
        self.transformer = Transformer(
            t["num_layers"], width=width, heads=t["num_heads"], kv_heads=t["num_kv_heads"], inner=t["attn_dim"],
            hidden=t["dim_feedforward"], context=None, scale=None,
        )
        self.out_norm = nn.LayerNorm(width)
        self.out_eos = nn.Linear(width, 1)
        self.flow_net = Head(flow["dim"], flow["depth"], width)
        for layer in self.transformer.layers:
            for linear in (layer.self_attn.out_proj, layer.linear2):
                linear.weight.data.mul_((2 * t["num_layers"]) ** -0.5)

    def hidden(self, tokens: torch.Tensor, count: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """Backbone outputs at the latent positions.

        tokens [B, N] with `count` [B] valid ones each; previous [B, T, 32] are the inputs of the
        latent positions (the first is replaced by the start latent). Rows are packed as
        start-of-voice, tokens, latents, rest.
        """
        b, n = tokens.shape
        t = previous.shape[1]
        previous = torch.cat([self.bos_emb.expand(b, 1, LATENT).to(previous.dtype), previous[:, 1:]], 1)
        text, sound = self.conditioner(tokens), self.input_linear(previous)
        position = torch.arange(n + t, device=tokens.device)[None]
        from_text = (position < count[:, None])[..., None]
        step = (position - count[:, None]).clamp(0, t - 1)[..., None].expand(-1, -1, text.shape[-1])
        body = torch.where(from_text, F.pad(text, (0, 0, 0, t)), sound.gather(1, step))
        x = torch.cat([self.bos_before_voice.expand(b, 1, -1).to(body.dtype), body], 1)
        x = self.transformer(x)
        where = (count[:, None] + 1 + torch.arange(t, device=tokens.device)[None])[..., None]
        return self.out_norm(x.gather(1, where.expand(-1, -1, x.shape[-1])))


class Conv(nn.Module):
    """Causal convolution over a whole signal (zeros before its start)."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int = 1):
        super().__init__()
        self.left = (kernel - 1) * dilation
        self.conv = nn.Conv1d(inputs, outputs, kernel, dilation=dilation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(F.pad(x, (self.left, 0)))


class ConvUp(nn.Module):
    """Causal transposed convolution: the overhang past the last input is cut."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int = 1, bias: bool = True):
        super().__init__()
        self.stride = stride
        self.convtr = nn.ConvTranspose1d(inputs, outputs, 2 * stride, stride, groups=groups, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.convtr(x)[..., : -self.stride]


class Residual(nn.Module):
    def __init__(self, width: int, kernel: int, compress: int):
        super().__init__()
        hidden = width // compress
        self.block = nn.ModuleList([nn.ELU(), Conv(width, hidden, kernel), nn.ELU(), Conv(hidden, width, 1)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for part in self.block:
            y = part(y)
        return x + y


class SeanetDecoder(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        width = c["n_filters"] * 2 ** len(c["ratios"])
        parts: list[nn.Module] = [Conv(c["dimension"], width, c["kernel_size"])]
        for ratio in c["ratios"]:
            parts += [nn.ELU(), ConvUp(width, width // 2, ratio), Residual(width // 2, c["residual_kernel_size"], c["compress"])]
            width //= 2
        parts += [nn.ELU(), Conv(width, 1, c["last_kernel_size"])]
        self.model = nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.model:
            x = part(x)
        return x


class Holder(nn.Module):
    """A named level of the published layout."""

    def __init__(self, **children: nn.Module):
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)


class Decoder(nn.Module):
    """Latents [B, T, 32] to sound [B, T * 1920]."""

    def __init__(self, config: dict):
        super().__init__()
        t, width = config["decoder_transformer"], config["outer_dim"]
        self.quantizer = Holder(output_proj=nn.Conv1d(LATENT, width, 1, bias=False))
        self.upsample = Holder(convtr=ConvUp(width, width, 16, groups=width, bias=False))
        self.decoder_transformer = Holder(transformer=Transformer(
            t["num_layers"], width=t["d_model"], heads=t["num_heads"], kv_heads=t["num_heads"], inner=t["d_model"],
            hidden=t["dim_feedforward"], context=t["context"], scale=t["layer_scale"],
        ))
        self.decoder = SeanetDecoder(config["decoder_seanet"])

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        x = self.upsample.convtr(self.quantizer.output_proj(latents.transpose(1, 2)))
        x = self.decoder_transformer.transformer(x.transpose(1, 2)).transpose(1, 2)
        return self.decoder(x)[:, 0]


def mel_filters(size: int, bands: int, low: float = 0.0, high: float = RATE / 2) -> torch.Tensor:
    """Triangular filters [size // 2 + 1, bands], each of unit sum of squares over its band."""
    def mel(f):
        return 2595 * math.log10(1 + f / 700)

    points = torch.linspace(mel(low), mel(high), bands + 2)
    edges = 700 * (10 ** (points / 2595) - 1)
    bins = torch.linspace(0, RATE / 2, size // 2 + 1)[:, None]
    rise = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    fall = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    bank = torch.minimum(rise, fall).clamp(min=0)
    return bank / bank.sum(0).clamp(min=1e-4)


class Mel(nn.Module):
    def __init__(self, size: int, hop: int, bands: int):
        super().__init__()
        self.size, self.hop = size, hop
        self.register_buffer("window", torch.hann_window(size), persistent=False)
        self.register_buffer("bank", mel_filters(size, bands), persistent=False)

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        """[B, N] to log10 mel [B, bands, N // hop]."""
        wave = F.pad(wave, (self.size // 2, self.size // 2))
        spectrum = torch.stft(wave, self.size, self.hop, window=self.window, center=False, return_complex=True)
        power = torch.view_as_real(spectrum).square().sum(-1)
        magnitude = (power + 1e-9).sqrt() / self.size**0.5
        mel = magnitude.transpose(1, 2) @ self.bank
        return mel.clamp(min=1e-4).log10().transpose(1, 2)


class ConvNext(nn.Module):
    def __init__(self, width: int, kernel: int, grow: int = 3):
        super().__init__()
        self.depthwise = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, grow * width), nn.Linear(grow * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depthwise(x).transpose(1, 2))
        return x + (self.down(F.gelu(self.up(y))) * self.scale).transpose(1, 2)


class Encoder(nn.Module):
    """Sound [B, T * 1920] to latents [B, T, 32] of zero mean and unit variance. Training only."""

    def __init__(self):
        super().__init__()
        self.mel = Mel(1024, 240, 80)
        self.net = nn.Sequential(
            nn.Conv1d(80, 192, 5, padding=2), ConvNext(192, 7), ConvNext(192, 7), ConvNext(192, 7),
            nn.Conv1d(192, 256, 2, stride=2), ConvNext(256, 7), ConvNext(256, 7),
            nn.Conv1d(256, 320, 4, stride=4), ConvNext(320, 3), ConvNext(320, 1),
        )
        self.out = nn.Linear(320, LATENT)
        self.register_buffer("mean", torch.zeros(LATENT))
        self.register_buffer("variance", torch.ones(LATENT))

    def forward(self, wave: torch.Tensor, update: bool = False) -> torch.Tensor:
        mel = self.mel(wave)[..., : wave.shape[-1] // 240]
        z = self.out(self.net((mel + 2.5) / 1.2).transpose(1, 2)).float()
        if not update:
            return (z - self.mean) * (self.variance + 1e-5).rsqrt()
        mean, variance = z.mean((0, 1)), z.var((0, 1))
        with torch.no_grad():
            self.mean.lerp_(mean, 0.01)
            self.variance.lerp_(variance, 0.01)
        return (z - mean) * (variance + 1e-5).rsqrt()


def energy_score(samples: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Energy score of samples [K, N, D] against target [N, D], one value per row: proper, so its
    least value is reached by the true distribution; lower is better."""
    k = samples.shape[0]
    to_target = ((samples - target).square().sum(-1) + 1e-6).sqrt().mean(0)
    between = ((samples[:, None] - samples[None]).square().sum(-1) + 1e-6).sqrt().sum((0, 1))
    return to_target - between / (2 * k * (k - 1))
