#!/usr/bin/env bash
# Builds runc from its Go module. The runc of Debian 12 lacks the fixes of CVE-2025-31133,
# CVE-2025-52565 and CVE-2025-52881. usage: runc.sh VERSION OUT
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/env.sh
version=$1 out=$2
module=github.com/opencontainers/runc@$version
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# These are the flags with which make builds rik, so that packages of both are compiled once.
# runc's own static build also has the tags netgo and osusergo.
export GOBIN=$dir CGO_ENABLED=1 CGO_CFLAGS=-O2
# List the packages that will be compiled, for the progress. The first argument of the shell is
# the file of the list.
RIK_PACKAGES=/dev/null hack/progress.sh "runc $version, looking for what to compile" bash -c '
  source=$(go mod download -json "$1" | sed -n "s/^[[:space:]]*\"Dir\": \"\(.*\)\".*/\1/p")
  cd "$source" && exec go list -mod=readonly -deps -tags seccomp,netgo,osusergo -f "{{if .Stale}}{{.ImportPath}}{{end}}" . >"$0"' "$dir/packages" "$module"
RIK_PACKAGES=$dir/packages hack/progress.sh "runc $version" go install -v -tags seccomp,netgo,osusergo -ldflags '-s -w' "$module"
mkdir -p "$(dirname "$out")"
mv "$dir/runc" "$out"
"$out" --version >&2
