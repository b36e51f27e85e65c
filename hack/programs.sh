#!/usr/bin/env bash
# Builds all programs of rik and runc for an architecture, linked statically, so that they run on
# every distribution and in images without libraries. The programs of another architecture are
# cross-compiled. usage: programs.sh amd64|arm64 OUT; LDFLAGS are those of make build.
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/env.sh
arch=$1 out=$2
case $arch in
  amd64) triplet=x86_64-linux-gnu ;;
  arm64) triplet=aarch64-linux-gnu ;;
  *) echo "there are no programs for $arch: use amd64 or arm64" >&2; exit 2 ;;
esac
export GOOS=linux GOARCH=$arch CGO_CFLAGS=-O2
hack/cross.sh "$arch"
[ "$arch" = "$(dpkg --print-architecture)" ] || export CC=$triplet-gcc
runc_version=$(sed -n 's/^RUNC_VERSION := //p' Makefile)
static='-linkmode external -extldflags -static'
mkdir -p "$out"
CGO_ENABLED=1 hack/build.sh "rik ($arch)" -tags "$RIK_TAGS" -ldflags "${LDFLAGS:--s -w} $static" -o "$out/" ./cmd/rik
CGO_ENABLED=0 hack/build.sh "other programs ($arch)" -tags "$RIK_TAGS" -ldflags "${LDFLAGS:--s -w}" -o "$out/" \
  ./cmd/rikctl ./cmd/riklet ./cmd/rik-shim ./cmd/rik-unpack ./cmd/rik-dns ./cmd/rik-init ./examples/hello

# runc is a module of its own. go install refuses GOBIN when it cross-compiles, so it gets a GOPATH.
# The tags and flags are those of runc's own static build.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
modules=$(go env GOMODCACHE)
GOPATH=$scratch GOMODCACHE=$modules PKG_CONFIG_LIBDIR=/usr/lib/$triplet/pkgconfig CGO_ENABLED=1 hack/progress.sh "runc $runc_version ($arch)" \
  go install -tags seccomp,netgo,osusergo -ldflags "-s -w -X main.version=${runc_version#v} $static" "github.com/opencontainers/runc@$runc_version"
mv "$(find "$scratch/bin" -type f -name runc)" "$out/runc"
