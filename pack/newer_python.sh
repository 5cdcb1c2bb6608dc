#!/bin/sh
# Builds the executable in another distribution and tests it there: `make newer-python`, as root.
#
# One rule: the distribution is a directory in a mount namespace of this process; it shares only the machine's kernel
# and its access to the package index (names, certificates, pip's configuration).
#
#     newer_python.sh RELEASE DIRECTORY
set -eu

release=$1 directory=$2
root=$directory/root

if [ ! -e "$directory/.unpacked" ]; then
    echo "$release: unpacking into $root (a minute)"
    rm -rf "$root"
    mkdir -p "$directory"
    sources=$(pack/apt_sources.sh "$release")
    mmdebstrap --quiet --variant=minbase --include=apt,ca-certificates,make,python3 "$release" "$root" "$sources"
    touch "$directory/.unpacked"
fi
rm -rf "$root/srv/podwire"
mkdir "$root/srv/podwire"
git ls-files -z --cached --others --exclude-standard | tar -c --null -T - | tar -x -C "$root/srv/podwire"

# A bind mount, so that its / is a mount point, as a test's `unshare --mount` requires.
unshare --mount sh -euc '
    mount --bind "$0" "$0"
    cd "$0"
    mount -t proc proc proc
    mount --rbind /dev dev
    mount --rbind /sys sys
    mount -t tmpfs tmpfs run
    for file in /etc/resolv.conf /etc/hosts /etc/pip.conf; do
        [ ! -e $file ] || { touch .$file; mount --bind $file .$file; }
    done
    mount --bind /etc/ssl/certs etc/ssl/certs
    exec chroot . env -i HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin PODWIRE_BIN_DIR=dist/bin sh -euc "
        cd /srv/podwire
        make binaries needs-test
        .venv/bin/python -m pytest tests/pack tests/spec"
' "$root"
rm -rf "$directory/bin"
cp -a "$root/srv/podwire/dist/bin" "$directory/bin"
echo "$directory/bin: built and tested with $(chroot "$root" python3 --version) of $release"
