#!/usr/bin/env bash
# Builds runc from its Go module: Debian 12's is older than the fixes of
# CVE-2025-31133, CVE-2025-52565 and CVE-2025-52881. usage: runc.sh VERSION OUT
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/env.sh
version=$1 out=$2
hack/say.sh "building runc $version"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
GOBIN=$dir CGO_ENABLED=1 go install -tags seccomp -ldflags '-s -w' "github.com/opencontainers/runc@$version"
mkdir -p "$(dirname "$out")"
mv "$dir/runc" "$out"
"$out" --version >&2
