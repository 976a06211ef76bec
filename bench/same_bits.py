"""Compares what two builds of Voce say and hear, bit by bit, on every precision and instruction set of this CPU.

    bench/same_bits.py OLD/voce NEW/voce [--clips FOLDER] [--quick]

Speaks with every small Pocket TTS model of the tests and with the voice in `models/`, at one and two threads, in turn and in lock step, and
compares samples as f32. Hears with every small FastConformer model and with the recogniser in `models/`, in chunks and by beams, and
compares tokens, words, times and scores. Exits with 1 at the first difference, after naming all of them.
"""

import argparse
import hashlib
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "crates/voce-models/tests/fixtures"
TEXT = "Hello world. Go and look at the water! What is it, then? [pause:200ms] The 3rd of May."
PRECISIONS = ["f32", "bf16", "int8", "int4"]
ISAS = ["scalar", "neon", "dotprod", "i8mm", "avx2", "avxvnni", "avx512bw", "avx512", "amx"]
# What differs between two runs of one build.
CLOCKS = ("_ms", "ms", "rtf", "seconds_taken", "rss", "time", "load", "wall", "elapsed", "speed", "cpu")


def run(binary, arguments, isa, home, **more):
    env = dict(os.environ, VOCE_CPU=isa, VOCE_HOME=str(home), VOCE_NO_PACKED="1", VOCE_DEVICE="cpu", HF_HUB_OFFLINE="1")
    return subprocess.run([binary, *map(str, arguments)], env=env, capture_output=True, **more)


def isas(binary, home):
    """Instruction sets that this CPU has."""
    def works(isa):
        return run(binary, ["bench", "say", "--shape", "pocket-2m", "--frames", "1", "--repeat", "1", "--json"], isa, home).returncode == 0
    return [isa for isa in ISAS if works(isa)]


def timeless(value):
    """A report without what a clock or the machine put into it."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if not any(c in k.lower() for c in CLOCKS) or k in ("start", "end")}
    if isinstance(value, list):
        return [timeless(v) for v in value]
    return value


def said(binary, model, precision, isa, threads, lockstep, home):
    arguments = ["say", "--precision", precision, "--threads", threads, "--lockstep", lockstep, "--seed", 7, "--temperature", 0.6,
                 "--max-tokens", 20, "--format", "f32", "-o", "-", TEXT]
    nano = ["--model", ROOT / "models/nano-voice"]
    arguments[1:1] = nano if model == "nano" else ["--model", FIXTURES / "pocket" / model, "--voice", "voice"]
    done = run(binary, arguments, isa, home)
    if done.returncode != 0:
        return f"exit {done.returncode}: {done.stderr.decode(errors='replace')[-200:]}"
    return hashlib.sha256(done.stdout).hexdigest() + f" ({len(done.stdout) // 4} samples)"


def heard(binary, model, options, precision, isa, clip, home):
    arguments = ["hear", "--precision", precision, "--threads", 1, "--format", "json", *options, clip]
    arguments[1:1] = ["--model", ROOT / "models/nano-ear" if model == "nano" else FIXTURES / "fastconformer" / model]
    done = run(binary, arguments, isa, home)
    if done.returncode != 0:
        return f"exit {done.returncode}: {done.stderr.decode(errors='replace')[-200:]}"
    return json.dumps(timeless(json.loads(done.stdout)), sort_keys=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=pathlib.Path)
    parser.add_argument("new", type=pathlib.Path)
    parser.add_argument("--clips", type=pathlib.Path, help="folder of speech to hear; the tests' own clips when absent")
    parser.add_argument("--quick", action="store_true", help="the best instruction set alone")
    args = parser.parse_args()
    clips = sorted(p for p in (args.clips or FIXTURES / "fastconformer/audio").rglob("*") if p.suffix in (".wav", ".flac"))[:3]
    speaking = ["nano", *sorted(p.name for p in (FIXTURES / "pocket").iterdir() if (p / "voice.safetensors").exists())]
    hearing = ["nano", *sorted(p.name for p in (FIXTURES / "fastconformer").iterdir() if (p / "config.json").exists())]
    ways = [[], ["--beam", "4"]]
    differences, compared = [], 0

    with tempfile.TemporaryDirectory() as home:
        sets = isas(args.new, home)
        sets = sets[-1:] if args.quick else sets

        def compare(name, make):
            nonlocal compared
            compared += 1
            old, new = make(args.old), make(args.new)
            if old != new:
                differences.append(name)
                print(f"DIFFERS {name}\n  old {old[:300]}\n  new {new[:300]}", flush=True)

        for isa, precision in itertools.product(sets, PRECISIONS):
            for model, (threads, lockstep) in itertools.product(speaking, [(1, 1), (2, 8)]):
                compare(f"say {model} {precision} {isa} threads {threads} lockstep {lockstep}",
                        lambda b: said(b, model, precision, isa, threads, lockstep, home))
            for model, way, clip in itertools.product(hearing, ways, clips):
                compare(f"hear {model} {precision} {isa} {' '.join(way)} {clip.name}",
                        lambda b: heard(b, model, way, precision, isa, clip, home))
            print(f"{isa} {precision}: {compared} compared, {len(differences)} differ", flush=True)
    print(f"{compared} compared on {', '.join(sets)}: {len(differences)} differ")
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    main()
