"""The ear: a cache-aware FastConformer transducer in plain PyTorch, with the tensor names of the published family.

Everything runs channels last, depthwise convolutions are sums of shifted products (which compile to one
kernel), and the look-ahead R is a number per row, so that one captured step serves every R.

In training two things are written differently from the published form, so that no layer sees a large constant:
the stem reads (mel + 10.5) / 4, and the subsampling's last linear reads its input less that input's running mean.
`Ear.shipped` folds both into weights and biases, and the blank's embedding too; the function is the same.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

CONFIG = dict(mel=80, channels=128, width=192, layers=10, heads=4, kernel=9, left=70, predictor=224, vocabulary=512)
BLANK = CONFIG["vocabulary"] - 1
LOOKAHEADS = (0, 1, 6, 13)


def shorter(n):
    return torch.div(n, 2, rounding_mode="floor") + 1


class Depthwise2d(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, 3, 3))
        self.bias = nn.Parameter(torch.zeros(channels))
        nn.init.normal_(self.weight, 0, (1 / 9) ** 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, time, mel, channels]
        b, t, f, c = x.shape
        x = F.pad(x, (0, 0, 2, 1, 2, 1))
        t, f = t // 2 + 1, f // 2 + 1
        w = self.weight.to(x.dtype)
        out = self.bias.to(x.dtype)
        for i in range(3):
            for j in range(3):
                out = out + x[:, i: i + 2 * t - 1: 2, j: j + 2 * f - 1: 2] * w[:, 0, i, j]
        return out


class Pointwise2d(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, channels, 1, 1))
        self.bias = nn.Parameter(torch.zeros(channels))
        nn.init.normal_(self.weight, 0, (2 / channels) ** 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight[:, :, 0, 0], self.bias)


class Stem(nn.Module):
    MEAN, SPREAD = -10.5, 4.0  # of log-mel speech

    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, 3, 3))
        nn.init.normal_(self.weight, 0, (2 / 9) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, time, mel]
        b, t, f = x.shape
        x = (F.pad(x, (2, 1, 2, 1)) - self.MEAN) / self.SPREAD  # the published form pads before, with 0
        t, f = t // 2 + 1, f // 2 + 1
        patches = torch.stack([x[:, i: i + 2 * t - 1: 2, j: j + 2 * f - 1: 2] for i in range(3) for j in range(3)], -1)
        return F.linear(patches, self.weight.flatten(1), self.bias)


class SubsamplingLayer(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.depthwise_conv = Depthwise2d(channels)
        self.pointwise_conv = Pointwise2d(channels)


class Subsampling(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        self.conv_in = Stem(c["channels"])
        self.layers = nn.ModuleList(SubsamplingLayer(c["channels"]) for _ in range(2))
        bins = c["mel"]
        for _ in range(3):
            bins = bins // 2 + 1
        self.linear = nn.Linear(c["channels"] * bins, c["width"])
        nn.init.normal_(self.linear.weight, 0, (1 / (c["channels"] * bins)) ** 0.5)
        nn.init.zeros_(self.linear.bias)
        self.centre = nn.Parameter(torch.zeros(c["channels"] * bins), requires_grad=False)
        self.seen = None  # the mean of the last batch's input to the linear

    def convolve(self, mel: torch.Tensor, lengths: torch.Tensor):
        def inside(x, n):
            return x * (torch.arange(x.shape[1], device=x.device) < n[:, None])[:, :, None, None].to(x.dtype)

        lengths = shorter(lengths)
        x = F.relu(inside(self.conv_in(mel), lengths))
        for layer in self.layers:
            lengths = shorter(lengths)
            x = F.relu(inside(layer.pointwise_conv(layer.depthwise_conv(x)), lengths))
        return x.transpose(2, 3).flatten(2), lengths

    def forward(self, mel: torch.Tensor, lengths: torch.Tensor):
        x, lengths = self.convolve(mel, lengths)
        if self.training:
            with torch.no_grad():
                inside = (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[:, :, None].float()
                self.seen = (x.float() * inside).sum((0, 1)) / inside.sum()
        return self.linear((x.float() - self.centre).to(x.dtype)).float(), lengths

    @torch.no_grad()
    def recentre(self, part: float) -> None:
        """Moves the centre towards the last batch's mean and the bias with it: the function stays."""
        move = part * (self.seen - self.centre)
        self.linear.bias.add_(self.linear.weight @ move)
        self.centre.add_(move)


class FeedForward(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.linear1 = nn.Linear(width, 4 * width)
        self.linear2 = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, drop: float) -> torch.Tensor:
        return self.linear2(F.dropout(F.silu(self.linear1(x)), drop, self.training))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width) for _ in range(4))
        self.relative_k_proj = nn.Linear(width, width, bias=False)
        # The softmax does not see this bias: its gradient is rounding noise, which Adam would turn into steps.
        self.k_proj.bias.requires_grad_(False).zero_()
        self.bias_u = nn.Parameter(torch.randn(heads, self.size) * 0.02)
        self.bias_v = nn.Parameter(torch.randn(heads, self.size) * 0.02)

    def forward(self, x: torch.Tensor, positions: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q, k, v = (p(x).view(b, t, self.heads, self.size) for p in (self.q_proj, self.k_proj, self.v_proj))
        u, w = (q + self.bias_u.to(q.dtype)).transpose(1, 2), (q + self.bias_v.to(q.dtype)).transpose(1, 2)
        p = self.relative_k_proj(positions).view(2 * t - 1, self.heads, self.size)
        # Scores share a large offset, which bfloat16 would round away: keep them in float32 from the products on.
        with torch.autocast(x.device.type, enabled=False):
            place = w.float() @ p.permute(1, 2, 0)[None].float()  # [B, heads, t, 2t-1]
            place = F.pad(place, (1, 0)).reshape(b, self.heads, 2 * t, t)[:, :, 1:].reshape(b, self.heads, t, 2 * t - 1)[..., :t]
            scores = (u.float() @ k.permute(0, 2, 3, 1).float() + place) * self.size**-0.5
            weights = torch.softmax(scores.masked_fill(~allowed, -1e4), -1)
        weights = weights.to(v.dtype)
        return self.o_proj((weights @ v.transpose(1, 2)).transpose(1, 2).reshape(b, t, -1))


class Depthwise1d(nn.Module):
    def __init__(self, channels: int, kernel: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, kernel))
        self.bias = nn.Parameter(torch.zeros(channels))
        nn.init.uniform_(self.weight, -kernel**-0.5, kernel**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, time, channels]
        t, k = x.shape[1], self.weight.shape[-1]
        x = F.pad(x, (0, 0, k - 1, 0))
        w = self.weight.to(x.dtype)
        out = self.bias.to(x.dtype)
        for i in range(k):
            out = out + x[:, i: i + t] * w[:, 0, i]
        return out


class Pointwise1d(nn.Module):
    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, 1))
        self.bias = nn.Parameter(torch.zeros(outputs))
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight[:, :, 0], self.bias)


class Convolution(nn.Module):
    def __init__(self, width: int, kernel: int):
        super().__init__()
        self.pointwise_conv1 = Pointwise1d(width, 2 * width)
        self.depthwise_conv = Depthwise1d(width, kernel)
        self.norm = nn.LayerNorm(width)
        self.pointwise_conv2 = Pointwise1d(width, width)

    def forward(self, x: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
        x = F.glu(self.pointwise_conv1(x)) * inside
        return self.pointwise_conv2(F.silu(self.norm(self.depthwise_conv(x))))


class Block(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        width = c["width"]
        self.feed_forward1, self.feed_forward2 = FeedForward(width), FeedForward(width)
        self.self_attn = Attention(width, c["heads"])
        self.conv = Convolution(width, c["kernel"])
        self.norm_feed_forward1, self.norm_self_att, self.norm_conv, self.norm_feed_forward2, self.norm_out = (
            nn.LayerNorm(width) for _ in range(5))

    def forward(self, x, positions, allowed, inside, drop: float):
        def some(y):
            return F.dropout(y, drop, self.training)

        x = x + 0.5 * some(self.feed_forward1(self.norm_feed_forward1(x), drop))
        x = x + some(self.self_attn(self.norm_self_att(x), positions, allowed))
        x = x + some(self.conv(self.norm_conv(x), inside))
        x = x + 0.5 * some(self.feed_forward2(self.norm_feed_forward2(x), drop))
        return self.norm_out(x)


class Encoder(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        self.c = c
        self.subsampling = Subsampling(c)
        self.layers = nn.ModuleList(Block(c) for _ in range(c["layers"]))

    def forward(self, mel: torch.Tensor, lengths: torch.Tensor, ahead: torch.Tensor, drop: float = 0.0):
        """mel [B, frames, bins], lengths [B] (mel frames), ahead [B] (R): ([B, t, width], [B])."""
        x, lengths = self.subsampling(mel, lengths)
        t, width = x.shape[1], x.shape[2]
        step = torch.arange(t, device=x.device)
        chunk = (ahead + 1)[:, None]
        own = torch.div(step[None], chunk, rounding_mode="floor")
        apart = own[:, :, None] - own[:, None, :]
        inside = step < lengths[:, None]
        allowed = (apart >= 0) & (apart <= torch.div(self.c["left"], chunk, rounding_mode="floor")[:, :, None]) & inside[:, None, :]
        distance = torch.arange(t - 1, -t, -1, device=x.device, dtype=torch.float32)
        rates = 10000.0 ** (-torch.arange(0, width, 2, device=x.device, dtype=torch.float32) / width)
        angles = distance[:, None] * rates
        positions = torch.stack([angles.sin(), angles.cos()], -1).flatten(1).to(x.dtype)
        for layer in self.layers:
            x = layer(x, positions, allowed[:, None], inside[:, :, None].to(x.dtype), drop)
        return x, lengths


class Predictor(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        self.embedding = nn.Embedding(c["vocabulary"], c["predictor"])
        self.lstm = nn.LSTM(c["predictor"], c["predictor"], batch_first=True)
        self.decoder_projector = nn.Linear(c["predictor"], c["predictor"])
        nn.init.normal_(self.embedding.weight, 0, 0.3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Outputs for the start (a blank) and after each token: [B, U + 1, predictor]."""
        tokens = F.pad(tokens, (1, 0), value=BLANK)
        return self.decoder_projector(self.lstm(self.embedding(tokens))[0])


class Joint(nn.Module):
    def __init__(self, c: dict):
        super().__init__()
        self.head = nn.Linear(c["predictor"], c["vocabulary"])

    def forward(self, f: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(f + g))


class Ear(nn.Module):
    def __init__(self, c: dict = CONFIG):
        super().__init__()
        self.encoder = Encoder(c)
        self.encoder_projector = nn.Linear(c["width"], c["predictor"])
        self.decoder = Predictor(c)
        self.joint = Joint(c)
        self.auxiliary = nn.Linear(c["width"], c["vocabulary"])  # CTC head, training only

    def shipped(self) -> dict[str, torch.Tensor]:
        """The published form: without the training-only head; the stem's scale, the centre and the blank's embedding folded in."""
        out = {k: v.detach().clone() for k, v in self.state_dict().items() if not k.startswith("auxiliary.")}
        stem, linear = "encoder.subsampling.conv_in.", "encoder.subsampling.linear."
        out[stem + "weight"] /= Stem.SPREAD
        out[stem + "bias"] -= out[stem + "weight"].sum((1, 2, 3)) * Stem.MEAN
        out[linear + "bias"] -= out[linear + "weight"] @ out.pop("encoder.subsampling.centre")
        table, lstm = out["decoder.embedding.weight"], "decoder.lstm."
        start = table[BLANK].clone()  # published predictors start from a row of zeros, and some readers rely on it
        table -= start
        out[lstm + "bias_ih_l0"] += out[lstm + "weight_ih_l0"] @ start
        return out

    def load_shipped(self, state: dict[str, torch.Tensor]) -> None:
        """The other way round, with a centre of 0."""
        state = dict(state)
        stem = "encoder.subsampling.conv_in."
        state[stem + "bias"] = state[stem + "bias"] + state[stem + "weight"].sum((1, 2, 3)) * Stem.MEAN
        state[stem + "weight"] = state[stem + "weight"] * Stem.SPREAD
        missing = self.load_state_dict(state, strict=False)
        assert all(k.startswith("auxiliary.") or k.endswith(".centre") for k in missing.missing_keys) and not missing.unexpected_keys, missing
