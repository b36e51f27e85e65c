#!/usr/bin/env bash
# The long runs: millions of pairs of schemas and documents from a seed that is new
# every time, the laws of the meet on thousands of families, a minute for each fuzz
# target, and as root thousands of instances made and deleted, of which nothing may stay,
# and the drills of the splitter: 500 kills, and fenced roots whose clusters are cut off.
# Databases are those of Debian, fetched into bin and not installed.
# What fails is named at the end, with how to run it again; a fuzz target also leaves its
# input in testdata/fuzz of its package, and a drill tells its seed.
#
# usage: nightly.sh [soundness|laws|fuzz|databases|leaks|leader|drills]...; all without a word.
# RIK_SCHEMA_PAIRS, RIK_SCHEMA_SEED, RIK_LAWS, RIK_FUZZ_TIME and RIK_DRILL_ROUNDS say how much, and
# RIK_DRILL_SEED repeats the choices of a drill.
set -euo pipefail
cd "$(dirname "$0")/.."
tags=containers_image_openpgp
schema=./internal/multicluster/schema
source hack/env.sh
failed=()

root_for() {
  [ "$(id -u)" -eq 0 ] || { hack/say.sh "not root: $1 left out"; return 1; }
}

try() {
  hack/say.sh "$*"
  "$@" </dev/null || failed+=("$*")
}

soundness() {
  local seed=${RIK_SCHEMA_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
  try env RIK_SCHEMA_PAIRS="${RIK_SCHEMA_PAIRS:-5000000}" RIK_SCHEMA_SEED="$seed" \
    go test -tags $tags -count=1 -timeout 10h -v -run 'Test(Meet|Compatible)IsSound$' $schema
}

laws() {
  try go test -tags $tags -count=1 -timeout 10h -run 'TestMeetIs(CommutativeAndIdempotent|Associative)$' \
    $schema -rapid.checks="${RIK_LAWS:-10000}"
}

fuzz() {
  local file target
  while IFS=: read -r file target; do
    try go test -tags $tags -timeout 10h -run '^$' -fuzz "^$target\$" -fuzztime "${RIK_FUZZ_TIME:-1m}" "./$(dirname "$file")"
  done < <(git grep -o -E '^func Fuzz[A-Za-z0-9]+' -- '*_test.go' | sed 's/func //')
}

# MariaDB and PostgreSQL below the API.
databases() {
  local found assignments=()
  found=$(hack/databases.sh bin/databases) || { failed+=("hack/databases.sh bin/databases"); return 0; }
  mapfile -t assignments <<<"$found"
  try env "${assignments[@]}" \
    go test -tags $tags -count=1 -timeout 1h -v -run 'PostgreSQL|MariaDB|Database' ./internal/apiserver/datastore/kine
}

# Connections, microVMs of a double, and 200 that boot.
leaks() {
  root_for "the search for leaks is" || return 0
  make --no-print-directory build
  try env RIK_BIN="$PWD/bin" RIK_GUEST="$PWD/bin/guest" RIK_PRIVILEGED=1 RIK_E2E_LONG=1 \
    go test -tags $tags -count=1 -timeout 3h -p 1 -v -run '^TestPrivilegedFault16Fault17' ./internal/riklet/network/bridge ./internal/riklet/runner
}

# The active one of two controllers is stopped past its lease, again and again.
leader() {
  try env RIK_DRILL_ROUNDS="${RIK_DRILL_ROUNDS:-50}" \
    go test -tags $tags -count=1 -timeout 3h -v -run '^TestAStoppedControllerWritesNothingMore$' ./internal/controller
}

# The drills kill programs and pull cables, on the built programs.
drills() {
  root_for "the drills are" || return 0
  make --no-print-directory build "$PWD/bin/kubectl" "$PWD/bin/kube-apiserver" "$PWD/bin/kube-controller-manager"
  local drill
  for drill in TestPrivilegedMulticlusterDrills TestPrivilegedSplitterDrill TestPrivilegedSplitterFenceDrill; do
    try env RIK_BIN="$PWD/bin" RIK_PRIVILEGED=1 RIK_E2E_LONG=1 \
      go test -tags $tags -count=1 -timeout 3h -v -run "^$drill\$" ./test/e2e
  done
}

[ $# -gt 0 ] || set -- soundness laws fuzz databases leaks leader drills
for part in "$@"; do
  case $part in
    soundness | laws | fuzz | databases | leaks | leader | drills) $part ;;
    *) echo "usage: nightly.sh [soundness|laws|fuzz|databases|leaks|leader|drills]..." >&2; exit 2 ;;
  esac
done
[ ${#failed[@]} -eq 0 ] || { printf 'failed: %s\n' "${failed[@]}" >&2; exit 1; }
