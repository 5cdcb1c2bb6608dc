#!/bin/sh
# Unpacks the kernel of a Debian release with all its modules, without installing it: `make debian-kernel`.
#
# One rule: apt's lists and state are separate, so that this machine's apt needs no other release. A kernel that is
# already unpacked stays, until Debian has a newer one.
#
#     debian_kernel_unpack.sh RELEASE DIRECTORY      creates DIRECTORY/files
set -eu

release=$1 directory=$2
sources=$(pack/apt_sources.sh "$release")
PATH=$PATH:/usr/sbin:/sbin
mkdir -p "$directory/apt/lists/partial" "$directory/apt/archives/partial"
cd "$directory/apt"
directory=$(dirname "$PWD")
echo "$sources" >sources.list
with_own_state() { # an apt program, with its lists and state below this directory
    command=$1 && shift
    "$command" -qq -o APT::Sandbox::User=root -o Dir::Etc::sourcelist="$PWD/sources.list" \
        -o Dir::Etc::sourceparts=/dev/null -o Dir::State="$PWD" -o Dir::State::status=/dev/null -o Dir::Cache="$PWD" \
        -o Acquire::Languages=none -o Acquire::Check-Valid-Until=false "$@"
}
with_own_state apt-get update
# A kernel is one package, or several in newer releases; linux-image-amd64 depends on the newest.
packages=$(with_own_state apt-cache depends --recurse --important linux-image-amd64 | \
    grep -E '^linux-(image|binary|base|modules)-[0-9]+\.[0-9]+\.[0-9]') || { echo "no kernel of $release in: $sources" >&2; exit 1; }
versions=$(with_own_state apt-get --print-uris download $packages)
[ "$versions" != "$(cat ../files/.versions 2>/dev/null)" ] || exit 0
echo "unpacking the kernel of $release:" $packages
rm -rf ../files ./*.deb
mkdir ../files
with_own_state apt-get download $packages
for package in ./*.deb; do dpkg-deb --extract "$package" ../files && rm "$package"; done
cd ../files
[ -d lib ] || ln -s usr/lib lib
# Decompressed here once, and not by each boot in emulation.
find lib/ -name '*.ko.xz' -print0 | xargs --null --no-run-if-empty --max-args=64 xz --decompress
depmod -b . "$(ls lib/modules)"
echo "$versions" >.versions
