"""Builds the binary and the tests that a GPU machine runs, and puts them into one folder."""

import argparse
import json
import os
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = {
    "voce-runtime": ["ops", "attention_ops", "codec_ops", "conformer_ops", "conv_ops", "decoder_ops", "row_ops", "sampling_ops", "mel_ops", "fp8_ops"],
    "voce-models": ["device", "device_fp8", "device_searches", "decoder_reference", "long_run"],
}


def executables(profile, arguments):
    """Paths of what a cargo command builds, by name."""
    command = ["cargo", *arguments, "--profile", profile, "--message-format=json"]
    run = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    found = {}
    for line in run.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable"):
            found[message["target"]["name"]] = pathlib.Path(message["executable"])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "gpu-kit")
    parser.add_argument("--profile", default="release", help="cargo's profile; `kit` builds quickly")
    parser.add_argument("--nvrtc", help="folder of libnvrtc: the kernels are compiled here and travel along")
    parser.add_argument("--arch", default="90", help="compute capability that the kernels are compiled for; 1 for all")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    # Nothing there needs the embedded models.
    built = executables(args.profile, ["build", "-p", "voce", "--no-default-features"])
    wanted = ["voce"]
    for package, tests in TESTS.items():
        flags = [flag for test in tests for flag in ("--test", test)]
        built |= executables(args.profile, ["test", "-p", package, "--no-run", *flags])
        wanted += tests
    for name in wanted:
        target = args.out / name
        shutil.copy2(built[name], target)
        subprocess.run(["strip", str(target)], check=True)
        print(f"{target}  {target.stat().st_size / 1e6:.1f} MB")
    if args.nvrtc:
        cache = str(args.out.resolve() / "cache")
        keep = os.environ | {"VOCE_NVRTC": args.arch, "VOCE_CUDA_LIB": args.nvrtc, "VOCE_NVRTC_KEEP": cache}
        subprocess.run(["cargo", "test", "-p", "voce-runtime", "--lib", "kernels_compile"], cwd=ROOT, env=keep, check=True)
    # The tests look for their fixtures where they were built.
    (args.out / "root").write_text(str(ROOT))


if __name__ == "__main__":
    main()
