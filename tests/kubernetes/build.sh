#!/bin/bash
# Builds the kube-apiserver of the tests from Debian's source package, once, into a cache outside the project.
#
# One rule: a directory of the cache is complete or missing; an interrupted build leaves none.
#
#     build.sh CACHE    prints the directory with kube-apiserver and etcd: 10 CPU minutes, or nothing to do
#
# Needs apt-get, dpkg-deb, a source of Debian's packages (pack/apt_sources.sh) and 4 GB of disk during the build; installs nothing. Debian
# packages no API server, but the source of kubectl contains it with all its Go libraries.
set -eu

NAME=kube-apiserver-1.20.2-etcd-3.4.23
PACKAGES="golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev etcd-server"
APT_SOURCES=$(cd "$(dirname "$0")" && pwd)/../../pack/apt_sources.sh

cache=$1
mkdir -p "$cache"
exec 8<"$cache"
flock 8  # one build at a time
if [ ! -d "$cache/$NAME" ]; then
    rm -rf "$cache"/.build-*  # of a build that was killed
    work=$(mktemp -d "$cache/.build-XXXXXX")
    # Go's module and build caches are read-only directories.
    trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
    trap 'exit 143' TERM INT HUP

    echo "kube-apiserver: fetching the source and Go 1.19" >&2
    cd "$work"
    mkdir -p state/partial cache/archives/partial packages root go/src/k8s.io/kubernetes out
    KINDS="deb deb-src" "$APT_SOURCES" bookworm >sources.list
    # Separate lists and state: this machine's apt is not used for source packages.
    apt="apt-get -qq -o APT::Sandbox::User=root -o Dir::State=$work/state -o Dir::State::status=/dev/null
        -o Dir::Cache=$work/cache -o Dir::Etc::SourceList=$work/sources.list -o Dir::Etc::SourceParts=/dev/null"
    $apt update
    (cd packages && $apt source --download-only kubernetes && $apt download $PACKAGES) >&2
    for package in packages/*.deb; do dpkg-deb --extract "$package" root; done
    tar --extract --file packages/kubernetes_1.20.5+really1.20.2.orig.tar.gz --strip-components 1 \
        --directory go/src/k8s.io/kubernetes

    export GOROOT=$work/root/usr/lib/go-1.19 GOPATH=$work/go GOCACHE=$work/go-cache GOTMPDIR=$work
    export GO111MODULE=off GOPROXY=off GOFLAGS= CGO_ENABLED=0 HOME=$work
    cd go/src/k8s.io/kubernetes
    # reflect2 1.0.1 reads freed memory with Go 1.18 and later: the first custom resource would end the server.
    rm -r vendor/github.com/modern-go/reflect2
    cp -r "$work/root/usr/share/gocode/src/github.com/modern-go/reflect2" vendor/github.com/modern-go/

    echo "kube-apiserver: generating the OpenAPI definitions (1 CPU minute)" >&2
    $GOROOT/bin/go build -o "$work/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
    inputs=$(grep --dereference-recursive --files-with-matches --include='*.go' --exclude-dir=_examples \
        --exclude-dir=sample-apiserver '^// +k8s:openapi-gen=true' vendor/k8s.io pkg |
        xargs -n 1 dirname | sort -u | sed 's,^vendor/,,; s,^pkg/,k8s.io/kubernetes/&,')
    "$work/openapi-gen" --go-header-file hack/boilerplate/boilerplate.generatego.txt --output-base "$work/go/src" \
        --output-package k8s.io/kubernetes/pkg/generated/openapi --output-file-base zz_generated.openapi \
        --report-filename "$work/violations" --input-dirs "$(echo $inputs | tr ' ' ,)" >&2

    echo "kube-apiserver: compiling (8 CPU minutes)" >&2
    $GOROOT/bin/go build -ldflags "-s -w" -o "$work/out/kube-apiserver" ./cmd/kube-apiserver
    cp "$work/root/usr/bin/etcd" "$work/out/"
    mv "$work/out" "$cache/$NAME"
fi
echo "$cache/$NAME"
