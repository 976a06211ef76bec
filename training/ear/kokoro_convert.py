"""Packs a Kokoro-82M ONNX file and its voices into a small folder that `kokoro.py` can run.

    python kokoro_convert.py --onnx kokoro-fp16.onnx --voices voices/ --out kokoro

graph.json holds the nodes, small.npz every small constant in its own type, weights.npz the large
matrices as int8 with one scale per output row, voices.npy the style vectors in float16.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

LARGE = 4096


def attribute(a):
    value = onnx.helper.get_attribute_value(a)
    if isinstance(value, onnx.TensorProto):
        array = numpy_helper.to_array(value)
        return {"tensor": array.reshape(-1).tolist(), "shape": list(array.shape), "dtype": str(array.dtype)}
    if isinstance(value, bytes):
        return value.decode()
    return [v.decode() if isinstance(v, bytes) else v for v in value] if isinstance(value, (list, tuple)) or hasattr(value, "__len__") and not isinstance(value, str) else value


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--onnx", type=Path, required=True)
    p.add_argument("--voices", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    graph = onnx.load(str(a.onnx)).graph
    small, large, axes = {}, {}, {}
    for node in graph.node:  # MatMul and ConvTranspose keep their output channels in the second axis
        if node.op_type in ("MatMul", "ConvTranspose") and len(node.input) > 1:
            axes[node.input[1]] = 1
    for t in graph.initializer:
        array = numpy_helper.to_array(t)
        if array.dtype == np.float16 and array.size >= LARGE and array.ndim > 1:
            w = array.astype(np.float32)
            keep = axes.get(t.name, 0) if w.ndim < 3 or t.name in axes else (1 if "LSTM" in t.name else 0)
            over = tuple(i for i in range(w.ndim) if i != keep)
            if w.ndim == 3 and w.shape[0] == 2:  # LSTM weights: one scale per direction and row
                over = (2,)
            scale = np.maximum(np.abs(w).max(over, keepdims=True), 1e-8) / 127
            large[t.name] = np.round(w / scale).astype(np.int8)
            small[t.name + "|scale"] = scale.astype(np.float32)
        else:
            small[t.name] = array
    nodes = [{"op": n.op_type, "in": list(n.input), "out": list(n.output), "at": {x.name: attribute(x) for x in n.attribute}} for n in graph.node]
    (a.out / "graph.json").write_text(json.dumps(nodes))
    names = {"small": list(small), "large": list(large)}
    (a.out / "names.json").write_text(json.dumps(names))
    np.savez(a.out / "small.npz", *small.values())
    np.savez(a.out / "weights.npz", *large.values())
    voices = sorted(a.voices.glob("*.bin"))
    styles = np.stack([np.fromfile(v, np.float32).reshape(510, 256) for v in voices]).astype(np.float16)
    np.save(a.out / "voices.npy", styles)
    (a.out / "voices.json").write_text(json.dumps([v.stem for v in voices]))
    print(len(nodes), "nodes", sum(x.size for x in large.values()) / 1e6, "M int8", styles.shape)


if __name__ == "__main__":
    main()
