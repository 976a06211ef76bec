"""Runs the packed Kokoro graph (see kokoro_convert.py) with PyTorch, on a GPU or a CPU.

Small integer tensors (shapes, lengths) stay on the host, floats live on the device. One pass makes
one utterance: Kokoro(folder, device)(ids, style, speed) gives the wave at 24 kHz.
"""

import json
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

KINDS = {1: torch.float32, 7: torch.int64, 6: torch.int32, 9: torch.bool, 10: torch.float16}


class Kokoro:
    def __init__(self, folder: Path, device: str = "cpu", half: torch.dtype | None = None):
        self.device = torch.device(device)
        self.half = half or (torch.float16 if self.device.type == "cuda" else torch.float32)
        names = json.loads((folder / "names.json").read_text())
        with np.load(folder / "small.npz") as pack:
            small = {n: pack[f"arr_{i}"] for i, n in enumerate(names["small"])}
        with np.load(folder / "weights.npz") as pack:
            large = {n: pack[f"arr_{i}"] for i, n in enumerate(names["large"])}
        self.fixed = {n: self.place(torch.from_numpy(np.asarray(a))) for n, a in small.items() if not n.endswith("|scale")}
        for n, a in large.items():
            w = torch.from_numpy(a).to(self.device, torch.float32) * torch.from_numpy(small[n + "|scale"]).to(self.device)
            self.fixed[n] = w.to(self.half)
        self.nodes, self.lstms = [], {}
        with torch.no_grad():
            for node in json.loads((folder / "graph.json").read_text()):
                if all(n == "" or n in self.fixed for n in node["in"]) and node["op"] not in ("LSTM",):
                    got = self.run(node, [self.fixed.get(n) for n in node["in"]])
                    self.fixed.update(zip(node["out"], got if isinstance(got, tuple) else (got,)))
                else:
                    self.nodes.append(node)
        last = {}
        for i, node in enumerate(self.nodes):
            for n in node["in"]:
                last[n] = i
        self.free = [[n for n in dict.fromkeys(node["in"]) if n and n not in self.fixed and last[n] == i] for i, node in enumerate(self.nodes)]
        voices = np.load(folder / "voices.npy")
        self.voices = torch.from_numpy(voices.astype(np.float32)).to(self.device)
        self.names = json.loads((folder / "voices.json").read_text())

    def place(self, t: torch.Tensor) -> torch.Tensor:
        if t.dtype == torch.float16:
            t = t.to(self.half)
        return t.to(self.device) if t.is_floating_point() else t

    @torch.no_grad()
    def __call__(self, ids: list[int], style: torch.Tensor, speed: float) -> torch.Tensor:
        values = {"input_ids": torch.tensor([ids]), "style": style[None].to(self.device, torch.float32),
                  "speed": torch.tensor([speed], device=self.device)}
        for node, free in zip(self.nodes, self.free):
            got = self.run(node, [values[n] if n in values else self.fixed.get(n) for n in node["in"]])
            values.update(zip(node["out"], got if isinstance(got, tuple) else (got,)))
            for n in free:
                values.pop(n, None)
        return values["waveform"].float().reshape(-1)

    def run(self, node, x):
        op, at = node["op"], node["at"]
        if node["out"][0].endswith("generator/Div_output_0"):  # a phase's tangent: silence is 0 / 0
            return torch.nan_to_num(x[0] / x[1], nan=0.0)
        return getattr(self, "op_" + op)(x, at) if hasattr(self, "op_" + op) else PLAIN[op](*x)

    def both(self, a, b):
        """Brings a host tensor and a device tensor together."""
        if a.device != b.device and a.dim() and b.dim():
            a, b = a.to(self.device), b.to(self.device)
        return a, b

    def op_Shape(self, x, at):
        return torch.tensor(x[0].shape)

    def op_Gather(self, x, at):
        data, index = x
        axis = at.get("axis", 0)
        index = torch.where(index < 0, index + data.shape[axis], index).to(data.device)
        return data.index_select(axis, index.reshape(-1)).reshape(data.shape[:axis] + index.shape + data.shape[axis + 1:])

    def op_Transpose(self, x, at):
        return x[0].permute(at["perm"])

    def op_Unsqueeze(self, x, at):
        out = x[0]
        for axis in sorted(x[1].tolist()):
            out = out.unsqueeze(axis)
        return out

    def op_Squeeze(self, x, at):
        if len(x) < 2 or x[1] is None:
            return x[0].squeeze()
        return x[0].squeeze(tuple(x[1].tolist()))

    def op_Conv(self, x, at):
        pads = at.get("pads", [0, 0])
        assert pads[0] == pads[-1]
        return F.conv1d(x[0], x[1], x[2] if len(x) > 2 else None, at["strides"], pads[0], at["dilations"], at["group"])

    def op_ConvTranspose(self, x, at):
        return F.conv_transpose1d(x[0], x[1], x[2] if len(x) > 2 else None, at["strides"], at["pads"][0],
                                  at.get("output_padding", [0])[0], at["group"], at["dilations"])

    def op_Concat(self, x, at):
        if any(t.is_cuda for t in x):
            x = [t.to(self.device) for t in x]
        return torch.cat(x, at["axis"])

    def op_Slice(self, x, at):
        data, starts, ends = x[0], x[1].tolist(), x[2].tolist()
        axes = x[3].tolist() if len(x) > 3 and x[3] is not None else list(range(len(starts)))
        steps = x[4].tolist() if len(x) > 4 and x[4] is not None else [1] * len(starts)
        for s, e, axis, step in zip(starts, ends, axes, steps):
            n = data.shape[axis]
            if step < 0:
                data = data.flip(axis)
                s, e = n - 1 - (s if s >= 0 else max(s + n, -1)) if s < n else 0, n - 1 - (e + n if -n <= e < 0 else max(e, -1))
                step = -step
            s, e = (max(0, s + n) if s < 0 else min(s, n)), (max(0, e + n) if e < 0 else min(e, n))
            index = [slice(None)] * data.dim()
            index[axis] = slice(s, e, step)
            data = data[tuple(index)]
        return data

    def op_ConstantOfShape(self, x, at):
        value = at["value"]
        kind = {"float16": self.half, "float32": torch.float32, "int64": torch.int64, "bool": torch.bool}[value["dtype"]]
        out = torch.full(tuple(x[0].tolist()), value["tensor"][0], dtype=kind)
        return self.place(out)

    def op_LayerNormalization(self, x, at):
        return F.layer_norm(x[0], x[0].shape[-1:], x[1], x[2], at["epsilon"])

    def op_Where(self, x, at):
        if any(t.is_cuda for t in x):
            x = [t.to(self.device) for t in x]
        return torch.where(x[0], x[1], x[2])

    def op_LeakyRelu(self, x, at):
        return F.leaky_relu(x[0], at["alpha"])

    def op_Expand(self, x, at):
        shape = x[1].tolist()
        return x[0] * torch.ones(shape, dtype=x[0].dtype, device=x[0].device) if x[0].dtype != torch.bool else x[0].expand(shape)

    def op_Cast(self, x, at):
        kind = KINDS[at["to"]]
        if kind == torch.float16:
            kind = self.half
        out = x[0].to(kind)
        if kind in (torch.int64, torch.int32):
            return out.cpu()
        return out.to(self.device) if out.is_floating_point() else out

    def op_LSTM(self, x, at):
        key = id(x[1])
        if key not in self.lstms:
            w, r, b = (t.to(self.half) for t in x[1:4])
            n = at["hidden_size"]
            lstm = torch.nn.LSTM(w.shape[-1], n, bidirectional=True).to(self.device, self.half)
            order = lambda t: torch.cat([t[:n], t[2 * n:3 * n], t[3 * n:], t[n:2 * n]])  # i o f c -> i f g o
            for d, suffix in enumerate(("", "_reverse")):
                getattr(lstm, "weight_ih_l0" + suffix).data.copy_(order(w[d]))
                getattr(lstm, "weight_hh_l0" + suffix).data.copy_(order(r[d]))
                getattr(lstm, "bias_ih_l0" + suffix).data.copy_(order(b[d, :4 * n]))
                getattr(lstm, "bias_hh_l0" + suffix).data.copy_(order(b[d, 4 * n:]))
            lstm.flatten_parameters()
            self.lstms[key] = lstm
        out, _ = self.lstms[key](x[0])
        return out.view(*out.shape[:2], 2, -1).transpose(1, 2), None, None

    def op_Reshape(self, x, at):
        shape = [x[0].shape[i] if s == 0 else s for i, s in enumerate(x[1].tolist())]
        return x[0].reshape(shape)

    def op_Softmax(self, x, at):
        return torch.softmax(x[0], at["axis"])

    def op_Gemm(self, x, at):
        return F.linear(x[0], x[1] if at.get("transB") else x[1].T, x[2])

    def op_ReduceSum(self, x, at):
        return x[0].sum(tuple(x[1].tolist()), keepdim=bool(at.get("keepdims", 1)))

    def op_ReduceMean(self, x, at):
        return x[0].mean(tuple(x[1].tolist()), keepdim=bool(at.get("keepdims", 1)))

    def op_CumSum(self, x, at):
        return x[0].cumsum(int(x[1]))

    def op_Clip(self, x, at):
        return x[0].clamp(min=None if len(x) < 2 or x[1] is None else float(x[1]), max=None if len(x) < 3 or x[2] is None else float(x[2]))

    def op_Range(self, x, at):
        return torch.arange(int(x[0]), int(x[1]), int(x[2]))

    def op_Resize(self, x, at):
        scale = x[2].tolist()[-1]
        if at["mode"] == "nearest":
            return x[0].repeat_interleave(round(scale), -1)
        return F.interpolate(x[0], scale_factor=scale, mode="linear", recompute_scale_factor=False)

    def op_Pad(self, x, at):
        pads = x[1].tolist()
        half = len(pads) // 2
        flat = []
        for i in reversed(range(half)):
            flat += [pads[i], pads[half + i]]
        while len(flat) > 2 and flat[-2:] == [0, 0]:
            flat = flat[:-2]
        data = x[0]
        return F.pad(data, flat, mode=at["mode"]) if data.dim() > 1 else F.pad(data[None], flat, mode=at["mode"])[0]

    def op_STFT(self, x, at):
        n, hop = int(x[3]), int(x[1])
        signal = x[0].reshape(1, -1).float()
        out = torch.stft(signal, n, hop, n, x[2].float(), center=False, onesided=True, return_complex=True)
        return torch.view_as_real(out).transpose(1, 2).to(x[0].dtype)

    def op_NonZero(self, x, at):
        return torch.nonzero(x[0]).T

    def op_ScatterND(self, x, at):
        out = x[0].clone()
        out[tuple(x[1].to(out.device).unbind(-1))] = x[2].to(out.dtype)
        return out

    def op_Pow(self, x, at):
        return x[0] * x[0] if x[1].numel() == 1 and not x[1].is_cuda and float(x[1]) == 2 else torch.pow(x[0], x[1])

    def op_MatMul(self, x, at):
        a, b = self.both(*x)
        return a @ (b.to(a.dtype) if a.dtype != b.dtype else b)


def whole(f):
    def go(a, b):
        if a.device != b.device and a.dim() and b.dim():
            device = a.device if a.is_cuda else b.device
            a, b = a.to(device), b.to(device)
        return f(a, b)
    return go


def divide(a, b):
    return torch.div(a, b, rounding_mode="trunc") if not a.is_floating_point() and not b.is_floating_point() else a / b


PLAIN = {"Add": whole(torch.add), "Sub": whole(torch.sub), "Mul": whole(torch.mul), "Div": whole(divide), "Equal": whole(torch.eq),
         "Greater": whole(torch.gt), "Less": whole(torch.lt), "GreaterOrEqual": whole(torch.ge), "And": whole(torch.logical_and),
         "Sqrt": torch.sqrt, "Sin": torch.sin, "Cos": torch.cos, "Exp": torch.exp, "Tanh": torch.tanh, "Atan": torch.atan,
         "Sigmoid": torch.sigmoid, "Round": torch.round, "Floor": torch.floor}
