"""A container image from scratch, as an OCI image layout in one tar file, without any container engine; and a reader
that checks such a file by every digest and size in it.

    python3 packaging/image.py FILE            # check it, and print the digest that names the image
    python3 packaging/image.py FILE DIR ARCH   # check it, and unpack the file system of one platform into DIR

Load it with `podman load -i FILE`, `docker load -i FILE` (25 or later), or `skopeo copy oci-archive:FILE ...`.
"""

import dataclasses
import datetime
import gzip
import hashlib
import io
import json
import pathlib
import sys
import tarfile

import archives

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# Nobody else has this number in the image, and no user of the machine outside should.
USER = 10001


class Broken(Exception):
    """An image whose parts do not fit together."""


@dataclasses.dataclass
class Platform:
    """One platform's file system, as layers from the lowest up."""

    arch: str
    layers: list


def runtime_config(version, revision):
    """What a container does when it starts. Without a key the server starts on loopback alone: VOCE_REQUIRE_KEY."""
    return {
        "User": f"{USER}:{USER}",
        "ExposedPorts": {"8080/tcp": {}},
        "Env": ["PATH=/usr/bin", "HOME=/data", "VOCE_HOME=/data/voce", "HF_HOME=/data/huggingface", "VOCE_REQUIRE_KEY=1"],
        "Entrypoint": ["/usr/bin/voce"],
        "Cmd": ["serve", "--host", "0.0.0.0"],
        "Volumes": {"/data": {}},
        "WorkingDir": "/data",
        "StopSignal": "SIGTERM",
        "Labels": {
            "org.opencontainers.image.title": "voce",
            "org.opencontainers.image.version": version,
            "org.opencontainers.image.revision": revision,
            "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
        },
    }


def base_layer():
    """Names and folders that a process expects, and nothing that could be run."""
    return {
        "etc/passwd": archives.Entry(f"root:x:0:0:root:/:/nologin\nvoce:x:{USER}:{USER}:voce:/data:/nologin\n".encode()),
        "etc/group": archives.Entry(f"root:x:0:\nvoce:x:{USER}:\n".encode()),
        "etc/nsswitch.conf": archives.Entry(b"passwd: files\ngroup: files\nhosts: files dns\n"),
        "tmp": archives.folder(0o1777),
        "data": archives.folder(0o700, USER),
    }


def write(path, platforms, config, when, level=9):
    """Writes the layout; returns the digest by which a registry names the image."""
    blobs, manifests = {}, []
    name = f"voce:{config['Labels']['org.opencontainers.image.version']}"
    created = datetime.datetime.fromtimestamp(when, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

    def blob(data, media):
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": media, "digest": digest, "size": len(data)}

    def document(value, media):
        return blob(json.dumps(value, sort_keys=True, separators=(",", ":")).encode(), media)

    for platform in platforms:
        layers, plain = [], []
        for tree in platform.layers:
            raw = archives.tar(tree, when)
            plain.append("sha256:" + hashlib.sha256(raw).hexdigest())
            layers.append(blob(archives.zipped(raw, level), LAYER))
        where = {"architecture": ARCHITECTURES[platform.arch], "os": "linux"}
        body = where | {
            "created": created, "config": config, "rootfs": {"type": "layers", "diff_ids": plain},
            "history": [{"created": created, "created_by": "packaging/release"} for _ in plain],
        }
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": document(body, CONFIG), "layers": layers}
        manifests.append(document(manifest, MANIFEST) | {"platform": where})
    # One platform needs no index between: not every engine loads a nested one.
    image = manifests[0] if len(manifests) == 1 else document({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}, INDEX)
    top = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [image | {"annotations": {"org.opencontainers.image.ref.name": name}}]}
    tree = {
        "oci-layout": archives.Entry(b'{"imageLayoutVersion":"1.0.0"}'),
        "index.json": archives.Entry(json.dumps(top, sort_keys=True).encode()),
    }
    tree |= {f"blobs/sha256/{digest[7:]}": archives.Entry(data) for digest, data in blobs.items()}
    archives.keep(path, archives.tar(tree, when))
    return image["digest"]


class Image:
    """A layout that was read whole; every blob has been compared with its digest."""

    def __init__(self, path):
        with tarfile.open(path) as layout:
            files = {m.name: layout.extractfile(m).read() for m in layout if m.isfile()}
        if json.loads(files.get("oci-layout", b"{}")).get("imageLayoutVersion") != "1.0.0":
            raise Broken("oci-layout is missing, or of another version")
        self.blobs = {}
        for name, data in files.items():
            if not name.startswith("blobs/sha256/"):
                continue
            if hashlib.sha256(data).hexdigest() != name[13:]:
                raise Broken(f"{name} does not have the bytes that its name promises")
            self.blobs["sha256:" + name[13:]] = data
        self.used = set()
        top = json.loads(files["index.json"])
        if len(top["manifests"]) != 1:
            raise Broken("index.json names several images, or none")
        self.digest = top["manifests"][0]["digest"]
        self.platforms = dict(self.walk(top["manifests"][0]))
        if unused := set(self.blobs) - self.used:
            raise Broken(f"nothing refers to {', '.join(sorted(unused))}")

    def get(self, descriptor, media):
        digest = descriptor["digest"]
        if descriptor["mediaType"] != media or digest not in self.blobs:
            raise Broken(f"{digest} is missing, or is no {media}")
        if len(self.blobs[digest]) != descriptor["size"]:
            raise Broken(f"{digest} has another size than its descriptor says")
        self.used.add(digest)
        return self.blobs[digest]

    def walk(self, descriptor):
        if descriptor["mediaType"] == INDEX:
            for inner in json.loads(self.get(descriptor, INDEX))["manifests"]:
                yield from self.walk(inner)
            return
        manifest = json.loads(self.get(descriptor, MANIFEST))
        config = json.loads(self.get(manifest["config"], CONFIG))
        layers = [gzip.decompress(self.get(layer, LAYER)) for layer in manifest["layers"]]
        plain = ["sha256:" + hashlib.sha256(layer).hexdigest() for layer in layers]
        if plain != config["rootfs"]["diff_ids"]:
            raise Broken("the layers are not those that the configuration names")
        if (config["architecture"], config["os"]) != (descriptor["platform"]["architecture"], descriptor["platform"]["os"]):
            raise Broken("the index and the configuration name different platforms")
        yield config["architecture"], (config, layers)

    def unpack(self, arch, folder):
        """The file system of one platform, layer over layer, under `folder`."""
        for layer in self.platforms[arch][1]:
            with tarfile.open(fileobj=io.BytesIO(layer)) as files:
                files.extractall(folder, filter="tar", numeric_owner=True)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 4):
        sys.exit(__doc__)
    try:
        read = Image(sys.argv[1])
        print(read.digest, *sorted(read.platforms))
        if len(sys.argv) == 4:
            pathlib.Path(sys.argv[2]).mkdir(parents=True)
            read.unpack(sys.argv[3], sys.argv[2])
    except (Broken, OSError, KeyError, ValueError, tarfile.TarError) as error:
        sys.exit(f"{sys.argv[1]}: {error}")
