"""The platforms that releases are made for, and how each is built with what this machine has."""

import dataclasses
import os
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Built against this C library where zig is the linker; any system since 2014 has it.
OLD_GLIBC = (2, 17)
# Profiles whose folder has another name than they.
FOLDERS = {"dev": "debug", "test": "debug", "bench": "release"}


@dataclasses.dataclass(frozen=True)
class Target:
    """A platform: its name in file names, Rust's name for it, Debian's, and the compiler that links for it."""

    name: str
    triple: str
    arch: str
    system: str
    debian: str | None
    gcc: str

    @property
    def executable(self):
        return "voce.exe" if self.system == "windows" else "voce"


TARGETS = [
    Target("x86_64-linux", "x86_64-unknown-linux-gnu", "x86_64", "linux", "amd64", "x86_64-linux-gnu-gcc"),
    Target("aarch64-linux", "aarch64-unknown-linux-gnu", "aarch64", "linux", "arm64", "aarch64-linux-gnu-gcc"),
    Target("x86_64-windows", "x86_64-pc-windows-gnu", "x86_64", "windows", None, "x86_64-w64-mingw32-gcc"),
]


class Missing(Exception):
    """Something that a target needs is not on this machine."""


def output(*command):
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def host():
    line = next(line for line in output("rustc", "-vV").splitlines() if line.startswith("host: "))
    return line.removeprefix("host: ")


def has_zig():
    return shutil.which("cargo-zigbuild") is not None


def compiler(target):
    """The C compiler that links for a target where zig does not."""
    if target.triple == host() and shutil.which("gcc"):
        return "gcc"
    if shutil.which(target.gcc):
        return target.gcc
    raise Missing(f"no linker for it: install {target.gcc}, or cargo-zigbuild with zig")


def check(target):
    """`Missing` says what has to be installed before a target can be built."""
    folder = output("rustc", "--print", "target-libdir", "--target", target.triple)
    if not any(pathlib.Path(folder).glob("libstd-*.rlib")):
        raise Missing(f"Rust's standard library for it is not installed (rustup target add {target.triple})")
    if target.system == "windows" or not has_zig():
        compiler(target)


def build(target, folder, profile):
    """Builds the binary; returns its path and the newest C library that it may ask for, if one was promised."""
    env = dict(os.environ, CARGO_TARGET_DIR=str(folder), CARGO_INCREMENTAL="0")
    # Paths of the machine that builds are nobody's business, and the same sources give the same bytes elsewhere.
    cargo_home = os.environ.get("CARGO_HOME") or str(pathlib.Path.home() / ".cargo")
    env["RUSTFLAGS"] = f"{env.get('RUSTFLAGS', '')} --remap-path-prefix={cargo_home}=/cargo --remap-path-prefix={ROOT}=/voce".strip()
    command, triple, promised = "build", target.triple, None
    variable = target.triple.replace("-", "_")
    if target.system == "linux" and has_zig():
        command, promised = "zigbuild", OLD_GLIBC
        # A linker or compiler of the caller's would be taken instead of zig, with the C library that it has.
        for name in (f"CARGO_TARGET_{variable.upper()}_LINKER", f"CC_{variable}"):
            env.pop(name, None)
        triple = f"{target.triple}.{OLD_GLIBC[0]}.{OLD_GLIBC[1]}"
    else:
        linker = compiler(target)
        env[f"CARGO_TARGET_{variable.upper()}_LINKER"] = linker
        env[f"CC_{variable}"] = linker
    subprocess.run(["cargo", command, "--locked", "-p", "voce", "--profile", profile, "--target", triple], cwd=ROOT, check=True, env=env)
    return folder / target.triple / FOLDERS.get(profile, profile) / target.executable, promised


def c_library(target, libraries):
    """Files of the C library that the binary and the drivers that it loads need, for a file system of its own."""
    gcc = compiler(target)
    found = {}
    for name in sorted(libraries):
        path = pathlib.Path(output(gcc, f"-print-file-name={name}"))
        if not path.is_absolute():
            raise Missing(f"{name} is not in the C library of {gcc}")
        found[name] = path.resolve()
    return found
