#!/usr/bin/env bash
# Runs the parts that take too long for each commit, in this order:
#
#   tests            all tests; each must pass on its first run
#   vulnerabilities  govulncheck
#   soundness        millions of pairs of schemas and documents, with a new seed in each run
#   laws             the laws of the meet, on thousands of families of schemas
#   fuzz             one minute for each fuzz target
#   datastores       every kind of datastore: killed under load, an outage of a minute, 100,000
#                    updates, and with root a full and a slow disk; PostgreSQL and MariaDB are
#                    fetched from Debian into bin and not installed
#   leaks            creates and deletes thousands of instances, of which nothing may remain
#                    (root)
#   backups          20 backups under load, each restored and compared
#   leader           stops the active one of two controllers, again and again
#   damage           flips bits in, truncates and deletes every file of a server, one at a time
#   drills           500 kills, and fenced roots whose clusters are cut off (root)
#   benchmarks       all benchmarks, to find those that no longer work (root)
#   bare             make demo in a bare Debian (root)
#   installs         each way onto a machine: packages, the archive, the source, and containers, each on
#                    a Debian with systemd (root)
#   foreign          microVMs of the other architecture, in software emulation (root)
#   reproducible     builds the packages in two folders, and compares them byte for byte
#   compose          make demo-compose with every container engine and compose (root), the commands of
#                    the documents for containers, and the images of both architectures, twice
#
# The end of the output lists the parts that failed, each with the command that repeats it. A
# fuzz target also writes its input to testdata/fuzz of its package, and a drill prints its seed.
# The output also lists the parts that this machine could not run. They do not fail the run.
#
# usage: nightly.sh [tests|vulnerabilities|soundness|laws|fuzz|datastores|leaks|backups|leader|damage|drills|benchmarks|bare|installs|foreign|reproducible|compose]...;
# all parts without an argument.
# RIK_SCHEMA_PAIRS, RIK_SCHEMA_SEED, RIK_LAWS, RIK_FUZZ_TIME and RIK_DRILL_ROUNDS set how much
# runs. RIK_DRILL_SEED repeats the choices of a drill.
set -euo pipefail
cd "$(dirname "$0")/.."
schema=./internal/multicluster/schema
source hack/env.sh
failed=() not_run=()

# leave_out PART WHY records that a part does not run, for the list at the end.
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

# GOVULNDB names the database of vulnerabilities. The default is vuln.go.dev.
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

# Every kind of datastore, in the long form of its tests.
datastores() {
  local found assignments=()
  found=$(hack/databases.sh bin/databases) || { failed+=("hack/databases.sh bin/databases"); return 0; }
  mapfile -t assignments <<<"$found"
  assignments+=(RIK_E2E_LONG=1)
  if root_for "datastores on a full and on a slow disk"; then
    assignments+=(RIK_PRIVILEGED=1)
  fi
  try env "${assignments[@]}" \
    go test -tags "$RIK_TAGS" -count=1 -timeout 3h -v ./internal/apiserver/datastore/...
}

# Instances with network connections, microVMs on a fake VMM, and 200 microVMs that boot.
leaks() {
  root_for "the search for leaks" || return 0
  make --no-print-directory build
  try env RIK_BIN="$PWD/bin" RIK_GUEST="$PWD/bin/guest" RIK_PRIVILEGED=1 RIK_E2E_LONG=1 \
    go test -tags "$RIK_TAGS" -count=1 -timeout 3h -p 1 -v -run '^TestPrivilegedFault16Fault17' ./internal/riklet/network/bridge ./internal/riklet/runner
}

# Stops the active one of two controllers for longer than its lease, again and again.
backups() {
  try env RIK_BACKUPS="${RIK_BACKUPS:-20}" \
    go test -tags "$RIK_TAGS" -count=1 -timeout 1h -v -run '^TestBackupsUnderLoad$' ./internal/apiserver
}

leader() {
  try env RIK_DRILL_ROUNDS="${RIK_DRILL_ROUNDS:-50}" \
    go test -tags "$RIK_TAGS" -count=1 -timeout 3h -v -run '^TestAStoppedControllerWritesNothingMore$' ./internal/controller
}

# Damages every file of a data directory, and single bits of a database.
damage() {
  make --no-print-directory build testprograms
  try env RIK_BIN="$PWD/bin" RIK_DRILL_ROUNDS="${RIK_DRILL_ROUNDS:-10}" \
    go test -tags "$RIK_TAGS" -count=1 -timeout 3h -v -run '^TestADamagedFileNeverChangesObjects$|^TestAnyFlippedBit$' ./internal/apiserver ./internal/apiserver/datastore/etcd
}

# The drills run the built programs, kill them, and cut their network connections.
drills() {
  root_for "the drills" || return 0
  make --no-print-directory build "$PWD/bin/kubectl" "$PWD/bin/kube-apiserver" "$PWD/bin/kube-controller-manager"
  local drill
  for drill in TestPrivilegedMulticlusterDrills TestPrivilegedSplitterDrill TestPrivilegedSplitterFenceDrill; do
    try env RIK_BIN="$PWD/bin" RIK_PRIVILEGED=1 RIK_E2E_LONG=1 \
      go test -tags "$RIK_TAGS" -count=1 -timeout 3h -v -run "^$drill\$" ./test/e2e
  done
}

# Each benchmark must reach its end. The measured values do not count, because other work may
# run on this machine.
benchmarks() {
  root_for "the benchmarks" || return 0
  try hack/bench.sh
}

# Runs the README's commands, as root, on a machine that has only git and make.
bare() {
  root_for "make demo in a bare Debian" || return 0
  if ! command -v debootstrap >/dev/null; then
    leave_out "make demo in a bare Debian" "it needs debootstrap (apt-get install debootstrap)"
    return 0
  fi
  try hack/bare.sh
}

# Installs, upgrades and removes rik in each way, also next to Docker, and with containers.
installs() {
  root_for "the installations" || return 0
  try hack/installs.sh
}

# The conformance suite of QEMU's driver boots guests of the other architecture.
foreign() {
  root_for "microVMs of the other architecture" || return 0
  local arch=arm64 machine=aarch64 package=qemu-system-arm out=$PWD/bin/guest-foreign
  [ "$(go env GOHOSTARCH)" != arm64 ] || { arch=amd64 machine=x86_64 package=qemu-system-x86; }
  if ! command -v "qemu-system-$machine" >/dev/null; then
    leave_out "microVMs for $arch" "they need qemu-system-$machine (apt-get install $package)"
    return 0
  fi
  mkdir -p "$out"
  GOARCH=$arch CGO_ENABLED=0 go build -tags "$RIK_TAGS" -ldflags '-s -w' -o "$out/" ./cmd/rik-init ./examples/hello
  hack/guest.sh "$out/rik-init" "$out" "$arch" || { leave_out "microVMs for $arch" "apt does not have their kernel"; return 0; }
  try env RIK_GUEST_FOREIGN="$out" RIK_PRIVILEGED=1 \
    go test -tags "$RIK_TAGS" -count=1 -timeout 1h -v -run '^TestPrivileged.*Foreign$' ./internal/riklet/vmm/qemu
}

reproducible() {
  try hack/reproducible.sh
}

# The engines run for the test alone. The images must be equal in two builds.
compose() {
  root_for "make demo-compose" || return 0
  make --no-print-directory build "$PWD/bin/docker-compose-plugin"
  # The commands of the pages run without a network, and so need what the first build fetches.
  make --no-print-directory images IMAGE_ARCHITECTURES="$(go env GOARCH)"
  try env RIK_BIN="$PWD/bin" RIK_PRIVILEGED=1 RIK_E2E_LONG=1 \
    go test -tags "$RIK_TAGS" -count=1 -timeout 1h -v -run '^TestPrivilegedCompose(Page)?$' ./test/e2e
  local machine
  for machine in aarch64 x86_64; do
    if ! command -v $machine-linux-gnu-gcc >/dev/null; then
      leave_out "make images" "it needs $machine-linux-gnu-gcc (apt-get install crossbuild-essential-arm64 or crossbuild-essential-amd64)"
      return 0
    fi
  done
  try hack/images-equal.sh
}

all=(tests vulnerabilities soundness laws fuzz datastores leaks backups leader damage drills benchmarks bare installs foreign reproducible compose)
[ $# -gt 0 ] || set -- "${all[@]}"
for part in "$@"; do
  [[ " ${all[*]} " == *" $part "* ]] || { echo "usage: nightly.sh [$(IFS='|'; echo "${all[*]}")]..." >&2; exit 2; }
  $part
done
[ ${#not_run[@]} -eq 0 ] || printf 'not run: %s\n' "${not_run[@]}" >&2
[ ${#failed[@]} -eq 0 ] || { printf 'failed: %s\n' "${failed[@]}" >&2; exit 1; }
