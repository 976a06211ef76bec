"""Tests of what packaging/release makes, with one real executable that runs on this machine:

    python3 packaging/test_release.py target/debug/voce

The release is made and tried (archive, install.sh, Debian package, image), then everything is broken in turn.
"""

import hashlib
import io
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import archives  # noqa: E402
import binaries  # noqa: E402
import image  # noqa: E402

VOCE = pathlib.Path("target/debug/voce")
TARGET = f"{platform.machine()}-linux"


def setUpModule():
    """One release for all tests, from the executable that was given."""
    Release.folder = tempfile.TemporaryDirectory(prefix="voce-release-")
    Release.out = pathlib.Path(Release.folder.name) / "out"
    command = [HERE / "release", "--binary", f"{TARGET}={VOCE.resolve()}", "--allow-dirty", "--level", "1", "--out", Release.out]
    made = subprocess.run([str(a) for a in command], capture_output=True, text=True)
    if made.returncode != 0:
        raise AssertionError(f"packaging/release failed:\n{made.stdout}{made.stderr}")
    print(made.stdout)
    Release.version = subprocess.run([VOCE, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    Release.archive = Release.out / f"voce-{Release.version}-{TARGET}.tar.gz"


def tearDownModule():
    Release.folder.cleanup()


def install(*arguments, **env):
    command = ["sh", str(Release.out / "install.sh"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, **env))


class Release(unittest.TestCase):
    """A test over the release, with a folder of its own."""

    def setUp(self):
        self.scratch = pathlib.Path(tempfile.mkdtemp(dir=Release.folder.name))
        self.prefix = self.scratch / "prefix"

    def assert_refused(self, done, text):
        self.assertNotEqual(done.returncode, 0, done.stdout)
        self.assertIn(text, done.stderr)
        left = [p for p in self.prefix.rglob("*")] if self.prefix.exists() else []
        self.assertEqual(left, [], "something half-done was left")


class Files(Release):
    def test_checksums_name_every_file_and_fit(self):
        told = dict(reversed(line.split("  ")) for line in (self.out / "SHA256SUMS").read_text().splitlines())
        self.assertEqual(set(told), {p.name for p in self.out.iterdir()} - {"SHA256SUMS"})
        for name, digest in told.items():
            self.assertEqual(digest, archives.sha256(self.out / name), name)

    def test_the_archive_holds_what_a_prefix_needs(self):
        with tarfile.open(self.archive) as files:
            names = {m.name.partition("/")[2] for m in files}
            modes = {m.name.partition("/")[2]: m.mode for m in files}
        for name in ("bin/voce", "share/man/man1/voce.1.gz", "share/man/man1/voce-say.1.gz", "share/bash-completion/completions/voce",
                     "share/zsh/site-functions/_voce", "share/fish/vendor_completions.d/voce.fish", "share/doc/voce/voce.cdx.json",
                     "share/doc/voce/LICENSE-MIT", "share/doc/voce/third-party-licences.txt"):
            self.assertIn(name, names)
        self.assertEqual(modes["bin/voce"], 0o755)

    def test_archives_have_the_same_bytes_for_the_same_files(self):
        tree = {"a/b": archives.Entry(b"x"), "a/c": archives.Entry(b"y", 0o755), "d": archives.Entry(link="a/b")}
        self.assertEqual(archives.tar(tree, 7), archives.tar(dict(reversed(tree.items())), 7))
        self.assertEqual(archives.zipped(b"x"), archives.zipped(b"x"))

    @unittest.skipUnless(shutil.which("dpkg-deb"), "dpkg-deb is not installed")
    def test_the_debian_package_is_one(self):
        deb = next(self.out.glob("*.deb"))
        listed = subprocess.run(["dpkg-deb", "-c", deb], capture_output=True, text=True, check=True).stdout
        for name in ("./usr/bin/voce", "./etc/voce/voce.toml", "./usr/lib/systemd/system/voce.service", "./usr/share/doc/voce/copyright"):
            self.assertIn(f" {name}\n", listed)
        self.assertNotIn("/usr/local", listed)
        subprocess.run(["dpkg-deb", "-x", deb, self.scratch / "x"], check=True)
        self.assertIn("ExecStart=/usr/bin/voce", (self.scratch / "x/usr/lib/systemd/system/voce.service").read_text())
        control = subprocess.run(["dpkg-deb", "-I", deb, "conffiles"], capture_output=True, text=True, check=True).stdout
        self.assertEqual(control, "/etc/voce/voce.toml\n")


class Executables(Release):
    def test_this_one_needs_a_c_library_alone(self):
        found = binaries.check(VOCE, "linux", platform.machine())
        self.assertIsNotNone(found.glibc)
        with self.assertRaisesRegex(binaries.Unfit, "was promised"):
            binaries.check(VOCE, "linux", platform.machine(), (2, 1))
        with self.assertRaisesRegex(binaries.Unfit, "not for"):
            binaries.check(VOCE, "windows", platform.machine())

    def test_what_is_no_executable_is_told(self):
        for body in (b"", b"#!/bin/sh\n", b"\x7fELF", VOCE.read_bytes()[:100], b"MZ" + b"\0" * 70):
            path = self.scratch / "file"
            path.write_bytes(body)
            with self.assertRaises(binaries.Unfit):
                binaries.needs(path)


class Install(Release):
    def test_a_second_install_replaces_the_first_and_uninstalling_leaves_nothing(self):
        for _ in range(2):
            done = install("--prefix", self.prefix)
            self.assertEqual(done.returncode, 0, done.stderr)
        told = subprocess.run([self.prefix / "bin/voce", "--version"], capture_output=True, text=True, check=True).stdout
        self.assertEqual(told, f"voce {self.version}\n")
        self.assertEqual([p.name for p in self.prefix.iterdir() if p.name.startswith(".")], [])
        stale = self.prefix / "share/doc/voce/stale"
        stale.write_text("of an older release")
        with open(self.prefix / "share/doc/voce/installed", "a") as listed:
            listed.write("share/doc/voce/stale\n")
        self.assertEqual(install("--prefix", self.prefix).returncode, 0)
        self.assertFalse(stale.exists())
        self.assertEqual(install("--prefix", self.prefix, "--uninstall").returncode, 0)
        self.assertEqual([p for p in self.prefix.rglob("*") if not p.is_dir()], [])

    def test_a_damaged_archive_changes_nothing(self):
        whole = self.archive.read_bytes()
        for body in (whole[:-1], whole[:-9] + b"\0" + whole[-8:], b""):
            (self.scratch / self.archive.name).write_bytes(body)
            self.assert_refused(install("--prefix", self.prefix, "--from", self.scratch), "SHA-256")

    def test_an_archive_of_another_machine_says_so(self):
        tools = self.scratch / "tools"
        tools.mkdir()
        (tools / "uname").write_text('#!/bin/sh\ncase $1 in -s) echo Linux ;; -m) echo riscv64 ;; esac\n')
        (tools / "uname").chmod(0o755)
        env = {"PATH": f"{tools}:{os.environ['PATH']}"}
        self.assert_refused(install("--prefix", self.prefix, **env), "nothing for riscv64-linux")
        self.assert_refused(install("--prefix", self.prefix, "--archive", self.archive, **env), f"is for {TARGET}, and this machine is riscv64-linux")

    def test_a_binary_that_does_not_start_is_not_installed(self):
        with tarfile.open(self.archive) as files:
            names = {m.name: archives.Entry(files.extractfile(m).read(), m.mode) for m in files if m.isfile()}
        binary = next(n for n in names if n.endswith("/bin/voce"))
        names[binary] = archives.Entry(b"#!/nothing/here\n", 0o755)
        archives.tar_gz(self.scratch / self.archive.name, names, 0, 1)
        script = (self.out / "install.sh").read_text().replace(archives.sha256(self.archive), archives.sha256(self.scratch / self.archive.name))
        (self.scratch / "install.sh").write_text(script)
        done = subprocess.run(["sh", self.scratch / "install.sh", "--prefix", self.prefix], capture_output=True, text=True)
        self.assert_refused(done, "does not start on this machine")
        self.assertIn("glibc", done.stderr)

    def test_bad_arguments_and_places_are_told(self):
        self.assert_refused(install("--prefix", self.prefix, "--nonsense"), "unknown argument --nonsense")
        self.assert_refused(install("--prefix"), "--prefix needs a value")
        self.assert_refused(install("--prefix", self.prefix, "--from", self.scratch), "is not there")
        self.assert_refused(install("--prefix", self.prefix, "--archive", self.out / "install.sh"), "is no archive of release")
        self.assert_refused(install("--prefix", self.prefix, "--uninstall"), "has no Voce that this script installed")
        (self.scratch / "file").write_text("")
        self.assert_refused(install("--prefix", self.scratch / "file/below"), "cannot be made")

    def test_the_template_says_that_it_is_one(self):
        done = subprocess.run(["sh", HERE / "install.sh", "--prefix", self.prefix], capture_output=True, text=True)
        self.assert_refused(done, "packaging/release made")


class Container(Release):
    def layout(self):
        with tarfile.open(next(self.out.glob("*-image.tar"))) as files:
            return {m.name: files.extractfile(m).read() for m in files if m.isfile()}

    def read(self, files):
        archives.keep(self.scratch / "image.tar", archives.tar({n: archives.Entry(d) for n, d in files.items()}, 0))
        return image.Image(self.scratch / "image.tar")

    def test_it_runs_without_root_and_asks_for_a_key(self):
        read = self.read(self.layout())
        self.assertEqual(read.digest, next(self.out.glob("*-image.digest")).read_text().strip())
        for config, _ in read.platforms.values():
            self.assertEqual(config["config"]["User"], "10001:10001")
            self.assertIn("VOCE_REQUIRE_KEY=1", config["config"]["Env"])
            self.assertEqual(config["config"]["Entrypoint"], ["/usr/bin/voce"])

    def test_its_file_system_is_the_binary_and_what_it_needs(self):
        for _, layers in self.read(self.layout()).platforms.values():
            names = {}
            for layer in layers:
                with tarfile.open(fileobj=io.BytesIO(layer)) as files:
                    names |= {m.name: m for m in files}
            self.assertEqual(names["data"].uid, image.USER)
            programs = [n for n, m in names.items() if m.isfile() and m.mode & 0o111 and ".so" not in n]
            self.assertEqual(programs, ["usr/bin/voce"])
            self.assertEqual([n for n, m in names.items() if m.mode & 0o6000], [])

    def test_a_changed_blob_a_missing_one_and_a_spare_one_are_found(self):
        files = self.layout()
        blob = max((n for n in files if n.startswith("blobs/")), key=lambda n: len(files[n]))
        with self.assertRaisesRegex(image.Broken, "does not have the bytes"):
            self.read(files | {blob: files[blob][:-1]})
        with self.assertRaisesRegex(image.Broken, "is missing"):
            self.read({n: d for n, d in files.items() if n != blob})
        spare = b"spare"
        with self.assertRaisesRegex(image.Broken, "nothing refers to"):
            self.read(files | {f"blobs/sha256/{hashlib.sha256(spare).hexdigest()}": spare})
        with self.assertRaisesRegex(image.Broken, "oci-layout"):
            self.read({n: d for n, d in files.items() if n != "oci-layout"})

    def test_two_platforms_lie_under_one_index(self):
        platforms = [image.Platform(a, [image.base_layer(), {"usr/bin/voce": archives.Entry(a.encode(), 0o755)}]) for a in image.ARCHITECTURES]
        config = image.runtime_config("1.2.3", "abc")
        digest = image.write(self.scratch / "two.tar", platforms, config, 0)
        read = image.Image(self.scratch / "two.tar")
        self.assertEqual((read.digest, set(read.platforms)), (digest, {"amd64", "arm64"}))
        self.assertEqual(image.write(self.scratch / "again.tar", platforms, config, 0), digest)
        read.unpack("arm64", self.scratch / "root")
        self.assertEqual((self.scratch / "root/usr/bin/voce").read_bytes(), b"aarch64")
        self.assertEqual(json.loads(read.blobs[digest])["manifests"][0]["platform"], {"architecture": "amd64", "os": "linux"})


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        VOCE = pathlib.Path(sys.argv.pop(1))
    if not VOCE.is_file():
        sys.exit(f"{VOCE} is not there: build it (cargo build -p voce), or name another")
    unittest.main()
