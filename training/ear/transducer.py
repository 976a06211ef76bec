"""The transducer's loss over a lattice of (frames x labels), and its gradient.

`lattice_loss(blank, label, frames, labels)` takes log-probabilities: blank [B, T, U+1] (staying at u,
going on to the next frame) and label [B, T, U+1] (emitting label u+1 at frame t; the last column is
unused), and gives -log P per row. A row of the lattice is one linear recurrence in the log semiring,
so a frame costs one scan: a Triton program per utterance on a GPU, plain torch elsewhere.
`ctc_loss` is the encoder's own loss beside it.
"""

import torch
from torch.nn import functional as F

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

LOW = -1e30
USE_TRITON = triton is not None


def row(x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """a[u] = log(exp(x[u]) + exp(a[u-1] + step[u-1])) along the last axis."""
    total = torch.cumsum(step, -1) - step
    return torch.logcumsumexp(x - total, -1) + total


def alphas_torch(blank, label, frames, labels):
    b, t, u = blank.shape
    column = torch.arange(u, device=blank.device)
    step = torch.where(column < labels[:, None, None], label, torch.full_like(label, 0.0))
    first = torch.full((b, u), LOW, device=blank.device)
    first[:, 0] = 0
    out = [row(first, step[:, 0])]
    for i in range(1, t):
        out.append(row(out[-1] + blank[:, i - 1], step[:, i]))
    return torch.stack(out, 1)


def flipped(x, frames, labels, fill):
    """x with each utterance's corner (frames-1, labels) turned to (0, 0)."""
    b, t, u = x.shape
    i = (frames[:, None] - 1 - torch.arange(t, device=x.device)).clamp(min=0)
    j = (labels[:, None] - torch.arange(u, device=x.device)).clamp(min=0)
    return x.gather(1, i[:, :, None].expand(b, t, u)).gather(2, j[:, None, :].expand(b, t, u))


def both_torch(blank, label, frames, labels):
    """(alphas, betas, log P), betas without the step into the end counted twice."""
    b, t, u = blank.shape
    alpha = alphas_torch(blank, label, frames, labels)
    back_blank = flipped(blank, frames, labels, LOW)
    back_label = flipped(label, frames, labels - 1, LOW)  # label from u-1 to u, seen from the end
    column = torch.arange(u, device=blank.device)
    step = torch.where(column < labels[:, None, None], back_label, torch.zeros_like(label))
    first = torch.full((b, u), LOW, device=blank.device)
    first[:, 0] = back_blank[:, 0, 0]
    rows = [row(first, step[:, 0])]
    for i in range(1, t):
        rows.append(row(rows[-1] + back_blank[:, i], step[:, i]))
    beta = flipped(torch.stack(rows, 1), frames, labels, LOW)
    total = beta[:, 0, 0]
    return alpha, beta, total


if triton is not None:
    @triton.jit
    def _add(a, b):
        m = tl.maximum(a, b)
        return m + tl.log(tl.exp(a - m) + tl.exp(b - m))

    @triton.jit
    def _walk(blank, label, alpha, beta, total, frames, labels, T, U: tl.constexpr, BLOCK: tl.constexpr):
        b = tl.program_id(0)
        backward = tl.program_id(1) == 1
        n = tl.load(frames + b)
        k = tl.load(labels + b)
        u = tl.arange(0, BLOCK)
        inside = u <= k
        base = b * T * U
        low = -1e30
        if backward:
            # beta[t, u] = log(exp(blank[t, u] + beta[t+1, u]) + exp(label[t, u] + beta[t, u+1])), read from the end:
            # in column v = k - u the recurrence runs forward like alpha's.
            v = k - u
            here = tl.load(blank + base + (n - 1) * U + v, mask=inside, other=low)
            x = tl.where(u == 0, here, low)
            i = n - 1
            while i >= 0:
                step = tl.load(label + base + i * U + v - 1, mask=(u < k), other=0.0)
                sums = tl.cumsum(step, 0) - step
                a = tl.associative_scan(x - sums, 0, _add) + sums
                tl.store(beta + base + i * U + v, a, mask=inside)
                if i > 0:
                    x = a + tl.load(blank + base + (i - 1) * U + v, mask=inside, other=low)
                else:
                    tl.store(total + b, tl.sum(tl.where(u == k, a, 0.0), 0))
                i -= 1
        else:
            x = tl.where(u == 0, 0.0, low)
            i = n * 0
            while i < n:
                step = tl.load(label + base + i * U + u, mask=(u < k), other=0.0)
                sums = tl.cumsum(step, 0) - step
                a = tl.associative_scan(x - sums, 0, _add) + sums
                tl.store(alpha + base + i * U + u, a, mask=inside)
                x = a + tl.load(blank + base + i * U + u, mask=inside, other=low)
                i += 1


def both_triton(blank, label, frames, labels):
    b, t, u = blank.shape
    alpha, beta = torch.full_like(blank, LOW), torch.full_like(blank, LOW)
    total = torch.zeros(b, device=blank.device)
    _walk[(b, 2)](blank, label, alpha, beta, total, frames, labels, t, u, triton.next_power_of_2(u), num_warps=1 if u <= 128 else 2)
    return alpha, beta, total


class Lattice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, blank, label, frames, labels):
        blank, label = blank.float().contiguous(), label.float().contiguous()
        frames, labels = frames.contiguous(), labels.contiguous()  # the kernel reads them as plain vectors
        both = both_triton if blank.is_cuda and USE_TRITON else both_torch
        alpha, beta, total = both(blank, label, frames, labels)
        t, u = torch.arange(blank.shape[1], device=blank.device)[:, None], torch.arange(blank.shape[2], device=blank.device)
        n, k = frames[:, None, None], labels[:, None, None]
        past = torch.cat([beta[:, 1:], torch.full_like(beta[:, :1], LOW)], 1)
        past = torch.where((t == n - 1) & (u == k), torch.zeros_like(past), torch.where(t < n - 1, past, torch.full_like(past, LOW)))
        right = torch.cat([beta[:, :, 1:], torch.full_like(beta[:, :, :1], LOW)], 2)
        ok = (t < n) & (u <= k)
        by_blank = torch.where(ok, alpha + blank + past - total[:, None, None], torch.full_like(alpha, LOW))
        by_label = torch.where(ok & (u < k), alpha + label + right - total[:, None, None], torch.full_like(alpha, LOW))
        ctx.save_for_backward(by_blank.clamp(max=0).exp(), by_label.clamp(max=0).exp())
        return -total

    @staticmethod
    def backward(ctx, grad):
        by_blank, by_label = ctx.saved_tensors
        g = -grad[:, None, None]
        return g * by_blank, g * by_label, None, None


def lattice_loss(blank, label, frames, labels):
    return Lattice.apply(blank, label, frames, labels)


def flip_tokens(x, count):
    """x [B, ..., U] with the first count[b] places in reverse order."""
    j = (count[:, None] - 1 - torch.arange(x.shape[-1], device=x.device)).clamp(min=0)
    j = j.view(len(x), *[1] * (x.dim() - 2), x.shape[-1]).expand(x.shape)
    return x.gather(-1, j)


class Ctc(torch.autograd.Function):
    """CTC with fixed shapes and no host synchronisation: both directions are one batch, a few kernels a frame."""

    @staticmethod
    def forward(ctx, blank, label, tokens, frames, labels):
        b, t, u = label.shape
        label = label.float()
        states = torch.stack([blank.float()[:, :, None].expand(b, t, u), label], -1).flatten(2)
        states = torch.cat([states, blank.float()[:, :, None]], 2)  # blank, label, blank, ..., blank
        emit = torch.cat([states, flipped(states, frames, 2 * labels, LOW)])
        both = torch.cat([tokens, flip_tokens(tokens, labels)])
        again = F.pad(both[:, 1:] == both[:, :-1], (1, 0), value=True)
        skip = F.pad(torch.stack([torch.ones_like(again), again], -1).flatten(1), (0, 1), value=True).float() * LOW
        walk = torch.full((t, 2 * b, 2 * u + 3), LOW, device=label.device)  # two columns of nothing in front
        walk[0, :, 2] = emit[:, 0, 0]
        walk[0, :, 3] = emit[:, 0, 1].masked_fill(torch.cat([labels, labels]) < 1, LOW)
        for i in range(1, t):
            x = walk[i - 1]
            torch.add(torch.logaddexp(torch.logaddexp(x[:, 2:], x[:, 1:-1]), x[:, :-2] + skip), emit[:, i], out=walk[i, :, 2:])
        walk = walk[:, :, 2:].transpose(0, 1)
        alpha, beta = walk[:b], flipped(walk[b:], frames, 2 * labels, LOW)
        first = beta[:, 0, :2]
        total = torch.where(labels > 0, torch.logaddexp(first[:, 0], first[:, 1]), first[:, 0])
        fits = total > -1e20
        inside = (torch.arange(t, device=label.device) < frames[:, None])[:, :, None] & (torch.arange(2 * u + 1, device=label.device) <= 2 * labels[:, None])[:, None]
        share = (alpha + beta - states - total[:, None, None]).clamp(max=0).exp().masked_fill(~(inside & fits[:, None, None]), 0.0)
        ctx.save_for_backward(share[:, :, 0::2].sum(2), share[:, :, 1::2].contiguous())
        return (-total).masked_fill(~fits, 0.0)

    @staticmethod
    def backward(ctx, grad):
        by_blank, by_label = ctx.saved_tensors
        return -grad[:, None] * by_blank, -grad[:, None, None] * by_label, None, None, None


def ctc_loss(blank, label, tokens, frames, labels):
    """-log P per row by CTC: blank [B, T] and label [B, T, U] (of the row's U tokens) are log-probabilities; 0 where a row cannot fit."""
    return Ctc.apply(blank, label, tokens, frames, labels)


def naive_loss(blank, label, frames, labels):
    """The textbook recursion, cell by cell, for tests."""
    out = []
    for b in range(len(frames)):
        n, k = int(frames[b]), int(labels[b])
        a = [[None] * (k + 1) for _ in range(n)]
        for t in range(n):
            for u in range(k + 1):
                ways = []
                if t == 0 and u == 0:
                    ways.append(blank.new_zeros(()))
                if t > 0:
                    ways.append(a[t - 1][u] + blank[b, t - 1, u])
                if u > 0:
                    ways.append(a[t][u - 1] + label[b, t, u - 1])
                a[t][u] = torch.logsumexp(torch.stack(ways), 0)
        out.append(-(a[n - 1][k] + blank[b, n - 1, k]))
    return torch.stack(out)
