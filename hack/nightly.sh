#!/usr/bin/env bash
# The long runs: millions of pairs of schemas and documents from a seed that is new
# every time, the laws of the meet on thousands of families, a minute for each fuzz
# target, and as root thousands of instances made and deleted, of which nothing may stay,
# and the drills of the splitter: 500 kills, and fenced roots whose clusters are cut off.
# Databases are those of Debian, fetched into bin and not installed.
# Before them, all tests, which must pass on their first run, and govulncheck; after them, as
# root, the benchmarks, so that one that broke is noticed, and make demo in a bare Debian. What fails is named at the end, with how to run it again; a
# fuzz target also leaves its input in testdata/fuzz of its package, and a drill tells its
# seed. What this machine could not run is named too, and does not count as failed.
#
# usage: nightly.sh [tests|vulnerabilities|soundness|laws|fuzz|databases|leaks|leader|drills|benchmarks|bare]...;
# all without a word.
# RIK_SCHEMA_PAIRS, RIK_SCHEMA_SEED, RIK_LAWS, RIK_FUZZ_TIME and RIK_DRILL_ROUNDS say how much, and
# RIK_DRILL_SEED repeats the choices of a drill.
set -euo pipefail
cd "$(dirname "$0")/.."
schema=./internal/multicluster/schema
source hack/env.sh
failed=() not_run=()

# leave_out PART WHY: names it at the end.
leave_out() {
  hack/say.sh "$1 not run: $2"
  not_run+=("$1: $2")
}

root_for() {
  [ "$(id -u)" -eq 0 ] || { leave_out "$1" "it needs root"; return 1; }
}

try() {
  hack/say.sh "$*"
  "$@" </dev/null || failed+=("$*")
}

tests() {
  try env RIK_SECOND_RUN=fail make --no-print-directory test
}

# The database is at GOVULNDB, or vuln.go.dev.
vulnerabilities() {
  local database=${GOVULNDB:-https://vuln.go.dev}
  if ! curl -fsS --max-time 30 -o /dev/null "$database/index/modules.json"; then
    leave_out govulncheck "its database $database cannot be reached"
    return 0
  fi
  try make --no-print-directory "$PWD/bin/govulncheck"
  try bin/govulncheck -tags "$RIK_TAGS" ./...
}

soundness() {
  local seed=${RIK_SCHEMA_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
  try env RIK_SCHEMA_PAIRS="${RIK_SCHEMA_PAIRS:-5000000}" RIK_SCHEMA_SEED="$seed" \
    go test -tags "$RIK_TAGS" -count=1 -timeout 10h -v -run 'Test(Meet|Compatible)IsSound$' $schema
}

laws() {
  try go test -tags "$RIK_TAGS" -count=1 -timeout 10h -run 'TestMeetIs(CommutativeAndIdempotent|Associative)$' \
    $schema -rapid.checks="${RIK_LAWS:-10000}"
}

fuzz() {
  local file target
  while IFS=: read -r file target; do
    try go test -tags "$RIK_TAGS" -timeout 10h -run '^$' -fuzz "^$target\$" -fuzztime "${RIK_FUZZ_TIME:-1m}" "./$(dirname "$file")"
  done < <(git grep -o -E '^func Fuzz[A-Za-z0-9]+' -- '*_test.go' | sed 's/func //')
}

# MariaDB and PostgreSQL below the API.
databases() {
  local found assignments=()
  found=$(hack/databases.sh bin/databases) || { failed+=("hack/databases.sh bin/databases"); return 0; }
  mapfile -t assignments <<<"$found"
  try env "${assignments[@]}" \
    go test -tags "$RIK_TAGS" -count=1 -timeout 1h -v -run 'PostgreSQL|MariaDB|Database' ./internal/apiserver/datastore/kine
}

# Connections, microVMs of a double, and 200 that boot.
leaks() {
  root_for "the search for leaks" || return 0
  make --no-print-directory build
  try env RIK_BIN="$PWD/bin" RIK_GUEST="$PWD/bin/guest" RIK_PRIVILEGED=1 RIK_E2E_LONG=1 \
    go test -tags "$RIK_TAGS" -count=1 -timeout 3h -p 1 -v -run '^TestPrivilegedFault16Fault17' ./internal/riklet/network/bridge ./internal/riklet/runner
}

# The active one of two controllers is stopped past its lease, again and again.
leader() {
  try env RIK_DRILL_ROUNDS="${RIK_DRILL_ROUNDS:-50}" \
    go test -tags "$RIK_TAGS" -count=1 -timeout 3h -v -run '^TestAStoppedControllerWritesNothingMore$' ./internal/controller
}

# The drills kill programs and pull cables, on the built programs.
drills() {
  root_for "the drills" || return 0
  make --no-print-directory build "$PWD/bin/kubectl" "$PWD/bin/kube-apiserver" "$PWD/bin/kube-controller-manager"
  local drill
  for drill in TestPrivilegedMulticlusterDrills TestPrivilegedSplitterDrill TestPrivilegedSplitterFenceDrill; do
    try env RIK_BIN="$PWD/bin" RIK_PRIVILEGED=1 RIK_E2E_LONG=1 \
      go test -tags "$RIK_TAGS" -count=1 -timeout 3h -v -run "^$drill\$" ./test/e2e
  done
}

# The figures of a noisy machine decide nothing, but each benchmark has to reach its end.
benchmarks() {
  root_for "the benchmarks" || return 0
  try hack/bench.sh
}

# README's commands on a machine that has git, make and root.
bare() {
  root_for "make demo in a bare Debian" || return 0
  if ! command -v debootstrap >/dev/null; then
    leave_out "make demo in a bare Debian" "it needs debootstrap (apt-get install debootstrap)"
    return 0
  fi
  try hack/bare.sh
}

all=(tests vulnerabilities soundness laws fuzz databases leaks leader drills benchmarks bare)
[ $# -gt 0 ] || set -- "${all[@]}"
for part in "$@"; do
  [[ " ${all[*]} " == *" $part "* ]] || { echo "usage: nightly.sh [$(IFS='|'; echo "${all[*]}")]..." >&2; exit 2; }
  $part
done
[ ${#not_run[@]} -eq 0 ] || printf 'not run: %s\n' "${not_run[@]}" >&2
[ ${#failed[@]} -eq 0 ] || { printf 'failed: %s\n' "${failed[@]}" >&2; exit 1; }
