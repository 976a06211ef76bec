"""Small random decoders of Qwen3-TTS's names, and what the transformers package computes from them.

    python make_fixture.py ../../crates/voce-models/tests/fixtures/decoder

Writes model.safetensors (bf16), dump.safetensors (f32) and dump.json: hidden states of every layer, with and without
a sliding window; greedy frames of a talker and its code predictor, made with two Qwen3 models; and what the
package's logits processors leave to be drawn.
"""
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import (LogitsProcessorList, Qwen3Config, Qwen3Model, RepetitionPenaltyLogitsProcessor,
                          SuppressTokensLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)

VOCAB, CODES, PREDICTED, TEXT = 37, 23, 3, 11
FRAMES, PROMPT, WINDOW = 4, 9, 4


def config(hidden, ffn, layers, **more):
    return Qwen3Config(vocab_size=VOCAB, hidden_size=hidden, intermediate_size=ffn, num_hidden_layers=layers,
                       num_attention_heads=4, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6,
                       rope_parameters={"rope_type": "default", "rope_theta": 1e6},
                       max_position_embeddings=128, attention_bias=False, attn_implementation="eager", **more)


def randomised(model):
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 1:
                p.copy_(1 + 0.3 * torch.randn_like(p))
            else:
                p.copy_(torch.randn_like(p) * 1.5 / p.shape[1] ** 0.5)
            p.copy_(p.bfloat16().float())
    return model.eval()


def matrix(*shape, scale=1.0):
    return (torch.randn(*shape) * scale).bfloat16().float()


def layers_of(model, x):
    """Rows after every layer, before the final norm, and the rows after it."""
    rows = []
    hooks = [layer.register_forward_hook(lambda _, __, out: rows.append((out[0] if isinstance(out, tuple) else out).clone()))
             for layer in model.layers]
    last = model(inputs_embeds=x, use_cache=False).last_hidden_state
    [hook.remove() for hook in hooks]
    return [r.reshape(-1, r.shape[-1]) for r in rows], last[0]


@torch.no_grad()
def main(folder):
    torch.manual_seed(5)
    talker = randomised(Qwen3Model(config(32, 48, 2)))
    predictor = randomised(Qwen3Model(config(24, 40, 2)))
    own, codes, text = matrix(VOCAB, 32), [matrix(CODES, 32) for _ in range(PREDICTED)], matrix(TEXT, 32)
    head, heads = matrix(VOCAB, 32, scale=0.4), [matrix(CODES, 24, scale=0.4) for _ in range(PREDICTED)]
    projection, bias = matrix(24, 32, scale=0.3), matrix(24, scale=0.3)
    project = lambda x: x @ projection.T + bias

    tensors = {f"talker.model.{n}": p for n, p in talker.named_parameters() if "embed_tokens" not in n}
    tensors |= {f"talker.code_predictor.model.{n}": p for n, p in predictor.named_parameters() if "embed_tokens" not in n}
    tensors |= {"talker.model.codec_embedding.weight": own, "talker.codec_head.weight": head, "text.weight": text,
                "talker.code_predictor.small_to_mtp_projection.weight": projection,
                "talker.code_predictor.small_to_mtp_projection.bias": bias}
    for i in range(PREDICTED):
        tensors[f"talker.code_predictor.model.codec_embedding.{i}.weight"] = codes[i]
        tensors[f"talker.code_predictor.lm_head.{i}.weight"] = heads[i]

    dump, notes = {}, {}
    prompt = matrix(PROMPT, 32)
    dump["prompt"] = prompt
    windowed = Qwen3Model(config(32, 48, 2, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=0)).eval()
    assert set(windowed.config.layer_types) == {"sliding_attention"}, windowed.config.layer_types
    windowed.load_state_dict(talker.state_dict())
    for name, model in (("full", talker), ("window", windowed)):
        rows, last = layers_of(model, prompt[None])
        for i, r in enumerate(rows):
            dump[f"{name}/layer.{i}"] = r
        dump[f"{name}/normed"] = last

    # Frames: the rows so far are run anew each time, which needs no cache.
    x, frames, margin = prompt, [], float("inf")
    texts = [3, 0, 7, 10]

    def best(logits):
        nonlocal margin
        top = logits.topk(2).values
        margin = min(margin, float(top[0] - top[1]))
        return int(logits.argmax())

    for f in range(FRAMES):
        hidden = layers_of(talker, x[None])[1][-1]
        logits = hidden @ head.T
        dump[f"frame.{f}/logits"] = logits
        frame = [best(logits)]
        rows = torch.stack([project(hidden), project(own[frame[0]])])
        for i in range(PREDICTED):
            logits = layers_of(predictor, rows[None])[1][-1] @ heads[i].T
            frame.append(best(logits))
            rows = torch.cat([rows, project(codes[i][frame[-1]])[None]])
        frames.append(frame)
        step = own[frame[0]] + sum(codes[i][frame[i + 1]] for i in range(PREDICTED)) + text[texts[f]]
        x = torch.cat([x, step[None]])
    notes |= {"frames": frames, "texts": texts, "margin": margin, "window": WINDOW}
    print("frames", frames, "smallest margin", margin)

    # What may be drawn, and how often.
    logits = torch.randn(40) * 2.5
    cases = []
    for temperature, top_k, top_p, penalty, below, also in [
        (0.9, 10, 1.0, 1.05, 40, None), (0.9, 5, 0.7, 1.3, 40, None), (1.4, 40, 0.6, 1.0, 40, None),
        (0.7, 12, 0.9, 1.1, 24, 30), (1.0, 40, 1.0, 1.2, 24, 30)]:
        seen = [int(i) for i in logits.topk(6).indices[::2]] + [1, 2]
        out = [i for i in range(below, 40) if i != also]
        chain = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(penalty)])
        if out:
            chain.append(SuppressTokensLogitsProcessor(out, device="cpu"))
        chain += [TemperatureLogitsWarper(temperature), TopKLogitsWarper(top_k)]
        if top_p < 1:
            chain.append(TopPLogitsWarper(top_p))
        probabilities = chain(torch.tensor([seen]), logits[None].clone()).softmax(-1)[0]
        cases.append({"temperature": temperature, "top_k": top_k, "top_p": top_p, "penalty": penalty, "below": below,
                      "also": also, "seen": seen, "probabilities": [round(float(p), 7) for p in probabilities]})
    notes["sampling"] = {"logits": [float(v) for v in logits], "cases": cases}

    folder.mkdir(parents=True, exist_ok=True)
    save_file({n: t.detach().bfloat16().contiguous() for n, t in tensors.items()}, folder / "model.safetensors")
    save_file({n: t.detach().float().contiguous() for n, t in dump.items()}, folder / "dump.safetensors")
    (folder / "dump.json").write_text(json.dumps(notes) + "\n")


main(Path(sys.argv[1]))
