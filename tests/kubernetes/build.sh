#!/bin/bash
# Builds Kubernetes for the tests from Debian's source package, once, into a cache outside the project.
#
# One rule: a directory of the cache is complete or missing; an interrupted build leaves none.
#
#     build.sh CACHE            prints the directory with kube-apiserver and etcd: 10 CPU minutes, or nothing to do
#     build.sh CACHE cluster    ... with the other programs of a cluster, and upstream's tests: 20 CPU minutes
#     build.sh CACHE debian     ... with the root file system of upstream's images: a minute
#
# Needs apt-get, dpkg-deb, a source of Debian's packages (pack/apt_sources.sh) and 6 GB of disk during the build; installs
# nothing. "cluster" needs gcc, "debian" mmdebstrap. Debian packages only kubectl, but its source contains all programs with
# their Go libraries.
set -eu

PACKAGES="golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev etcd-server"
VERSION=k8s.io/kubernetes/vendor/k8s.io/component-base/version
LDFLAGS="-s -w -X $VERSION.gitVersion=v1.20.2 -X $VERSION.gitMajor=1 -X $VERSION.gitMinor=20"
# What upstream's tests of the network use of their images.
IMAGE_PACKAGES=bind9-dnsutils,conntrack,curl,hostname,iproute2,iputils-ping,netcat-openbsd,wget
APT_SOURCES=$(cd "$(dirname "$0")" && pwd)/../../pack/apt_sources.sh

# Fetches the source and Go, and sets the environment for `build`; the working directory is then the source tree.
prepare() {
    echo "kubernetes: fetching the source and Go 1.19" >&2
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
}

# build PACKAGE...: compiles programs into `out`, with the version that upstream's build gives them.
build() { "$GOROOT/bin/go" build -ldflags "$LDFLAGS" -o "$work/out/" "$@"; }

build_server() {
    echo "kubernetes: generating the OpenAPI definitions (1 CPU minute)" >&2
    "$GOROOT/bin/go" build -o "$work/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
    inputs=$(grep --dereference-recursive --files-with-matches --include='*.go' --exclude-dir=_examples \
        --exclude-dir=sample-apiserver '^// +k8s:openapi-gen=true' vendor/k8s.io pkg |
        xargs -n 1 dirname | sort -u | sed 's,^vendor/,,; s,^pkg/,k8s.io/kubernetes/&,')
    "$work/openapi-gen" --go-header-file hack/boilerplate/boilerplate.generatego.txt --output-base "$work/go/src" \
        --output-package k8s.io/kubernetes/pkg/generated/openapi --output-file-base zz_generated.openapi \
        --report-filename "$work/violations" --input-dirs "$(echo $inputs | tr ' ' ,)" >&2

    echo "kubernetes: compiling the API server (8 CPU minutes)" >&2
    build ./cmd/kube-apiserver
    cp "$work/root/usr/bin/etcd" "$work/out/"
}

build_cluster() {
    echo "kubernetes: compiling the programs of a cluster (12 CPU minutes)" >&2
    build ./cmd/kubelet ./cmd/kube-proxy ./cmd/kube-controller-manager ./cmd/kube-scheduler ./cmd/kubectl
    build ./test/images/agnhost ./vendor/github.com/onsi/ginkgo/ginkgo
    gcc -Os -static -o "$work/out/pause" build/pause/linux/pause.c

    echo "kubernetes: compiling upstream's tests (5 CPU minutes)" >&2
    # Upstream generates it with a program that is not in the source; e2e.test reads the files with --repo-root instead.
    printf '%s\n' 'package generated' 'import "os"' 'func AssetNames() []string { return nil }' \
        'func Asset(name string) ([]byte, error) { return nil, os.ErrNotExist }' >test/e2e/generated/bindata.go
    "$GOROOT/bin/go" test -c -ldflags "$LDFLAGS" -o "$work/out/e2e.test" ./test/e2e
    mkdir -p "$work/out/source/test/e2e"
    cp -r test/fixtures "$work/out/source/test/"
    cp -r test/e2e/testing-manifests "$work/out/source/test/e2e/"
    cp test/images/agnhost/porter/localhost.* "$work/out/source/"
}

build_debian() {
    echo "kubernetes: creating the root file system of upstream's images" >&2
    mkdir "$work/out"
    mmdebstrap --quiet --variant=minbase --dpkgopt=force-unsafe-io --include=$IMAGE_PACKAGES \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' bookworm "$work/out/debian.tar" "$("$APT_SOURCES" bookworm)" >&2
}

cache=$1 kind=${2:-server}
case $kind in
server) name=kube-apiserver-1.20.2-etcd-3.4.23 ;;
cluster) name=kubernetes-1.20.2-cluster ;;
debian) name=kubernetes-images-bookworm-1 ;;
esac
mkdir -p "$cache"
exec 8<"$cache"
flock 8  # one build at a time
if [ ! -d "$cache/$name" ]; then
    rm -rf "$cache"/.build-*  # of a build that was killed
    work=$(mktemp -d "$cache/.build-XXXXXX")
    # Go's module and build caches are read-only directories.
    trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
    trap 'exit 143' TERM INT HUP
    [ "$kind" = debian ] || prepare
    "build_$kind"
    mv "$work/out" "$cache/$name"
fi
echo "$cache/$name"
