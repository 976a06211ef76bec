#!/usr/bin/env python3
"""Compares `voce hear` with a folder that full_size.py made: greedy labels and their frames, per precision.

    python check_voce.py --voce ../../target/release/voce DIR...

f32 has to be equal. Smaller precisions print the length of the common beginning: random weights decide by thin margins.
"""
import argparse
import json
import pathlib
import subprocess
import sys


def hear(voce, folder, precision, chunk):
    command = [voce, "-q", "hear", "--model", str(folder), "--precision", precision, "--format", "json"]
    command += ["--chunk", str(chunk)] if chunk else []
    done = subprocess.run([*command, str(folder / "audio.wav")], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{folder}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--voce", default="voce")
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    args = parser.parse_args()
    failed = False
    for folder in args.folders:
        expected = json.loads((folder / "expected.json").read_text())
        greedy = expected["greedy"]
        chunk = (expected["lookahead"] + 1) * 80 if "lookahead" in expected else None
        for precision in ("f32", "bf16", "int8"):
            got = hear(args.voce, folder, precision, chunk)
            same = got["tokens"] == greedy["tokens"] and got["frames"] == greedy["frames"]
            common = next((i for i, (a, b) in enumerate(zip(got["tokens"], greedy["tokens"])) if a != b),
                          min(len(got["tokens"]), len(greedy["tokens"])))
            failed |= precision == "f32" and not same
            print(f"{folder.name} {precision}: " + ("equal" if same else f"equal for {common} labels")
                  + f", {len(greedy['tokens'])} expected")
    sys.exit(failed)


if __name__ == "__main__":
    main()
