#!/usr/bin/env bash
# Checks the language of documents, help, messages, comments and names in the whole tree, or
# under paths: hack/prose.sh internal/riklet docs
#
# Options go to the checker: --level error|warning|suggestion, --counts.
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/env.sh
VERSION=$(sed -n 's/^VALE_VERSION := //p' Makefile)
[ -x "bin/vale-$VERSION" ] || make --no-print-directory "bin/vale-$VERSION"
go build -o bin/prose ./hack/prose
exec bin/prose --vale "bin/vale-$VERSION" "$@"
