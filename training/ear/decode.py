"""Greedy transducer decoding of a batch, and word error rates."""

import torch
from torch.nn import functional as F

from model import BLANK


@torch.no_grad()
def greedy(ear, x: torch.Tensor, lengths: torch.Tensor, most: int = 10) -> list[list[int]]:
    """Tokens of each row of encoder output x [B, T, width]; at most `most` symbols a frame."""
    b, device = x.shape[0], x.device
    f = F.linear(x.float(), ear.encoder_projector.weight.float(), ear.encoder_projector.bias.float())
    lstm, rows = ear.decoder.lstm, torch.arange(b, device=device)
    h = torch.zeros(b, lstm.hidden_size, device=device)
    c = torch.zeros_like(h)
    token = torch.full((b,), BLANK, device=device)
    t, symbols = torch.zeros(b, dtype=torch.long, device=device), torch.zeros(b, dtype=torch.long, device=device)
    emitted = torch.ones(b, dtype=torch.bool, device=device)
    history, g = [], None
    longest = int(lengths.max())
    for step in range(longest * 2 + 400):
        gates = F.linear(ear.decoder.embedding(token), lstm.weight_ih_l0, lstm.bias_ih_l0) + F.linear(h, lstm.weight_hh_l0, lstm.bias_hh_l0)
        i, forget, new, out = gates.chunk(4, -1)
        c_new = torch.sigmoid(forget) * c + torch.sigmoid(i) * torch.tanh(new)
        h_new = torch.sigmoid(out) * torch.tanh(c_new)
        keep = emitted[:, None]
        c, h = torch.where(keep, c_new, c), torch.where(keep, h_new, h)
        g = ear.decoder.decoder_projector(h)
        best = ear.joint.head(F.relu(f[rows, t.clamp(max=f.shape[1] - 1)] + g)).argmax(-1)
        emitted = (best != BLANK) & (t < lengths) & (symbols < most)
        history.append(torch.where(emitted, best, torch.full_like(best, -1)))
        token = torch.where(emitted, best, token)
        symbols = torch.where(emitted, symbols + 1, torch.zeros_like(symbols))
        t = t + (~emitted).long()
        if step % 32 == 31 and bool((t >= lengths).all()):
            break
    return [[k for k in row if k >= 0] for row in torch.stack(history, 1).tolist()]


def errors(reference: list[str], heard: list[str]) -> int:
    """Words to change, leave out or put in."""
    row = list(range(len(heard) + 1))
    for i, r in enumerate(reference, 1):
        last, row[0] = row[0], i
        for j, h in enumerate(heard, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (r != h))
    return row[-1]
