#!/usr/bin/env bash
# go build, which shows how many packages are compiled, of how many. Packages that are not
# changed come from Go's build cache and are not counted.
# usage: build.sh LABEL [-FLAG VALUE]... PACKAGE...; the flags are those of go build.
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/env.sh
label=$1
shift
flags=() list=()
while [ $# -gt 1 ] && [ "${1:0:1}" = - ]; do
  [ "$1" != -tags ] || list=("$1" "$2")
  flags+=("$1" "$2")
  shift 2
done
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# This needs the source of every package, so modules are downloaded here.
RIK_PACKAGES=/dev/null hack/progress.sh "$label, looking for what to compile" \
  bash -c 'out=$1; shift; exec go list -deps -f "{{if .Stale}}{{.ImportPath}}{{end}}" "$@" >"$out"' list "$dir/packages" "${list[@]}" "$@"
RIK_PACKAGES=$dir/packages hack/progress.sh "$label" go build -v "${flags[@]}" "$@"
