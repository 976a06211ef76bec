"""A release is tried before it is handed out: its install.sh, its archive, its Debian package and its image, each in a
folder of its own, with an emulator where the platform is another one.
"""

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
    return [runner, str(binary)] if runner else [str(binary)]


def run(what, arguments, expect=0, **options):
    """The output of a command; `Failed` tells it if the command ended otherwise than expected."""
    done = subprocess.run([str(a) for a in arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **options)
    if done.returncode != expect:
        raise Failed(f"{what}: ended with {done.returncode}, not with {expect}:\n{done.stdout[-4000:]}")
    return done.stdout


def walk(out, target, version):
    """Tries what was made for one platform; returns what could not be tried here, with the reasons."""
    untried = []
    try:
        emulator(target)
    except LookupError as error:
        return [f"{target.name} was not run: {error}"]
    with tempfile.TemporaryDirectory(prefix="voce-trial-") as folder:
        folder = pathlib.Path(folder)
        if target.system == "windows":
            windows(out, target, version, folder)
            return untried
        if target.arch == platform.machine():
            installed(out, version, folder / "prefix")
        else:
            untried.append(f"install.sh was not run for {target.name}: it is a foreign platform here")
        if shutil.which("dpkg-deb"):
            package(out, target, version, folder / "deb")
        else:
            untried.append(f"the Debian package of {target.name} was not unpacked: dpkg-deb is not installed")
        try:
            in_image(out, target, version, folder / "root")
        except LookupError as error:
            untried.append(f"the image of {target.name} was not run: {error}")
    return untried


def installed(out, version, prefix):
    run("install.sh", ["sh", out / "install.sh", "--from", out, "--prefix", prefix])
    told = run("the installed voce", [prefix / "bin/voce", "--version"]).strip()
    if told != f"voce {version}":
        raise Failed(f"the installed voce calls itself {told}")
    run("install.sh, a second time", ["sh", out / "install.sh", "--from", out, "--prefix", prefix])
    home = prefix.with_name("home")
    home.mkdir()
    run("the installed voce demo", [prefix / "bin/voce", "demo"], env={"HOME": str(home), "PATH": "/usr/bin:/bin"})
    run("install.sh --uninstall", ["sh", out / "install.sh", "--prefix", prefix, "--uninstall"])
    if left := [p for p in prefix.rglob("*") if not p.is_dir()]:
        raise Failed(f"install.sh --uninstall leaves {left}")


def package(out, target, version, folder):
    deb = out / f"voce_{version}-1_{target.debian}.deb"
    run("dpkg-deb", ["dpkg-deb", "-x", deb, folder])
    told = run("the package's fields", ["dpkg-deb", "-f", deb, "Architecture", "Depends"])
    if target.debian not in told or "libc6" not in told:
        raise Failed(f"the package says {told}")
    run("the package's voce", [*command(target, folder / "usr/bin/voce"), "--version"])


def in_image(out, target, version, root):
    """The image's own file system, as its user: it speaks, and it does not serve others without a key."""
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
    told = run("the image's voce demo", [*inside, "demo"], env=env)
    refused = run("the image without a key", [*inside, *config["Cmd"]], expect=2, env=env, timeout=SERVE_LIMIT_S)
    if "key" not in refused:
        raise Failed(f"the image does not start without a key, and does not say why: {refused}")
    answers(inside, env)
    return told


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
    told = run("voce.exe", [*command(target, binary), "--version"])
    if f"voce {version}" not in told:
        raise Failed(f"voce.exe calls itself {told}")
    run("voce.exe demo", [*command(target, binary), "demo"])
