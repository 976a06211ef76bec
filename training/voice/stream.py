"""The shards as one growing stream on the training device.

Shards are read strictly in order, so a frame's place in the stream is the same in every process
that reads the same folder; utterance u owns frames first[u] .. first[u] + frames[u].
"""

from pathlib import Path

import numpy as np
import torch

from model import FRAME


class Stream:
    def __init__(self, folder: Path, device: torch.device, capacity_hours: float):
        self.folder, self.device, self.next = folder, device, 0
        self.capacity = int(capacity_hours * 45000)
        self.audio = torch.zeros((self.capacity + 256) * FRAME, dtype=torch.int16, device=device)
        self.total = 0
        self.first: list[int] = []
        self.frames: list[int] = []
        self.spoken: list[int] = []
        self.index: list[int] = []

    def grow(self, most: int = 10**9) -> int:
        """Takes in up to `most` further shards; returns how many."""
        for taken in range(most):
            path = self.folder / f"{self.next:05d}.npz"
            if not path.exists():
                return taken
            audio = torch.from_numpy(np.load(path.with_suffix(".npy"), mmap_mode="c"))
            with np.load(path) as data:
                frames, spoken, index = (data[name].tolist() for name in ("frames", "spoken", "index"))
            count = len(audio) // FRAME
            if self.total + count > self.capacity:
                return taken
            self.audio[self.total * FRAME: (self.total + count) * FRAME] = audio.to(self.device)
            for f, s, i in zip(frames, spoken, index):
                self.first.append(self.total)
                self.frames.append(f)
                self.spoken.append(s)
                self.index.append(i)
                self.total += f
            self.next += 1
        return most


def graph(step, warm: int = 3):
    """`step` as one CUDA graph (or itself on the CPU). Its inputs and outputs must be static."""
    if not torch.cuda.is_available():
        return step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm):
            step()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        step()
    return captured.replay


def adam(parameters, device: torch.device, betas: tuple[float, float], decay: float):
    """AdamW whose rate is a tensor, so that a captured step can follow a schedule."""
    rate = torch.tensor(0.0, device=device)
    cuda = device.type == "cuda"
    optimiser = torch.optim.AdamW(parameters, lr=rate if cuda else 1e-3, betas=betas, weight_decay=decay, fused=cuda, capturable=cuda)
    return optimiser, rate


class Muon:
    """Momentum whose step is made orthogonal (five Newton-Schulz turns), for the inner matrices; it can be captured.

    The step is scaled to the size of one of Adam's, so both follow one rate. Matrices of one shape go through together.
    """

    def __init__(self, parameters, rate: torch.Tensor, momentum: float = 0.95, decay: float = 0.01):
        self.rate, self.momentum, self.decay = rate, momentum, decay
        self.groups: dict[tuple, list] = {}
        for p in parameters:
            self.groups.setdefault(tuple(p.shape), []).append(p)
        self.moments = {shape: torch.zeros(len(ps), *shape, device=ps[0].device) for shape, ps in self.groups.items()}

    @torch.no_grad()
    def step(self) -> None:
        for shape, ps in self.groups.items():
            grads, moments = torch.stack([p.grad for p in ps]), self.moments[shape]
            moments.lerp_(grads, 1 - self.momentum)
            x = grads.lerp(moments, self.momentum)
            x = x.mT if shape[0] > shape[1] else x
            x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-12)).to(torch.bfloat16)
            for _ in range(5):
                square = x @ x.mT
                x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
            x = (x.mT if shape[0] > shape[1] else x).float() * (0.2 * max(shape) ** 0.5)
            for p, step in zip(ps, x):
                p.mul_(1 - self.rate * self.decay).sub_(step * self.rate)


def packed(state: dict) -> dict:
    """Optimiser moments in bfloat16, for small checkpoints."""
    return {k: v.to(torch.bfloat16) if torch.is_tensor(v) and v.is_floating_point() and v.numel() > 64 else v for k, v in state.items()}
