#!/usr/bin/env bash
# Runs go build and shows how many of the packages are compiled. Packages that did not change
# come from Go's build cache and do not count.
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
# go list needs the source of each package, so it downloads modules here.
RIK_PACKAGES=/dev/null hack/progress.sh "$label, looking for what to compile" \
  bash -c 'out=$1; shift; exec go list -deps -f "{{if .Stale}}{{.ImportPath}}{{end}}" "$@" >"$out"' list "$dir/packages" "${list[@]}" "$@"
RIK_PACKAGES=$dir/packages hack/progress.sh "$label" go build -v "${flags[@]}" "$@"
