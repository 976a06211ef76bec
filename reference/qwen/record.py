"""Taps on the package's modules: what one generate() call computes, and the stages of the codec and the speaker encoder."""

import torch

COLUMNS = 64  # of stages above the frame rate, this many columns are kept


class Recorder:
    """Records one greedy call of the talker: prefill, step inputs, hidden states, logits of every codebook."""

    def __init__(self, model, layers: bool):
        self.model, self.tensors = model, {}
        talker, predictor = model.talker, model.talker.code_predictor
        self.inputs, self.hidden, self.logits, self.cp_logits = [], [], [], []
        self.talker_layers = [[] for _ in talker.model.layers] if layers else []
        self.cp_layers = [[] for _ in predictor.model.layers] if layers else []
        take = lambda store: lambda _m, _a, out: store.append(out.detach().clone())  # noqa: E731
        first = lambda store: lambda _m, _a, out: store.append((out[0] if isinstance(out, tuple) else out).detach().clone())  # noqa: E731
        self.handles = [
            talker.model.register_forward_pre_hook(lambda _m, _a, k: self.inputs.append(k["inputs_embeds"].detach().clone()), with_kwargs=True),
            talker.model.norm.register_forward_hook(take(self.hidden)),
            talker.codec_head.register_forward_hook(take(self.logits)),
            *[h.register_forward_hook(take(self.cp_logits)) for h in predictor.lm_head],
            *[layer.register_forward_hook(first(store)) for layer, store in zip(talker.model.layers, self.talker_layers)],
            *[layer.register_forward_hook(first(store)) for layer, store in zip(predictor.model.layers, self.cp_layers)],
        ]
        self.generate = talker.generate

        def generate(**k):
            self.tensors["trailing"] = k["trailing_text_hidden"][0].detach().clone()
            self.tensors["tts_pad"] = k["tts_pad_embed"][0, 0].detach().clone()
            result = self.generate(**k)
            self.tensors["sequence"] = result.sequences[0].detach().clone()
            return result

        talker.generate = generate

    def close(self, codebook: int, eos: int) -> dict:
        for h in self.handles:
            h.remove()
        self.model.talker.generate = self.generate
        t = self.tensors
        groups = len(self.model.talker.code_predictor.lm_head)
        logits = torch.stack([x[0, -1] for x in self.logits])
        t["prefill"] = self.inputs[0][0]
        t["step_inputs"] = torch.stack([x[0, 0] for x in self.inputs[1:]])
        t["hidden"] = torch.stack([x[0, -1] for x in self.hidden])
        t["logits"] = logits[:, :codebook]
        t["eos_logits"] = logits[:, eos]
        t["first_logits"] = logits[0]
        t["cp_logits"] = torch.stack([x[0, -1] for x in self.cp_logits]).view(-1, groups, codebook)
        for i, store in enumerate(self.talker_layers):
            t[f"prefill/layer.{i}"] = store[0][0]
        for i, store in enumerate(self.cp_layers):  # the positions of the first frame
            t[f"predictor/layer.{i}"] = torch.cat([x[0] for x in store[:groups]])
        return t


def margins(t: dict, eos: int, penalty: float) -> dict:
    """The smallest distance between best and second choice, of code 0 after its processors and of the other codes."""
    two = t["cp_logits"].topk(2, -1).values
    smallest = float("inf")
    for step, (row, end) in enumerate(zip(t["logits"], t["eos_logits"])):
        row = row.clone()
        for seen in set(t["sequence"][:step].tolist()):
            if seen < len(row):
                row[seen] = row[seen] / penalty if row[seen] > 0 else row[seen] * penalty
        all_ = torch.cat([row, end[None] if step >= 2 else end.new_full((1,), -1e30)])
        best, at = all_.topk(2)
        choice = int(at[0]) if int(at[0]) < len(row) else eos
        assert choice == int(t["sequence"][step]), (step, choice, t["sequence"])
        smallest = min(smallest, float(best[0] - best[1]))
    return {"code0": smallest, "others": float((two[..., 0] - two[..., 1]).min())}


@torch.no_grad()
def decoder_stages(decoder, codes) -> dict:
    """Every stage of the codec decoder for `codes` [groups, frames]."""
    d = {"codes": codes}
    h = decoder.quantizer.decode(codes[None])
    d["quantizer"] = h
    h = decoder.pre_conv(h)
    d["pre_conv"] = h
    taps = [layer.register_forward_hook(lambda _m, _a, o, i=i: d.__setitem__(f"transformer.{i}", (o[0] if isinstance(o, tuple) else o).detach().clone()))
            for i, layer in enumerate(decoder.pre_transformer.layers)]
    h = decoder.pre_transformer(inputs_embeds=h.transpose(1, 2)).last_hidden_state.transpose(1, 2)
    for tap in taps:
        tap.remove()
    d["transformer"] = h
    for i, pair in enumerate(decoder.upsample):
        for j, part in enumerate(pair):
            h = part(h)
            d[f"upsample.{i}.{j}"] = h
    for i, part in enumerate(decoder.decoder):
        if hasattr(part, "block"):
            for j, inner in enumerate(part.block):
                h = inner(h)
                d[f"decoder.{i}.{j}"] = h
        else:
            h = part(h)
            d[f"decoder.{i}"] = h
    wav = decoder(codes[None])
    assert torch.equal(wav, h.clamp(-1, 1))
    d = {k: (v[0] if v.dim() == 3 else v) for k, v in d.items()}
    d = {k: (v if k.startswith("transformer.") or k == "codes" else v[:, :COLUMNS]) for k, v in d.items()}
    d["audio"] = wav[0, 0]
    return d


@torch.no_grad()
def encoder_stages(codec, tokenizer, wav) -> tuple[dict, float]:
    """Every stage of the codec encoder for the samples `wav`, and the smallest distance between best and second entry."""
    enc, d = codec.encoder, {}
    h = torch.from_numpy(wav)[None, None]
    for i, layer in enumerate(enc.encoder.layers):
        h = layer(h)
        if not isinstance(layer, torch.nn.ELU):
            d[f"seanet.{i}"] = h[0, :, :COLUMNS]
    d["seanet"] = h[0]
    h = enc.encoder_transformer(h.transpose(1, 2))[0].transpose(1, 2)
    d["transformer"] = h[0]
    h = enc.downsample(h)
    d["downsample"] = h[0]
    codes = enc.quantizer.encode(h).transpose(0, 1)[0, : codec.encoder_valid_num_quantizers]
    result = tokenizer.encode(wav, sr=codec.input_sample_rate).audio_codes[0]
    assert torch.equal(codes.T[: result.shape[0]], result)
    d["codes"] = result.T
    smallest = float("inf")
    q = enc.quantizer
    for part, n in ((q.semantic_residual_vector_quantizer, 1), (q.acoustic_residual_vector_quantizer, len(codes) - 1)):
        r = h if part.input_proj is None else part.input_proj(h)
        for layer in part.layers[:n]:
            dist = torch.cdist(r[0].T[None], layer.codebook.embed[None])[0]
            two = dist.topk(2, -1, largest=False).values
            smallest = min(smallest, float((two[:, 1] - two[:, 0]).min()))
            r = r - layer.decode(layer.encode(r))
    return d, smallest


@torch.no_grad()
def speaker_stages(model, wav) -> dict:
    """Mel spectrogram, every block of the speaker encoder, and the embedding."""
    from qwen_tts.core.models.modeling_qwen3_tts import mel_spectrogram

    mel = mel_spectrogram(torch.from_numpy(wav)[None], n_fft=1024, num_mels=128, sampling_rate=24000, hop_size=256, win_size=1024, fmin=0, fmax=12000)
    d, h, outs = {"mel": mel[0]}, mel, []
    enc = model.speaker_encoder
    for i, block in enumerate(enc.blocks):
        h = block(h)
        outs.append(h)
        d[f"blocks.{i}"] = h[0]
    h = enc.mfa(torch.cat(outs[1:], 1))
    d["mfa"] = h[0]
    d["asp"] = enc.asp(h)[0, :, 0]
    d["embedding"] = model.extract_speaker_embedding(wav, 24000)
    return d
