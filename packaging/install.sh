#!/bin/sh
# Installs Voce from a release archive: picks the one for this machine, verifies it, tries it, and moves it into place.
#
#     sh install.sh                      into ~/.local (root: /usr/local)
#     sh install.sh --prefix DIR         into DIR/bin, DIR/share
#     sh install.sh --from DIR-OR-URL    archives from there (else: from where the release says, or beside this script)
#     sh install.sh --archive FILE       this archive, whatever the machine
#     sh install.sh --uninstall          remove what was installed under the prefix
#
# Nothing is changed before the archive has the right checksum and its binary has started here; every file is then
# renamed into place, the binary last. Needs tar, gzip, a tool for SHA-256, and curl or wget where --from is a URL.
set -eu

# Filled in by packaging/release: version, where the archives are, and one line "platform file sha256" for each.
VERSION=
FROM=
ARCHIVES=

say() { printf '%s\n' "$*"; }
die() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }
usage() { sed -n '2,10s/^# \{0,1\}//p' "$0"; }

prefix= from= archive= remove=
while [ $# -gt 0 ]; do
    case $1 in
        --prefix | --from | --archive)
            [ $# -ge 2 ] || die "$1 needs a value"
            case $1 in --prefix) prefix=$2 ;; --from) from=$2 ;; --archive) archive=$2 ;; esac
            shift 2 ;;
        --uninstall) remove=1; shift ;;
        -h | --help) usage; exit 0 ;;
        *) die "unknown argument $1; --help lists them" ;;
    esac
done
if [ -z "$prefix" ]; then
    if [ "$(id -u)" = 0 ]; then
        prefix=/usr/local
    else
        [ -n "${HOME:-}" ] || die 'HOME is not set: name a folder with --prefix'
        prefix=$HOME/.local
    fi
fi
case $prefix in /*) ;; *) prefix=$PWD/$prefix ;; esac
list=$prefix/share/doc/voce/installed

if [ -n "$remove" ]; then
    [ -f "$list" ] || die "$prefix has no Voce that this script installed ($list is missing)"
    while IFS= read -r name; do rm -f "$prefix/$name"; done < "$list"
    rm -f "$list"
    rmdir "$prefix/share/doc/voce" 2>/dev/null || true
    say "Voce is removed from $prefix; models and voices are where they were (voce doctor named the folder)"
    exit 0
fi

# What this machine is.
system=$(uname -s) machine=$(uname -m)
case $system in
    Linux) system=linux ;;
    Darwin) system=macos ;;
    MINGW* | MSYS* | CYGWIN*) system=windows ;;
esac
case $machine in
    amd64) machine=x86_64 ;;
    arm64) machine=aarch64 ;;
esac
# A 64-bit kernel may run a 32-bit system, where a 64-bit program finds no loader.
if [ "$machine" = aarch64 ] && [ "$(getconf LONG_BIT 2>/dev/null || echo 64)" = 32 ]; then machine=armhf; fi
platform=$machine-$system

sum_of() {
    if command -v sha256sum >/dev/null; then sha256sum "$1" | cut -d' ' -f1
    elif command -v shasum >/dev/null; then shasum -a 256 "$1" | cut -d' ' -f1
    elif command -v openssl >/dev/null; then openssl dgst -sha256 -r "$1" | cut -d' ' -f1
    else die 'no tool for SHA-256 is here (sha256sum, shasum or openssl): the archive cannot be verified'; fi
}

# The line of the archive: by its name if one was given, else by the platform.
name= wanted=
[ -n "$VERSION" ] && [ -n "$ARCHIVES" ] ||
    die 'this is the template from the source tree, which knows no archives: run the install.sh that packaging/release made'
while read -r line_platform line_name line_sum; do
    [ -n "$line_platform" ] || continue
    if [ -n "$archive" ]; then
        [ "$line_name" = "$(basename "$archive")" ] || continue
    else
        [ "$line_platform" = "$platform" ] || continue
    fi
    name=$line_name wanted=$line_sum for_platform=$line_platform
    break
done <<END
$ARCHIVES
END
have=$(printf '%s\n' "$ARCHIVES" | cut -d' ' -f1 | tr '\n' ' ')
if [ -z "$name" ]; then
    [ -z "$archive" ] || die "$archive is no archive of release $VERSION"
    die "release $VERSION has nothing for $platform (it has: $have); building from source works on any machine that Rust knows"
fi
[ "$for_platform" = "$platform" ] || die "$name is for $for_platform, and this machine is $platform"
case $name in *.tar.gz) ;; *) die "$name is unpacked by hand: put voce.exe where you like" ;; esac

# Everything happens in a folder of the same file system, and goes away with it whatever happens.
mkdir -p "$prefix" 2>/dev/null || die "$prefix cannot be made: choose another with --prefix, or run as its owner"
work=$(mktemp -d "$prefix/.voce-install.XXXXXX" 2>/dev/null) || die "$prefix cannot be written to: choose another with --prefix"
trap 'rm -rf "$work"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

from=${from:-$FROM}
if [ -n "$archive" ]; then
    [ -f "$archive" ] || die "$archive is no file"
    packed=$archive
else
    case $from in
        http://* | https://*)
            packed=$work/$name
            say "fetching $from/$name"
            if command -v curl >/dev/null; then
                curl -fL --retry 3 --proto '=http,https' -o "$packed" "$from/$name" || die "$from/$name cannot be fetched"
            elif command -v wget >/dev/null; then
                wget -O "$packed" "$from/$name" || die "$from/$name cannot be fetched"
            else
                die 'neither curl nor wget is here: fetch the archive by hand, and name it with --archive'
            fi ;;
        *)
            packed=${from:-$(dirname "$0")}/$name
            [ -f "$packed" ] || die "$packed is not there: name the folder or the address of the release with --from" ;;
    esac
fi

got=$(sum_of "$packed")
[ "$got" = "$wanted" ] || die "$packed is damaged or is another file: its SHA-256 is $got, and release $VERSION has $wanted"

mkdir "$work/files"
tar -xzf "$packed" -C "$work/files" || die "$packed cannot be unpacked: is the disk full?"
files=$work/files/${name%.tar.gz}
[ -f "$files/bin/voce" ] || die "$packed holds no bin/voce"
if ! found=$("$files/bin/voce" --version 2>&1); then
    die "the binary does not start on this machine: $found
(it needs $(cat "$files/share/doc/voce/needs" 2>/dev/null || echo 'a newer C library'))"
fi
[ "$found" = "voce $VERSION" ] || die "the archive holds $found, not voce $VERSION"

# Renamed one by one, the binary last: until then the old one runs, and from then on the new one.
(cd "$files" && find . -type f | sed 's|^\./||' | grep -v '^bin/voce$' | LC_ALL=C sort; echo bin/voce) > "$work/list"
while IFS= read -r file; do
    mkdir -p "$(dirname "$prefix/$file")"
    mv -f "$files/$file" "$prefix/$file" || die "$prefix/$file cannot be replaced"
done < "$work/list"
# What an older release had and this one has not.
if [ -f "$list" ]; then
    while IFS= read -r file; do grep -qxF "$file" "$work/list" || rm -f "$prefix/$file"; done < "$list"
fi
mv -f "$work/list" "$list"

say "voce $VERSION is in $prefix/bin/voce"
case :$PATH: in
    *":$prefix/bin:"*) say 'try: voce demo' ;;
    *) say "try: $prefix/bin/voce demo   ($prefix/bin is not in PATH yet)" ;;
esac
