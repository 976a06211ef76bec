#!/usr/bin/env python3
"""Compares the voce program with folders that full_size.py made: codes, tokens and samples, from the outside.

    python check_full.py --voce PATH --out run.jsonl [--precision f32] [--threads 1] DIR...

A line for each part: frames, how many codes or tokens are the package's, and where the first other one is with the package's own
margin there. What follows another choice is another text, so frames after it are not counted. Samples are compared for the
package's codes. Needs numpy and safetensors. crates/voce-models/tests/full_size.rs compares logits of every step besides.
"""

import argparse
import json
import subprocess
import tempfile
import wave
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

RATE = 24000


def voce(a, *args):
    done = subprocess.run([a.voce, "-q", *map(str, args), "--precision", a.precision, "--threads", str(a.threads), "--json"],
                          capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"voce {' '.join(map(str, args))}: {done.stderr.strip()}")
    return json.loads(done.stdout) if done.stdout.strip() else {}


def write_wav(path, samples):
    with wave.open(str(path), "wb") as f:
        f.setnchannels(1), f.setsampwidth(2), f.setframerate(RATE)
        f.writeframes((samples * 32768).round().clip(-32768, 32767).astype("<i2").tobytes())


def read_wav(path):
    with wave.open(str(path)) as f:
        return np.frombuffer(f.readframes(f.getnframes()), "<i2").astype(np.float64) / 32768


def choices(got, want, margin=None):
    """Codes `[books, frames]`: how many frames are wholly equal from the first one on, and all in all."""
    n = min(got.shape[-1], want.shape[-1])
    same = got[..., :n] == want[..., :n]
    whole = same.reshape(-1, n).all(0)
    first = int(np.argmin(whole)) if not whole.all() else n
    line = {"frames": n, "frames_equal_from_the_first": first, "same": int(same.sum()), "of": int(same.size)}
    if first < n and margin is not None:
        line["margin_there"] = float(np.asarray(margin).reshape(-1, margin.shape[-1])[:, first][~same.reshape(-1, n)[:, first]].min())
    return line


def sound(got, want):
    n = min(len(got), len(want))
    off = got[:n] - want[:n].clip(-1, 1)
    noise = float((off**2).mean())
    return {"samples": n, "largest_difference": float(np.abs(off).max()),
            "db": round(10 * np.log10(float((want[:n] ** 2).mean()) / max(noise, 1e-20)), 1)}


def check_codec(a, folder, codes, audio, name, tmp):
    """Decodes the package's codes."""
    save_file({"codes": codes.astype(np.int32)}, tmp / "codes.safetensors")
    voce(a, "codec", "decode", "--model", folder, tmp / "codes.safetensors", "-o", tmp / "out.wav")
    return {"part": name} | sound(read_wav(tmp / "out.wav"), audio)


def encoded(a, folder, wav, tmp, *more):
    voce(a, "codec", "encode", "--model", folder, wav, "-o", tmp / "codes.safetensors", *more)
    return load_file(tmp / "codes.safetensors")["codes"]


def mimi(a, folder, dump, tmp):
    write_wav(tmp / "in.wav", dump["pcm"][0])
    folder = folder / "mimi.safetensors"
    books = dump["codes"].shape[1]
    got = encoded(a, folder, tmp / "in.wav", tmp, "--codebooks", books)
    for count in (8, books):
        part = choices(got[:count], dump["codes"][0][:count], dump["margin"][0][:count])
        yield {"part": f"encoder, {count} codebooks"} | part
    # 16-bit samples of a codec that is not clipped.
    yield check_codec(a, folder, dump["codes"][0], dump["decoded"][0], "decoder", tmp)


def stt(a, folder, dump, tmp):
    heard = voce(a, "hear", "--model", folder, "--format", "json", folder / "audio.wav")
    got = np.array(heard["tokens"])
    yield {"part": "tokens"} | choices(got[None], dump["tokens"][None], dump["margin"][None])


def tts(a, folder, dump, tmp):
    text = json.loads((folder / "trace.json").read_text())["text"]
    voce(a, "say", "--model", folder, "--voice", folder / "voices" / "anna.wav.abcd@7.safetensors", "--temperature", 0, "--cfg", 2,
         "--codes", tmp / "said.safetensors", "-o", tmp / "said.wav", text)
    got, want = load_file(tmp / "said.safetensors")["codes"], dump["say/codes"]
    line = {"part": "say", "margin": float(dump["say/margin"].min())} | choices(got, want, dump["say/margin"])
    # The package stops with the longest delay still under way, so that the program says that many frames more.
    line["frames_said"] = got.shape[-1]
    if line["same"] == line["of"]:
        line |= sound(read_wav(tmp / "said.wav"), dump["say/audio"].clip(-0.99, 0.99))
    yield line
    yield check_codec(a, folder / "mimi.safetensors", want, dump["say/audio"], "codec decoder", tmp)


def qwen(a, folder, dump, tmp):
    report = json.loads((folder / "dump.json").read_text())
    yield check_codec(a, folder, dump["dec/codes"], dump["dec/audio"], "codec decoder", tmp)
    yield {"part": "codec encoder", "margin": report["encoder_margin"]} | choices(encoded(a, folder, folder / "ref.wav", tmp), dump["enc/codes"])
    for name, run in report["runs"].items():
        args = ["--greedy", "--max-frames", run["frames"], "--repetition-penalty", 1.05, "--language", run["language"],
                "--text-mode", "whole" if run["non_streaming_mode"] else "streaming"]
        args += ["--voice", run["speaker"]] if run.get("speaker") else []
        args += ["--instruct", run["instruct"]] if run.get("instruct") else []
        args += ["--clone", folder / "ref.wav"] if run.get("clone") else []
        args += ["--clone-text", run["ref_text"]] if run.get("ref_text") else []
        voce(a, "say", "--model", folder, *args, "--codes", tmp / "said.safetensors", "-o", tmp / "said.wav", run["text"])
        got = load_file(tmp / "said.safetensors")["codes"]
        line = {"part": f"say {name}", "margin": min(run["margins"].values())} | choices(got, dump[f"{name}/codes"])
        if f"{name}/audio" in dump and line["same"] == line["of"]:
            line |= sound(read_wav(tmp / "said.wav"), dump[f"{name}/audio"])
        yield line


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--voce", required=True)
    ap.add_argument("--out", required=True, type=Path)
    ap.add_argument("--precision", default="f32")
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("folders", nargs="+", type=Path)
    a = ap.parse_args()
    for folder in a.folders:
        folder, dump = folder.resolve(), load_file(folder / "dump.safetensors")
        config = json.loads((folder / "config.json").read_text()) if (folder / "config.json").exists() else {"model_type": "mimi"}
        check = {"mimi": mimi, "stt": stt, "tts": tts, "qwen3_tts": qwen}.get(config["model_type"])
        if not check:
            print(f"{folder.name}: only full_size.rs compares a '{config['model_type']}' model")
            continue
        with tempfile.TemporaryDirectory() as tmp:
            for line in check(a, folder, dump, Path(tmp)):
                line = {"model": folder.name, "precision": a.precision} | line
                print(json.dumps(line), flush=True)
                with a.out.open("a") as f:
                    f.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
