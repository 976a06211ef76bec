"""What the binary is made of, from `cargo metadata` and Cargo.lock: a CycloneDX 1.5 bill of materials, and the checks of
deny.toml that need no network (licences, banned crates, sources), for machines without cargo-deny.

    python3 packaging/sbom.py --out target/voce.cdx.json      # write the bill
    python3 packaging/sbom.py --check                         # check it against deny.toml

Needs Python 3.11 and cargo, and nothing from the network that a build does not need.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tomllib
import uuid

ROOT = pathlib.Path(__file__).resolve().parent.parent
CRATES_IO = "registry+https://github.com/rust-lang/crates.io-index"


def metadata(features):
    command = ["cargo", "metadata", "--format-version", "1", "--locked", *features]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


def shipped(meta, root):
    """Packages that the binary is built from: normal and build dependencies, on any platform."""
    nodes = {node["id"]: node for node in meta["resolve"]["nodes"]}
    names = {p["id"]: p["name"] for p in meta["packages"]}
    todo = [i for i, name in names.items() if name == root]
    edges = {}
    while todo:
        package = todo.pop()
        if package in edges:
            continue
        wanted = [d["pkg"] for d in nodes[package]["deps"] if any(k["kind"] != "dev" for k in d["dep_kinds"])]
        edges[package] = sorted(set(wanted))
        todo += wanted
    return edges


def checksums():
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    return {(p["name"], p["version"]): p["checksum"] for p in lock["package"] if "checksum" in p}


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def bill(meta, root):
    packages = {p["id"]: p for p in meta["packages"]}
    edges, sums = shipped(meta, root), checksums()
    components, main = [], None
    for package in sorted((packages[i] for i in edges), key=purl):
        component = {
            "type": "application" if package["name"] == root else "library",
            "bom-ref": purl(package), "name": package["name"], "version": package["version"], "purl": purl(package),
        }
        if package["license"]:
            component["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
        if digest := sums.get((package["name"], package["version"])):
            component["hashes"] = [{"alg": "SHA-256", "content": digest}]
        if package["repository"]:
            component["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
        if package["name"] == root:
            main = component
        else:
            components.append(component)
    graph = [
        {"ref": purl(packages[i]), "dependsOn": sorted(purl(packages[d]) for d in wanted)}
        for i, wanted in sorted(edges.items(), key=lambda item: purl(packages[item[0]]))
    ]
    body = {"metadata": {"component": main, "tools": {"components": [{"type": "application", "name": "sbom.py"}]}}, "components": components, "dependencies": graph}
    # The same tree gives the same bill, number and all.
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(body, sort_keys=True))
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "serialNumber": f"urn:uuid:{number}", "version": 1, **body}


def allowed(expression, allow):
    """Whether an SPDX expression can be met by allowed licences."""
    tokens = re.findall(r"\(|\)|[^\s()]+", expression.replace("/", " OR "))

    def either():
        value = both()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            value = both() | value
        return value

    def both():
        value = one()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            value = one() & value
        return value

    def one():
        token = tokens.pop(0)
        if token == "(":
            value = either()
            tokens.pop(0)
            return value
        if tokens[:1] == ["WITH"]:
            token += " WITH " + tokens[1]
            del tokens[:2]
        return token in allow

    value = either()
    if tokens:
        raise ValueError(f"cannot read the licence {expression!r}")
    return value


def check(meta):
    """The rules of deny.toml that need no network, for all crates of the lock file."""
    rules = tomllib.loads((ROOT / "deny.toml").read_text())
    allow, banned = set(rules["licenses"]["allow"]), {d["crate"] for d in rules["bans"]["deny"]}
    problems = []
    for package in meta["packages"]:
        name = f"{package['name']} {package['version']}"
        if package["name"] in banned:
            problems.append(f"{name} is banned")
        if package["source"] not in (None, CRATES_IO):
            problems.append(f"{name} comes from {package['source']}")
        if package["source"] is None and not pathlib.Path(package["manifest_path"]).is_relative_to(ROOT):
            problems.append(f"{name} lies outside the tree")
        if not package["license"]:
            problems.append(f"{name} has no licence")
        elif not allowed(package["license"], allow):
            problems.append(f"{name} is under {package['license']}")
    return problems


def main(args):
    if args.check:
        meta = metadata(["--all-features"])
        problems = check(meta)
        for problem in problems:
            print(problem, file=sys.stderr)
        print(f"{len(meta['packages'])} crates, {len(problems)} problems")
        return 1 if problems else 0
    document = bill(metadata([]), args.package)
    text = json.dumps(document, indent=1) + "\n"
    if args.out:
        pathlib.Path(args.out).parent.mkdir(parents=True, exist_ok=True)
        pathlib.Path(args.out).write_text(text)
        print(f"{args.out}: {len(document['components'])} components")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--package", default="voce", help="the crate whose binary is shipped")
    parser.add_argument("--out", help="the file to write; else standard output")
    parser.add_argument("--check", action="store_true", help="check licences, bans and sources instead")
    sys.exit(main(parser.parse_args()))
