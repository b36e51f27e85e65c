#!/usr/bin/env bash
# The static checks: formatting, go.mod, generated code, vet, the linter, the language.
set -euo pipefail
: "${LINTER:?is set by make check}"
cd "$(dirname "$0")/.."
source hack/env.sh
status=0
step() { hack/say.sh "$1"; shift; "$@" || { echo "failed: $*" >&2; status=1; }; }

formatted() {
  local files
  files=$(git ls-files -z '*.go' | xargs -0 gofmt -l)
  [ -z "$files" ] || { echo "not gofmt-ed:"; echo "$files"; return 1; }
}
# bash reads one script at a time: further names are that one's arguments.
parsed() { printf '%s\n' hack/*.sh .ci/run | xargs -n 1 bash -n; }
step "formatting" formatted
step "go.mod is tidy" go mod tidy -diff
step "generated code is fresh" hack/generate.sh --check
step "vet" go vet -tags containers_image_openpgp ./...
step "linter" "bin/$LINTER" run --timeout 30m ./...
step "language" hack/prose.sh --level error
step "shell scripts parse" parsed
exit $status
