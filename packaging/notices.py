"""The licence texts of every crate in the binary, from the sources that cargo fetched: what their licences ask to go
with a binary.

    python3 packaging/notices.py [FILE]
"""

import pathlib
import re
import sys

import archives
import sbom

TEXTS = re.compile(r"(?i)^(licen[cs]e|copying|notice|unlicense|copyright)")
ROOT = sbom.ROOT


def texts(folder):
    return sorted(f for f in folder.iterdir() if f.is_file() and TEXTS.match(f.name))


def notices(meta):
    """One text: equal licence texts once, each with the crates that it covers."""
    packages = {p["id"]: p for p in meta["packages"]}
    shared, bare = {}, []
    for package in sorted((packages[i] for i in sbom.shipped(meta, "voce")), key=sbom.purl):
        name = f"{package['name']} {package['version']}"
        folder = pathlib.Path(package["manifest_path"]).parent
        if folder.is_relative_to(ROOT):
            continue
        found = texts(folder)
        if not found:
            bare.append(f"{name} ({package['license'] or package['license_file']}; {', '.join(package['authors']) or 'authors not named'})")
        for path in found:
            body = "\n".join(line.rstrip() for line in path.read_text(errors="replace").strip().splitlines())
            shared.setdefault(body, []).append(name)
    parts = ["Voce holds code of the crates below. Each is followed by its own licence text; equal texts are given once.\n"]
    for body, names in sorted(shared.items(), key=lambda item: item[1]):
        parts.append(f"{'=' * 80}\n{', '.join(dict.fromkeys(names))}\n{'=' * 80}\n\n{body}\n")
    if bare:
        parts.append(f"{'=' * 80}\nThese come without a text of their own, under the licence named:\n{'=' * 80}\n\n" + "\n".join(bare) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    document = notices(sbom.metadata([]))
    if len(sys.argv) > 1:
        archives.keep(sys.argv[1], document.encode())
    else:
        sys.stdout.write(document)
