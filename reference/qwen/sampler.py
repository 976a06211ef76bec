"""What the chain of logit processors makes of given logits, in the order in which the package runs it."""

import json
from pathlib import Path

import cases
import torch
from safetensors.torch import save_file
from transformers.generation import logits_process as lp

CASES = {
    "default": dict(history=9, top_k=50, top_p=1.0, temperature=0.9, repetition_penalty=1.05),
    "few": dict(history=9, top_k=5, top_p=1.0, temperature=0.9, repetition_penalty=1.3),
    "top_p": dict(history=9, top_k=50, top_p=0.8, temperature=0.7, repetition_penalty=1.05),
    "no_top_k": dict(history=9, top_k=0, top_p=0.9, temperature=1.3, repetition_penalty=1.05),
    "first_token": dict(history=1, top_k=50, top_p=1.0, temperature=0.9, repetition_penalty=1.05),
    "third_token": dict(history=2, top_k=50, top_p=1.0, temperature=0.9, repetition_penalty=1.05),
}
PREDICTOR = {
    "default": dict(top_k=50, top_p=1.0, temperature=0.9),
    "few": dict(top_k=4, top_p=1.0, temperature=1.1),
    "top_p": dict(top_k=20, top_p=0.7, temperature=0.8),
}


def warpers(c: dict) -> list:
    out = [lp.TemperatureLogitsWarper(c["temperature"])]
    if c["top_k"]:
        out.append(lp.TopKLogitsWarper(c["top_k"]))
    if c["top_p"] < 1:
        out.append(lp.TopPLogitsWarper(c["top_p"]))
    return out


def write(out: Path):
    gen = torch.Generator().manual_seed(77)
    vocab, eos = cases.CODEBOOK + cases.CONTROL, cases.CODEBOOK + 102
    logits = torch.randn(2, vocab, generator=gen) * 3
    logits[:, eos] = 7.0
    history = torch.randint(0, cases.CODEBOOK, (2, 9), generator=gen)
    suppressed = [i for i in range(vocab - cases.CONTROL, vocab) if i != eos]
    tensors = {"logits": logits, "history": history.int()}
    for name, c in CASES.items():
        chain = lp.LogitsProcessorList([
            lp.RepetitionPenaltyLogitsProcessor(c["repetition_penalty"]), lp.MinNewTokensLengthLogitsProcessor(0, 2, eos),
            lp.SuppressTokensLogitsProcessor(suppressed), *warpers(c)])
        scores = chain(history[:, : c["history"]], logits.clone())
        tensors[f"talker/{name}"] = torch.softmax(scores, -1)
    small = torch.randn(2, 64, generator=gen) * 2
    tensors["predictor/logits"] = small
    for name, c in PREDICTOR.items():
        tensors[f"predictor/{name}"] = torch.softmax(lp.LogitsProcessorList(warpers(c))(None, small.clone()), -1)
    save_file(tensors, out / "sampler.safetensors")
    report = dict(order="repetition penalty, EOS not in the first 2, suppression, temperature, top-k, top-p, softmax",
                  eos=eos, vocab=vocab, suppressed_from=vocab - cases.CONTROL, talker=CASES, predictor=PREDICTOR)
    (out / "sampler.json").write_text(json.dumps(report, indent=1) + "\n")
