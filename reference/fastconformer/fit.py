"""Short fits of the heads to a made-up alignment, so that searches have something to choose between.

A random transducer emits everything or nothing. Here the encoder stays random and frozen; projections, predictor and
joint (or the CTC head) learn to spell a given text on the frames of one clip, with smoothing and noise that keep
alternatives alive.
"""

import torch
from torch.nn.functional import cross_entropy

SMOOTHING = 0.1
NOISE = 0.25


def _alignment(tokens: list[int], frames: int, blank: int, seed: int, durations: list[int]):
    """Steps (frame, labels so far, label, duration); the labels spread over the frames, sometimes two on one."""
    g = torch.Generator().manual_seed(seed)
    rand = lambda n: int(torch.randint(0, n, (), generator=g))
    at = sorted(rand(frames - 2) + 1 for _ in tokens)
    if durations:
        steps, t, u = [], 0, 0
        longest = max(durations)
        while t < frames:
            if u < len(tokens) and at[u] <= t:
                gap = (at[u + 1] - t) if u + 1 < len(tokens) else rand(longest) + 1
                d = max(0, min(gap, longest))
                steps.append((t, u, tokens[u], d))
                u += 1
            else:
                gap = (at[u] - t) if u < len(tokens) else frames - t
                d = max(1, min(gap, longest))
                steps.append((t, u, blank, d))
            t += d
        return steps
    steps, u = [], 0
    for t in range(frames):
        while u < len(tokens) and at[u] == t:
            steps.append((t, u, tokens[u], 0))
            u += 1
        steps.append((t, u, blank, 0))
    return steps


def fit_transducer(model, tasks: list[tuple], seed: int, steps: int = 200, lr: float = 4e-3):
    """`tasks`: a function that gives inputs of `encoder_projector` ([frames, d], all of one length), and the tokens."""
    cfg = model.config
    blank, vocab = cfg.blank_token_id, cfg.vocab_size
    durations = list(getattr(cfg, "durations", []))
    heads = [p for n, p in model.named_parameters() if not n.startswith("encoder.")]
    opt = torch.optim.Adam(heads, lr=lr)
    g = torch.Generator().manual_seed(seed)
    paths = [
        _alignment(tokens, encoded()[0].shape[0], blank, seed + i, durations)
        for i, (encoded, tokens) in enumerate(tasks)
    ]
    with torch.enable_grad():
        for _ in range(steps):
            loss = 0.0
            for (encoded, tokens), path in zip(tasks, paths):
                frame, so_far, label = (torch.tensor([s[i] for s in path]) for i in range(3))
                inputs = torch.tensor([[blank, *tokens]])
                emb = model.decoder.embedding(inputs) * (inputs != blank)[..., None]
                pred = model.decoder.decoder_projector(model.decoder.lstm(emb)[0])[0]
                for e in encoded():
                    proj = model.encoder_projector(e)
                    proj = proj + NOISE * torch.randn(proj.shape, generator=g)
                    z = model.joint.head(model.joint.activation(proj[frame] + pred[so_far]))
                    loss = loss + cross_entropy(z[:, :vocab], label, label_smoothing=SMOOTHING)
                    if durations:
                        length = torch.tensor([durations.index(s[3]) for s in path])
                        loss = loss + cross_entropy(z[:, vocab:], length, label_smoothing=SMOOTHING)
            opt.zero_grad()
            loss.backward()
            opt.step()
    with torch.no_grad():
        model.decoder.embedding.weight[blank].zero_()


def fit_ctc(model, encoded: torch.Tensor, tokens: list[int], blank: int, seed: int, steps: int = 200, lr: float = 1e-2):
    g = torch.Generator().manual_seed(seed)
    frames = encoded.shape[0]
    target = [blank] * frames
    t = 1
    for i, token in enumerate(tokens):
        left = len(tokens) - i
        for _ in range(1 + int(torch.randint(0, 2, (), generator=g))):
            if t < frames:
                target[t] = token
                t += 1
        slack = max(0, (frames - t) // left - 1)
        t += int(torch.randint(0, slack + 1, (), generator=g))
        if i + 1 < len(tokens) and tokens[i + 1] == token:
            t += 1
    goal = torch.tensor(target)
    opt = torch.optim.Adam(model.ctc_head.parameters(), lr=lr)
    with torch.enable_grad():
        for _ in range(steps):
            x = encoded + NOISE * torch.randn(encoded.shape, generator=g)
            z = model.ctc_head(x[None])[0]
            loss = cross_entropy(z, goal, label_smoothing=SMOOTHING)
            opt.zero_grad()
            loss.backward()
            opt.step()
