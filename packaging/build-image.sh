#!/bin/sh
# Builds the container image from base images that are named by digest. The first run looks the digests up and writes them
# into packaging/images.lock, which belongs into the repository; later runs use what stands there.
#
#     packaging/build-image.sh [TAG]
set -eu
cd "$(dirname "$0")/.."
lock=packaging/images.lock
if [ ! -f "$lock" ]; then
    digest() { docker buildx imagetools inspect "$1" --format '{{.Manifest.Digest}}'; }
    rust=$(digest rust:1.95-slim-bookworm)
    debian=$(digest debian:bookworm-slim)
    printf 'RUST_IMAGE=rust@%s\nDEBIAN_IMAGE=debian@%s\n' "$rust" "$debian" > "$lock"
fi
. "./$lock"
case "$RUST_IMAGE $DEBIAN_IMAGE" in
    rust@sha256:*\ debian@sha256:*) ;;
    *) echo "$lock names no digests: remove it, and run this again" >&2; exit 1 ;;
esac
exec docker build -f packaging/Dockerfile -t "${1:-voce}" \
    --build-arg "RUST_IMAGE=$RUST_IMAGE" --build-arg "DEBIAN_IMAGE=$DEBIAN_IMAGE" .
