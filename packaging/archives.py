"""Archives with the same bytes for the same files: tar.gz, zip and Debian packages, all written beside and renamed.

A tree is a dict from a path inside the archive to an `Entry`.
"""

import dataclasses
import gzip
import hashlib
import io
import os
import pathlib
import tarfile
import zipfile


@dataclasses.dataclass
class Entry:
    """A file (`data`), a folder (`data` is None) or a link (`link`), with its mode and its owner."""

    data: bytes | None = None
    mode: int = 0o644
    owner: int = 0
    link: str | None = None


def file(path, mode=0o644):
    return Entry(pathlib.Path(path).read_bytes(), mode)


def folder(mode=0o755, owner=0):
    return Entry(None, mode, owner)


def with_parents(tree):
    """The tree with every folder in it named."""
    whole = {}
    for name, entry in tree.items():
        for parent in reversed(pathlib.PurePosixPath(name).parents):
            if str(parent) != ".":
                whole.setdefault(str(parent), folder())
        whole[name] = entry
    return dict(sorted(whole.items()))


def tar(tree, when, prefix=""):
    """Bytes of a tar file: sorted, owners by number, one time for all."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as out:
        for name, entry in with_parents(tree).items():
            info = tarfile.TarInfo(prefix + name)
            info.mtime, info.mode, info.uid, info.gid = when, entry.mode, entry.owner, entry.owner
            if entry.link is not None:
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.link, 0o777
                out.addfile(info)
            elif entry.data is None:
                info.type, info.mode = tarfile.DIRTYPE, entry.mode
                out.addfile(info)
            else:
                info.size = len(entry.data)
                out.addfile(info, io.BytesIO(entry.data))
    return raw.getvalue()


def zipped(data, level=9):
    """Bytes of a gzip file that names no time and no file."""
    return gzip.compress(data, compresslevel=level, mtime=0)


def tar_gz(path, tree, when, level=9):
    keep(path, zipped(tar(tree, when), level))


def zip_file(path, tree, level=9):
    """A zip file; its times are the oldest that the format has, so that the same files give the same bytes."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as out:
        for name, entry in sorted(tree.items()):
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = (0o100000 | entry.mode) << 16, zipfile.ZIP_DEFLATED
            out.writestr(info, entry.data)
    keep(path, raw.getvalue())


def deb(path, control, tree, scripts, conffiles, when, level=9):
    """A Debian package: `control` is a dict of fields, `scripts` from a name (postinst) to its text."""
    files = {name: entry for name, entry in with_parents(tree).items() if entry.data is not None}
    control = control | {"Installed-Size": str(sum(-(-len(e.data) // 1024) for e in files.values()))}
    sums = "".join(f"{hashlib.md5(e.data).hexdigest()}  {name}\n" for name, e in files.items() if "/" + name not in conffiles)
    meta = {
        "control": Entry("".join(f"{k}: {v}\n" for k, v in control.items()).encode()),
        "md5sums": Entry(sums.encode()),
    }
    if conffiles:
        meta["conffiles"] = Entry("".join(f"{name}\n" for name in conffiles).encode())
    meta |= {name: Entry(body.encode(), 0o755) for name, body in scripts.items()}
    members = [
        ("debian-binary", b"2.0\n"),
        ("control.tar.gz", zipped(tar(meta, when, "./"), level)),
        ("data.tar.gz", zipped(tar(tree, when, "./"), level)),
    ]
    raw = bytearray(b"!<arch>\n")
    for name, data in members:
        raw += f"{name:<16}{when:<12}{0:<6}{0:<6}{0o100644:<8o}{len(data):<10}`\n".encode()
        raw += data + b"\n" * (len(data) % 2)
    keep(path, bytes(raw))


def keep(path, data, mode=0o644):
    """Writes a file beside `path`, syncs it and renames it: nobody sees half of it."""
    path = pathlib.Path(path)
    beside = path.with_name(f".{path.name}.part")
    try:
        with open(beside, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(beside, mode)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def sha256(path):
    with open(path, "rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()
