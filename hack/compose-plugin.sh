#!/usr/bin/env bash
# Builds docker compose of the second generation, for the tests. go install refuses its module, which
# replaces others. So this builds it in a copy. usage: compose-plugin.sh VERSION OUT
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/env.sh
version=$1 out=$(realpath -m "$2")
progress=$PWD/hack/progress.sh
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
source=$(go mod download -json "github.com/docker/compose/v2@$version" | sed -n 's/^[[:space:]]*"Dir": "\(.*\)".*/\1/p')
cp -r "$source" "$dir/compose"
chmod -R u+w "$dir/compose"
cd "$dir/compose"
CGO_ENABLED=0 "$progress" "docker compose $version" go build -ldflags "-s -w -X github.com/docker/compose/v2/internal.Version=$version" -o "$out" ./cmd
