"""A release is tried before it is handed out: its install.sh, its archive, its Debian package and its image, each in a
folder of its own, with an emulator where the platform is another one.
"""

import os
import pathlib
import platform
import shutil
import socket
import subprocess
import tempfile

import binaries
import image

EMULATORS = {"aarch64": ("qemu-aarch64-static", "qemu-aarch64"), "x86_64": ("qemu-x86_64-static", "qemu-x86_64")}
SERVE_LIMIT_S = 60
TEXT = "Hello there, I am Voce."
# Levels that must say the same samples: by precision, and the first one's f32 on every platform.
SAME_SAMPLES = {
    "x86_64": {"f32": ("avx2", "avxvnni"), "int8": ("avx2", "avxvnni")},
    "aarch64": {"f32": ("neon", "scalar"), "int8": ("dotprod", "i8mm")},
}
# A CPU of before AVX2 for the emulator, and the level that runs there.
OLD_CPU, OLD_LEVEL = "Nehalem", "scalar"
# What wine lacked before version 9.
RANDOM_DLL = "bcryptprimitives.dll"
RANDOM_SOURCE = """#include <windows.h>
BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE to, SIZE_T bytes) { return SystemFunction036(to, (ULONG)bytes); }
"""
# Half a second of speech: the text takes longer.
SAMPLES_AT_LEAST = 12_000


class Failed(Exception):
    """Something that was made does not work."""


def emulator(target):
    """The program that runs a foreign binary: None where none is needed, a `LookupError` where none is here."""
    if target.system == "windows":
        if path := shutil.which("wine64") or shutil.which("wine"):
            return path
        raise LookupError("wine is not installed")
    if target.arch == platform.machine():
        return None
    for name in EMULATORS[target.arch]:
        if path := shutil.which(name):
            return path
    raise LookupError(f"{EMULATORS[target.arch][0]} is not installed")


def can_run(target):
    try:
        emulator(target)
        return True
    except LookupError:
        return False


def command(target, binary):
    runner = emulator(target)
    if not runner:
        return [str(binary)]
    # Debian's cross compilers bring the C library that the emulated loader is to find.
    libraries = pathlib.Path(f"/usr/{target.arch}-linux-gnu")
    prefix = ["-L", str(libraries)] if target.system == "linux" and libraries.is_dir() else []
    return [runner, *prefix, str(binary)]


def run(what, arguments, expect=0, **options):
    """The output of a command; `Failed` tells it if the command ended otherwise than expected."""
    done = subprocess.run([str(a) for a in arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **options)
    if done.returncode != expect:
        raise Failed(f"{what}: ended with {done.returncode}, not with {expect}:\n{done.stdout[-4000:]}")
    return done.stdout


def samples(what, inside, env, precision, level=None):
    """What the built-in voice says, as f32; a `LookupError` where the CPU lacks the level."""
    say = ["say", "--precision", precision, "--threads", "1", "--seed", "7", "--temperature", "0.6", "--format", "f32", "-o", "-", TEXT]
    env = env | ({"VOCE_CPU": level} if level else {})
    done = subprocess.run([str(a) for a in [*inside, *say]], env=env, capture_output=True)
    told = done.stderr.decode(errors="replace")
    if done.returncode != 0 and "this CPU has no" in told:
        raise LookupError(f"this CPU has no {level}")
    if done.returncode != 0 or len(done.stdout) < SAMPLES_AT_LEAST * 4:
        raise Failed(f"{what}: say on {level or 'its best level'} ended with {done.returncode} and {len(done.stdout) // 4} samples:\n{told[-2000:]}")
    return done.stdout


def levels(what, inside, env, arch):
    """Compares what levels say that must say the same; returns the f32 samples, and what could not be compared."""
    reference, untried = None, []
    for precision, names in SAME_SAMPLES[arch].items():
        first = None
        for name in names:
            try:
                said = samples(what, inside, env, precision, name)
            except LookupError as error:
                untried.append(f"{what}, {precision} on {name}: {error}")
                continue
            first = first or said
            if said != first:
                raise Failed(f"{what}: {name} says other samples in {precision} than {names[0]}")
            if precision == "f32":
                reference = first
    return reference, untried


def old_cpu(binary, env):
    """On a CPU without AVX2 the portable kernels run, and say what they say on a new one; returns what was not tried."""
    runner = next((path for name in EMULATORS["x86_64"] if (path := shutil.which(name))), None)
    if runner is None:
        return [f"a CPU without AVX2 was not tried: {EMULATORS['x86_64'][0]} is not installed"]
    old = samples("an old CPU", [runner, "-cpu", OLD_CPU, binary], env, "f32")
    if old != samples("the portable kernels", [binary], env, "f32", OLD_LEVEL):
        raise Failed("a CPU without AVX2 says other samples than the portable kernels here")
    return []


def walk(out, target, version, said):
    """Tries what was made for one platform, and compares its samples with those that platforms before it `said`; returns
    what could not be tried here, with the reasons."""
    untried = []
    try:
        emulator(target)
    except LookupError as error:
        return [f"{target.name} was not run: {error}"]
    with tempfile.TemporaryDirectory(prefix="voce-trial-") as folder:
        folder = pathlib.Path(folder)
        if target.system == "windows":
            try:
                windows(out, target, version, folder)
            except LookupError as error:
                untried.append(f"{target.name} was not run: {error}")
            return untried
        if target.arch == platform.machine():
            untried += installed(out, target, version, folder / "prefix")
        else:
            untried.append(f"install.sh was not run for {target.name}: it is a foreign platform here")
        if shutil.which("dpkg-deb"):
            package(out, target, version, folder / "deb")
        else:
            untried.append(f"the Debian package of {target.name} was not unpacked: dpkg-deb is not installed")
        try:
            reference, missing = in_image(out, target, version, folder / "root")
            untried += missing
            for other, samples_of_other in said.items():
                if reference and samples_of_other != reference:
                    raise Failed(f"{target.name} says other samples in f32 than {other}")
            if reference:
                said[target.name] = reference
        except LookupError as error:
            untried.append(f"the image of {target.name} was not run: {error}")
    return untried


def installed(out, target, version, prefix):
    """Installs, speaks and uninstalls; returns what could not be tried."""
    run("install.sh", ["sh", out / "install.sh", "--from", out, "--prefix", prefix])
    told = run("the installed voce", [prefix / "bin/voce", "--version"]).strip()
    if told != f"voce {version}":
        raise Failed(f"the installed voce calls itself {told}")
    run("install.sh, a second time", ["sh", out / "install.sh", "--from", out, "--prefix", prefix])
    home = prefix.with_name("home")
    home.mkdir()
    env = {"HOME": str(home), "PATH": "/usr/bin:/bin", "VOCE_DEVICE": "cpu"}
    run("the installed voce demo", [prefix / "bin/voce", "demo"], env=env)
    untried = old_cpu(prefix / "bin/voce", env) if target.arch == "x86_64" else []
    run("install.sh --uninstall", ["sh", out / "install.sh", "--prefix", prefix, "--uninstall"])
    if left := [p for p in prefix.rglob("*") if not p.is_dir()]:
        raise Failed(f"install.sh --uninstall leaves {left}")
    return untried


def package(out, target, version, folder):
    deb = out / f"voce_{version}-1_{target.debian}.deb"
    run("dpkg-deb", ["dpkg-deb", "-x", deb, folder])
    told = run("the package's fields", ["dpkg-deb", "-f", deb, "Architecture", "Depends"])
    if target.debian not in told or "libc6" not in told:
        raise Failed(f"the package says {told}")
    run("the package's voce", [*command(target, folder / "usr/bin/voce"), "--version"])


def in_image(out, target, version, root):
    """The image's own file system, as its user: it speaks, and it does not serve others without a key. Returns its f32
    samples, and what could not be compared."""
    read = image.Image(out / f"voce-{version}-image.tar")
    root.mkdir()
    arch = image.ARCHITECTURES[target.arch]
    if arch not in read.platforms:
        raise LookupError("the image has no such platform")
    read.unpack(arch, root)
    config = read.platforms[arch][0]["config"]
    chroot = shutil.which("chroot") or shutil.which("chroot", path="/usr/sbin:/sbin")
    if not chroot or subprocess.run([chroot, root, "/nothing"], capture_output=True).returncode != 127:
        raise LookupError("only root may change the root folder")
    runner = emulator(target)
    if runner:
        if binaries.needs(runner).loader:
            raise LookupError(f"{runner} is not static (qemu-user-static has one that is)")
        shutil.copy(runner, root / "emulator")
    inside = [chroot, f"--userspec={config['User']}", root, *(["/emulator"] if runner else []), *config["Entrypoint"]]
    env = dict(item.partition("=")[::2] for item in config["Env"])
    run("the image's voce demo", [*inside, "demo"], env=env)
    compared = levels(f"the image of {target.name}", inside, env, target.arch)
    refused = run("the image without a key", [*inside, *config["Cmd"]], expect=2, env=env, timeout=SERVE_LIMIT_S)
    if "key" not in refused:
        raise Failed(f"the image does not start without a key, and does not say why: {refused}")
    answers(inside, env)
    return compared


def answers(inside, env):
    """A keyless server on loopback answers its health check, and ends when told to."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([str(a) for a in [*inside, "serve", "--port", port]], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        for line in server.stdout:
            if str(port) in line:
                break
        with socket.create_connection(("127.0.0.1", port), SERVE_LIMIT_S) as client:
            client.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = client.makefile("rb").readline()
        if b" 200 " not in answer:
            raise Failed(f"the image's server is not ready: {answer!r}")
    finally:
        server.terminate()
        code = server.wait(SERVE_LIMIT_S)
    if code != 0:
        raise Failed(f"the image's server ended with {code}")


def windows(out, target, version, folder):
    shutil.unpack_archive(out / f"voce-{version}-{target.name}.zip", folder)
    binary = folder / f"voce-{version}-{target.name}" / target.executable
    env = os.environ | {"WINEPREFIX": str(folder / "wine"), "WINEDEBUG": "-all,err+module"}
    asked = [*command(target, binary), "--version"]
    try:
        told = run("voce.exe", asked, env=env)
    except Failed as error:
        if RANDOM_DLL not in str(error):
            raise
        old_wine(target, binary.parent)
        told = run("voce.exe", asked, env=env)
    if f"voce {version}" not in told:
        raise Failed(f"voce.exe calls itself {told}")
    run("voce.exe demo", [*command(target, binary), "demo"], env=env)


def old_wine(target, folder):
    """Gives wine of before version 9 the library of Windows 10 that Rust asks for random numbers."""
    if not shutil.which(target.gcc):
        raise LookupError(f"wine has no {RANDOM_DLL} (version 9 has), and {target.gcc} is not installed to make one")
    source = folder / "random.c"
    source.write_text(RANDOM_SOURCE)
    run(RANDOM_DLL, [target.gcc, "-shared", "-o", folder / RANDOM_DLL, source, "-ladvapi32"])
