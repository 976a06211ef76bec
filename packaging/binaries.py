"""What an executable needs of the machine it is to run on, read from the file itself: ELF (Linux) and PE (Windows).

    python3 packaging/binaries.py FILE
"""

import dataclasses
import pathlib
import re
import struct
import sys

# Libraries that every glibc system has beside the loader, whoever built it.
LINUX_LIBRARIES = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1", "libgcc_s.so.1"}
LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
# Libraries that a compiler brings and Windows lacks.
NOT_IN_WINDOWS = re.compile(r"(?i)^(libgcc|libstdc|libwinpthread|libunwind|libc\+\+|vcruntime|msvcp)")
ELF_MACHINES = {62: "x86_64", 183: "aarch64"}
PE_MACHINES = {0x8664: "x86_64", 0xAA64: "aarch64"}

PT_DYNAMIC, PT_INTERP = 2, 3
DT_NEEDED, DT_STRTAB, DT_RPATH, DT_RUNPATH = 1, 5, 15, 29
DT_VERNEED, DT_VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF


class Unfit(Exception):
    """A file that is no executable, or one that would not run where it is meant to."""


@dataclasses.dataclass
class Needs:
    """What a file asks for: `glibc` is the oldest version that has all its symbols, None if it needs none."""

    system: str
    arch: str
    libraries: list
    glibc: tuple | None = None
    loader: str | None = None
    search_path: str | None = None


def needs(path):
    """What the executable at `path` asks for; `Unfit` if it is none."""
    data = pathlib.Path(path).read_bytes()
    try:
        if data[:4] == b"\x7fELF":
            return elf(data)
        if data[:2] == b"MZ":
            return pe(data)
    except (struct.error, IndexError, ValueError) as error:
        raise Unfit(f"{path} is cut off or damaged: {error}") from None
    raise Unfit(f"{path} is no executable of Linux or Windows")


def text(data, at):
    return data[at:data.index(b"\0", at)].decode()


def elf(data):
    if data[4] != 2 or data[5] != 1:
        raise Unfit("not a 64-bit little-endian ELF file")
    machine = struct.unpack_from("<H", data, 18)[0]
    if machine not in ELF_MACHINES:
        raise Unfit(f"ELF machine {machine}, which nothing is released for")
    table, (size, count) = struct.unpack_from("<Q", data, 32)[0], struct.unpack_from("<HH", data, 54)
    segments = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    found = Needs("linux", ELF_MACHINES[machine], [])

    def at(address):
        for kind, _, offset, start, _, length in segments:
            if kind == 1 and start <= address < start + length:
                return offset + address - start
        raise Unfit(f"address {address:#x} is in no segment")

    for kind, _, offset, _, _, length in segments:
        if kind == PT_INTERP:
            found.loader = text(data, offset)
        if kind != PT_DYNAMIC:
            continue
        entries = [struct.unpack_from("<QQ", data, offset + i) for i in range(0, length, 16)]
        values = dict(reversed(entries))
        if DT_STRTAB not in values:
            continue
        strings = at(values[DT_STRTAB])
        found.libraries = sorted(text(data, strings + v) for tag, v in entries if tag == DT_NEEDED)
        for tag in (DT_RPATH, DT_RUNPATH):
            if tag in values:
                found.search_path = text(data, strings + values[tag])
        found.glibc = glibc(data, at, strings, values)
    return found


def glibc(data, at, strings, values):
    """The newest GLIBC_x.y that the version table asks for."""
    newest = None
    record = at(values[DT_VERNEED]) if DT_VERNEED in values else 0
    for _ in range(values.get(DT_VERNEEDNUM, 0)):
        _, count, _, first, following = struct.unpack_from("<HHIII", data, record)
        entry = record + first
        for _ in range(count):
            _, _, _, name, step = struct.unpack_from("<IHHII", data, entry)
            if match := re.fullmatch(r"GLIBC_([0-9.]+)", text(data, strings + name)):
                version = tuple(int(n) for n in match[1].split("."))
                newest = max(newest or version, version)
            entry += step
        record += following
    return newest


def pe(data):
    head = struct.unpack_from("<I", data, 0x3C)[0]
    if data[head:head + 4] != b"PE\0\0":
        raise Unfit("an old DOS program")
    machine, sections = struct.unpack_from("<HH", data, head + 4)
    if machine not in PE_MACHINES:
        raise Unfit(f"PE machine {machine:#x}, which nothing is released for")
    optional_size = struct.unpack_from("<H", data, head + 20)[0]
    optional = head + 24
    if struct.unpack_from("<H", data, optional)[0] != 0x20B:
        raise Unfit("not a 64-bit PE file")
    imports = struct.unpack_from("<I", data, optional + 112 + 8)[0]
    table = [struct.unpack_from("<IIII", data, optional + optional_size + 40 * i + 8) for i in range(sections)]

    def at(address):
        for virtual_size, start, raw_size, offset in table:
            if start <= address < start + max(virtual_size, raw_size):
                return offset + address - start
        raise Unfit(f"address {address:#x} is in no section")

    found = Needs("windows", PE_MACHINES[machine], [])
    if imports:
        entry = at(imports)
        while (name := struct.unpack_from("<I", data, entry + 12)[0]) != 0:
            found.libraries.append(text(data, at(name)))
            entry += 20
    found.libraries.sort(key=str.lower)
    return found


def check(path, system, arch, glibc_limit=None):
    """`Needs` of an executable that runs on any such machine; `Unfit` says what is in the way."""
    found = needs(path)
    if (found.system, found.arch) != (system, arch):
        raise Unfit(f"{path} is for {found.arch} {found.system}, not for {arch} {system}")
    if system == "windows":
        missing = [name for name in found.libraries if NOT_IN_WINDOWS.match(name)]
    else:
        missing = [name for name in found.libraries if name not in LINUX_LIBRARIES | {LOADERS[arch]}]
    if missing:
        raise Unfit(f"{path} needs {', '.join(missing)}, which other machines may lack")
    if found.search_path:
        raise Unfit(f"{path} looks for libraries in {found.search_path}, a folder of the machine that built it")
    if glibc_limit and found.glibc and found.glibc > glibc_limit:
        raise Unfit(f"{path} needs glibc {dotted(found.glibc)}, and {dotted(glibc_limit)} was promised")
    return found


def dotted(version):
    return ".".join(str(n) for n in version)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        print(needs(sys.argv[1]))
    except (Unfit, OSError) as error:
        sys.exit(str(error))
