"""Times the peers on a machine with an NVIDIA GPU: PyTorch and transformers, random weights of full size, bf16.

    python3 bench/gpu/peers.py --out results [--only PATTERN] [--seconds 75]
    python3 bench/gpu/peers.py --out results --tiny --device cpu        # tries every step in small, without graphs

One JSON line per measurement, on the screen and in OUT/peers.jsonl. `ms` is the median wall time of a step from the call
until its result is there. Decoders are captured in one CUDA graph per frame, every attention sees a full cache without a
mask, and `joined` ones use what PyTorch offers beyond the plain form (one product for q, k and v, one for gate and up,
its own RMS norm): the peer at its best. Each group runs in a process of its own, forked before CUDA starts.
"""

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import pathlib
import re
import signal
import statistics
import time

BEGUN = time.monotonic()
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

CONTEXT = 300  # positions behind a Qwen3-TTS frame
RING = 750  # positions of stt-1b
TOP_K, TEMPERATURE = 50, 0.9


class Bench:
    """Where results go, and how a call is timed."""

    def __init__(self, args):
        self.device, self.tiny, self.only, self.args = args.device, args.tiny, args.only, args
        self.cuda = args.device.startswith("cuda")

    def write(self, line):
        text = json.dumps(line | {"at": round(time.monotonic() - BEGUN, 1)})
        with open(self.args.out / "peers.jsonl", "a") as log:
            log.write(text + "\n")
        print(text, flush=True)

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize()

    def step(self, name, run, limit):
        """Runs one measurement; what goes wrong is a line too. Returns whether it went well."""
        if not re.search(self.only, name):
            return True
        at, line = time.monotonic(), {"peer": name}

        def late(*_):
            raise TimeoutError(f"more than {limit} s")

        signal.signal(signal.SIGALRM, late)
        signal.alarm(limit)
        try:
            line |= run()
        except Exception as wrong:
            line["error"] = f"{type(wrong).__name__}: {wrong}"[:600]
        finally:
            signal.alarm(0)
        line["seconds"] = round(time.monotonic() - at, 2)
        if self.cuda:
            with contextlib.suppress(Exception):
                line |= {"gib": round(torch.cuda.max_memory_allocated() / 2**30, 2), "device": torch.cuda.get_device_name()}
                torch.cuda.reset_peak_memory_stats()
        self.write(line | {"torch": torch.__version__})
        return "error" not in line

    def time(self, call, seconds=1.0, warm=3):
        """Milliseconds of one call, each waited for."""
        seconds, times = 0.05 if self.tiny else seconds, []
        for _ in range(warm):
            call()
        self.wait()
        end = time.perf_counter() + seconds
        while len(times) < 3 or (time.perf_counter() < end and len(times) < 500):
            start = time.perf_counter()
            call()
            self.wait()
            times.append((time.perf_counter() - start) * 1e3)
        return {"ms": round(statistics.median(times), 3), "best_ms": round(min(times), 3), "runs": len(times)}

    def captured(self, frame):
        """`frame` as one CUDA graph; as it is where there is no GPU."""
        if not self.cuda:
            return frame
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                frame()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            frame()
        return graph.replay

    def random(self, *shape, scale=1.0):
        return torch.empty(*shape, device=self.device, dtype=torch.bfloat16).normal_(0.0, scale)

    def weight(self, rows, columns):
        return self.random(rows, columns, scale=1 / math.sqrt(columns))

    def ones(self, *shape):
        return torch.ones(*shape, device=self.device, dtype=torch.bfloat16)


def encoder(bench, family, **more):
    """An encoder of the 0.6B shape, which Parakeet TDT and Nemotron share."""
    import transformers

    transformers.logging.set_verbosity_error()
    sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 8, "intermediate_size": 4096}
    if bench.tiny:
        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
        sizes["subsampling_conv_channels"] = 16
    kind, form = (getattr(transformers, family + end, None) for end in ("Config", ""))
    if form is None:
        raise LookupError(f"transformers {transformers.__version__} has no {family}")
    config = kind(**sizes, num_mel_bins=128, conv_kernel_size=9, attention_bias=False, convolution_bias=False, **more)
    config._attn_implementation = "sdpa"
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(bench.device):
            model = form(config).eval()
    finally:
        torch.set_default_dtype(torch.float32)
    said = {"transformers": transformers.__version__, "attention": model.config._attn_implementation}
    return model, said | {"parameters": sum(p.numel() for p in model.parameters())}


def parakeet(bench):
    model, said = encoder(bench, "ParakeetEncoder")
    batch, frames = (2, 101) if bench.tiny else (64, 1001)
    mel = bench.random(batch, frames, 128)
    found = bench.time(lambda: model(mel), seconds=2.0)
    return found | {"batch": batch, "rtfx": round(batch * (frames - 1) * 10 / found["ms"], 1)} | said


def nemotron(bench, cache, chunk, streams):
    """One chunk of every stream, the 70 frames before it cached."""
    if not cache:
        cache["model"], cache["said"] = encoder(bench, "NemotronAsrStreamingEncoder", sliding_window=71)
    model, frames = cache["model"], chunk // 80
    streams = min(streams, 3) if bench.tiny else streams
    state = {}

    def feed(mel, lookahead):
        out = model(mel, use_cache=True, num_lookahead_tokens=lookahead, **state)
        state.update(past_key_values=out.past_key_values, padding_cache=out.padding_cache)
        return out.last_hidden_state

    for i in range(10):  # 7 frames at a time; the very first of them needs one mel frame alone
        feed(bench.random(streams, 56 if i else 49, 128), 6)
    mel = bench.random(streams, 8 * frames, 128)
    shape = list(feed(mel, frames - 1).shape)
    found = bench.time(lambda: feed(mel, frames - 1), warm=2)
    kept = state["past_key_values"].layers[0].keys.shape[2]
    more = {"streams": streams, "chunk_ms": chunk, "real_time_streams": round(streams * chunk / found["ms"], 1)}
    return found | more | {"frames": shape[1], "cached": kept} | cache["said"]


def encoders(bench):
    with torch.inference_mode():
        bench.step("parakeet encoder, 64 x 10 s", lambda: parakeet(bench), 25)
        cache = {}
        for chunk, streams in [(560, 1), (560, 512), (80, 1), (80, 512), (560, 2048)]:
            name = f"nemotron streaming encoder, {chunk} ms x {streams}"
            bench.step(name, lambda c=chunk, n=streams: nemotron(bench, cache, c, n), 15)
            if bench.cuda:
                torch.cuda.empty_cache()


class Decoder:
    """Pre-norm layers with RoPE, grouped heads of 128 and a gated feed-forward; the caller keeps keys and values."""

    def __init__(self, bench, *, layers, dim, ffn, heads, kv_heads, head_norms, theta, pairs, eps):
        size = self.size = 128
        self.heads, self.kv_heads, self.pairs, self.eps, self.joined = heads, kv_heads, pairs, eps, False
        self.inverse = 1.0 / theta ** (torch.arange(0, size, 2, device=bench.device, dtype=torch.float32) / size)
        self.norm = bench.ones(dim)
        self.layers = [
            {
                "norms": (bench.ones(dim), bench.ones(dim)),
                "heads": (bench.ones(size), bench.ones(size)) if head_norms else None,
                "qkv": bench.weight((heads + 2 * kv_heads) * size, dim),
                "out": bench.weight(dim, heads * size),
                "gate_up": bench.weight(2 * ffn, dim),
                "down": bench.weight(dim, ffn),
            }
            for _ in range(layers)
        ]

    def rms(self, x, weight):
        if self.joined:
            return F.rms_norm(x, (x.shape[-1],), weight, self.eps)
        wide = x.float()
        return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)

    def linear(self, x, weight, *parts):
        if self.joined:
            return F.linear(x, weight).split(parts, -1)
        return [F.linear(x, w) for w in weight.split(parts)]

    def angles(self, position):
        """Cosines and sines for positions [..., time]."""
        angle = position[..., None].float() * self.inverse
        if self.pairs:
            return angle.cos(), angle.sin()
        angle = torch.cat((angle, angle), -1)
        return angle.cos().to(torch.bfloat16), angle.sin().to(torch.bfloat16)

    def turn(self, x, angles):
        cos, sin = angles
        if self.pairs:
            a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
            return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    def run(self, x, angles, keep, causal=False):
        """x [streams, time, dim]; `keep(layer, k, v)` stores and returns all keys and values [streams, heads, all, 128]."""
        q_rows, kv_rows = self.heads * self.size, self.kv_heads * self.size
        grouped = self.heads != self.kv_heads
        for i, w in enumerate(self.layers):
            parts = self.linear(self.rms(x, w["norms"][0]), w["qkv"], q_rows, kv_rows, kv_rows)
            q, k, v = (p.unflatten(-1, (-1, self.size)) for p in parts)
            if w["heads"]:
                q, k = self.rms(q, w["heads"][0]), self.rms(k, w["heads"][1])
            q, k, v = (p.transpose(1, 2) for p in (q, k, v))
            q, k = self.turn(q, angles), self.turn(k, angles)
            keys, values = keep(i, k, v)
            seen = F.scaled_dot_product_attention(q, keys, values, is_causal=causal, enable_gqa=grouped)
            x = x + F.linear(seen.transpose(1, 2).flatten(2), w["out"])
            half = w["down"].shape[1]
            gate, up = self.linear(self.rms(x, w["norms"][1]), w["gate_up"], half, half)
            x = x + F.linear(F.silu(gate) * up, w["down"])
        return self.rms(x, self.norm)


def draw(logits):
    """Top-k sampling that a graph can hold: the noise comes from PyTorch's generator, whose state graphs advance."""
    values, at = (logits.float() / TEMPERATURE).topk(TOP_K, dim=-1)
    chance = torch.softmax(values, -1)
    won = (chance / torch.empty_like(chance).exponential_()).argmax(-1, keepdim=True)
    return at.gather(-1, won).squeeze(-1)


class Qwen:
    """Talker and code predictor of Qwen3-TTS 1.7B."""

    def __init__(self, bench):
        common = {"heads": 16, "kv_heads": 8, "head_norms": True, "theta": 1e6, "pairs": False, "eps": 1e-6}
        deep, dim, ffn, small, small_ffn = (2, 64, 128, 64, 128) if bench.tiny else (28, 2048, 6144, 1024, 3072)
        self.bench, self.dim = bench, dim
        self.talker = Decoder(bench, layers=deep, dim=dim, ffn=ffn, **common)
        self.predictor = Decoder(bench, layers=2 if bench.tiny else 5, dim=small, ffn=small_ffn, **common)
        self.head, self.embedding = bench.weight(3072, dim), bench.random(3072, dim)
        self.heads = [bench.weight(2048, small) for _ in range(15)]
        self.embeddings = [bench.random(2048, dim) for _ in range(15)]
        self.down, self.down_bias = bench.weight(small, dim), bench.random(small)

    def frame(self, streams, joined):
        """A function that makes one frame from the last, and the tensor of its codes."""
        bench = self.bench
        self.talker.joined = self.predictor.joined = joined
        rows = [(2, streams, 8, CONTEXT, 128), (2, streams, 8, 16, 128)]
        cache, short = ([bench.random(*r) for _ in d.layers] for r, d in zip(rows, (self.talker, self.predictor)))
        position = torch.full((1,), CONTEXT, device=bench.device)
        steps = [self.predictor.angles(torch.arange(16, device=bench.device)[p]) for p in
                 (slice(0, 2), *(slice(i, i + 1) for i in range(2, 16)))]  # fmt: skip
        hidden, text = bench.random(streams, 1, self.dim), bench.random(1, 1, self.dim)
        codes = torch.zeros(streams, 16, dtype=torch.long, device=bench.device)

        def predict(x, number):
            first, last = (0, 2) if number == 0 else (number + 1, number + 2)

            def keep(i, k, v):
                short[i][0, :, :, first:last], short[i][1, :, :, first:last] = k, v
                return short[i][0, :, :, :last], short[i][1, :, :, :last]

            x = F.linear(x, self.down, self.down_bias)
            y = self.predictor.run(x, steps[number], keep, causal=number == 0)
            return draw(F.linear(y[:, -1], self.heads[number]))

        def frame():
            slot = position % CONTEXT

            def keep(i, k, v):
                return cache[i][0].index_copy_(2, slot, k), cache[i][1].index_copy_(2, slot, v)

            entry = F.embedding(codes[:, 0], self.embedding)[:, None]
            total, x, drawn = entry + text, torch.cat((hidden, entry), 1), []
            for number in range(15):
                drawn.append(predict(x, number))
                x = F.embedding(drawn[-1], self.embeddings[number])[:, None]
                total = total + x
            y = self.talker.run(total, self.talker.angles(position), keep)
            hidden.copy_(y)
            codes.copy_(torch.stack((draw(F.linear(y[:, -1], self.head)), *drawn), -1))
            position.add_(1)

        return frame, codes


def timed_frame(bench, frame, result, **said):
    """Captures a frame and times it until what it drew is on the host."""
    before = time.monotonic()
    replay = bench.captured(frame)
    said["capture_s"] = round(time.monotonic() - before, 2)

    def whole():
        replay()
        return result.cpu()

    found = bench.time(whole)
    different = len({tuple(whole().flatten().tolist()) for _ in range(5)})
    return found | said | {"graph": bench.cuda, "different_of_5": different}


def qwen(bench):
    model = {}

    def one(streams, joined):
        if not model:
            model["it"] = Qwen(bench)
        frame, codes = model["it"].frame(streams, joined)
        found = timed_frame(bench, frame, codes, streams=streams, context=CONTEXT, joined=joined)
        if found["different_of_5"] == 1:
            raise ValueError("five frames drew the same codes: the noise in the graph stands still")
        return found

    plain = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    with torch.inference_mode(), sdpa_kernel(plain):
        for joined in [False, True]:
            for streams in [1, 3 if bench.tiny else 64]:
                name = f"qwen3-tts-1.7b decoder frame x {streams}" + (", joined" if joined else "")
                bench.step(name, lambda n=streams, j=joined: one(n, j), 15)


def fastest_attention(bench, q, keys, values):
    """PyTorch's kernel that is fastest for this cache, as a context to run in."""
    times = {}
    for backend in [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]:
        with contextlib.suppress(RuntimeError), sdpa_kernel([backend]):
            found = bench.time(lambda: F.scaled_dot_product_attention(q, keys, values), seconds=0.05)
            times[backend] = found["ms"]
    best = min(times, key=times.get) if bench.cuda and times else SDPBackend.MATH
    return best, {b.name: t for b, t in times.items()}


def stt_frame(bench, streams, joined):
    sizes = {"layers": 2, "dim": 64, "ffn": 128} if bench.tiny else {"layers": 16, "dim": 2048, "ffn": 5632}
    heads, ring = (2, 20) if bench.tiny else (16, RING)
    streams = min(streams, 3) if bench.tiny else streams
    cache = [bench.random(2, streams, heads, ring, 128) for _ in range(sizes["layers"])]
    model = Decoder(bench, **sizes, heads=heads, kv_heads=heads, head_norms=False, theta=1e5, pairs=True, eps=1e-8)
    model.joined = joined
    table, head = bench.random(32 * 2049 + 8001, sizes["dim"]), bench.weight(8000, sizes["dim"])
    given = torch.randint(0, 2048, (streams, 33), device=bench.device) + 2049 * torch.arange(33, device=bench.device)
    position = ring + torch.arange(streams, device=bench.device)
    tokens = torch.zeros(streams, dtype=torch.long, device=bench.device)

    def frame():
        slot = (position % ring).view(-1, 1, 1, 1).expand(-1, heads, 1, 128)

        def keep(i, k, v):
            return cache[i][0].scatter_(2, slot, k), cache[i][1].scatter_(2, slot, v)

        x = F.embedding(given, table).sum(1, keepdim=True)
        y = model.run(x, model.angles(position.view(-1, 1, 1)), keep)
        tokens.copy_(F.linear(y[:, -1], head).argmax(-1))
        given[:, 32] = tokens + 32 * 2049
        position.add_(1)

    best, kernels = fastest_attention(bench, bench.random(streams, heads, 1, 128), cache[0][0], cache[0][1])
    said = {"streams": streams, "ring": ring, "joined": joined, "attention": best.name, "attention_layer_ms": kernels}
    with sdpa_kernel([best]):
        return timed_frame(bench, frame, tokens, **said)


def stt(bench):
    with torch.inference_mode():
        for joined in [False, True]:
            for streams in [512, 256]:
                name = f"stt-1b decoder, {streams} streams" + (", joined" if joined else "")
                if bench.step(name, lambda n=streams, j=joined: stt_frame(bench, n, j), 15):
                    break
                if bench.cuda:
                    torch.cuda.empty_cache()


def absent(bench):
    bench.step("pocket-100m", lambda: {"skipped": "needs the pocket-tts package; bench/peers times it on a CPU"}, 5)


GROUPS = [(qwen, 25), (stt, 22), (encoders, 60), (absent, 10)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--only", default="", help="measurements whose name this pattern finds")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to try the script")
    parser.add_argument("--seconds", type=float, default=75, help="for everything, imports included")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    bench, fork = Bench(args), multiprocessing.get_context("fork")
    for group, limit in GROUPS:
        limit = min(limit, args.seconds - (time.monotonic() - BEGUN))
        if limit < 3:
            bench.write({"group": group.__name__, "error": "no time left"})
            continue
        child = fork.Process(target=group, args=(bench,))
        child.start()
        child.join(limit)
        if child.is_alive():
            child.kill()
            child.join()
            bench.write({"group": group.__name__, "error": f"ended after {limit:.0f} s"})
        elif child.exitcode:
            bench.write({"group": group.__name__, "error": f"exit code {child.exitcode}"})


if __name__ == "__main__":
    main()
