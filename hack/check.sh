#!/usr/bin/env bash
# The static checks: formatting, go.mod, generated code, vet, the linter, the language.
set -euo pipefail
: "${LINTER:?is set by make check}"
cd "$(dirname "$0")/.."
source hack/env.sh
# The Makefile uses the same flags for rik, so that SQLite is not compiled again.
export CGO_CFLAGS=-O2
status=0
step() { hack/say.sh "$1"; shift; "$@" || { echo "failed: $*" >&2; status=1; }; }

formatted() {
  local files
  files=$(git ls-files -z '*.go' | xargs -0 gofmt -l)
  [ -z "$files" ] || { echo "not gofmt-ed:"; echo "$files"; return 1; }
}
# bash -n checks one script at a time. It takes further names as arguments of that script.
parsed() { printf '%s\n' hack/*.sh .ci/run | xargs -n 1 bash -n; }
# hack/deps.sh fetches the Go that go.mod names, and compares it with the hashes of this file.
pinned() {
  local arch version
  version=v0.0.1-$(awk '$1 == "toolchain" { print $2 }' go.mod)
  for arch in amd64 arm64; do
    grep -q "^golang.org/toolchain $version.linux-$arch h1:" hack/toolchain.sum ||
      { echo "hack/toolchain.sum has no hash for $version.linux-$arch"; return 1; }
  done
}
step "formatting" formatted
step "Go's hashes are in hack/toolchain.sum" pinned
step "go.mod is tidy" go mod tidy -diff
step "generated code is fresh" hack/generate.sh --check
step "vet" go vet -tags "$RIK_TAGS" ./...
step "linter" "bin/$LINTER" run --timeout 30m ./...
step "language" hack/prose.sh --level error
step "shell scripts parse" parsed
exit $status
