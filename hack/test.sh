#!/usr/bin/env bash
# Runs the tests. usage: test.sh [unit|privileged|e2e|packages PACKAGE...]; without a word, all
# that this user can run.
#
# A failed test is run again, once, alone: two cores under load can starve a
# deadline. The tests that passed only on the second run are listed at the end. They
# fail the run if RIK_SECOND_RUN=fail, as in hack/nightly.sh. A test that fails twice
# always fails the run.
#
# vet is not run again beside the tests: hack/check.sh runs it.
set -euo pipefail
cd "$(dirname "$0")/.."
tier=${1:-all}
[ $# -eq 0 ] || shift
second_run=${RIK_SECOND_RUN:-pass}
tags=containers_image_openpgp
# Of a test program: on a slow machine, beside the others, the longest take half of it.
limit=45m
logs=$PWD/bin/test
mkdir -p "$logs"
rm -f "$logs"/again-*.txt
source hack/env.sh
export RIK_BIN=$PWD/bin
# The kernel and initramfs that microVMs boot.
export RIK_GUEST=$PWD/bin/guest
# Servers make much garbage, under the race detector above all; memory is the cheaper.
export GOGC=300
# The race detector has every program wait a second at its end for goroutines that may race
# still: of a hundred test programs, most of which take less.
export GORACE=atexit_sleep_ms=100
# Everything that runs here is a batch (sched(7)): a process that wakes up waits for the
# end of another's time rather than interrupt it. Some ten wait for two cores, and each
# change between them costs: two fifths fewer of them are a tenth of the processor time.
chrt --batch --pid 0 $$ || echo "the tests run with normal scheduling, which takes longer" >&2
# Fresh memory costs a fault for each 4 KiB, on some virtual machines 16 us and more: there a
# ninth of the processor time, and a fifth of what the race detector watches. Huge pages for
# all, as is Debian's default, make that one for 2 MiB. A machine whose pages are never to be
# huge keeps them so.
huge=/sys/kernel/mm/transparent_hugepage/enabled
if [ -w $huge ] && grep -qF '[madvise]' $huge && echo always 2>/dev/null >$huge; then
  trap "echo madvise >$huge" EXIT
fi
gotestsum() { bin/gotestsum --format pkgname-and-test-fails --hide-summary skipped "$@"; }

root() { [ "$(id -u)" -eq 0 ]; }
failed=0

# The packages whose tests take minutes begin first: one of them, last, would have one
# core wait for the other.
longest_first() {
  awk '/\/internal\/(multicluster\/(syncer|cluster|splitter\/controller|negotiation|crdpuller)|app\/multicluster|apiserver|apiserver\/syncerauth|controller)$/ { print; next }
    { rest = rest $0 "\n" } END { printf "%s", rest }'
}

# The packages with tests on the kernel. The longest is the first: its microVMs are to be
# done before those of the end-to-end tests begin.
on_kernel() {
  git ls-files '*_privileged_test.go' | grep -v '^test/' | xargs -n1 dirname | sort -u | sed "s|^|$(go list -m)/|" |
    awk '/\/riklet\/runner$/ { print; next } { rest = rest $0 "\n" } END { printf "%s", rest }'
}

# Everything that needs no root. With "others", without the packages that have tests on
# the kernel: those run whole in privileged then, so that each is linked once.
unit() {
  hack/say.sh "unit and control-plane tests, with the race detector"
  local packages
  mapfile -t packages < <(go list -tags $tags ./... | grep -v -e /test/e2e -e /bench |
    if [ "${1:-}" = others ]; then grep -v -x -F -f <(on_kernel); else cat; fi | longest_first)
  # Three at once: some wait for what is slow, and so do the tests beside them.
  gotestsum --rerun-fails=1 --rerun-fails-max-failures=5 --rerun-fails-report="$logs/again-unit.txt" \
    --jsonfile "$logs/unit.json" --packages "${packages[*]}" \
    -- -race -vet=off -count=1 -p 3 -tags $tags -timeout $limit || failed=1
}

# packages PACKAGE...: the tests of these that need no root.
packages() {
  gotestsum --rerun-fails=1 --rerun-fails-max-failures=5 --rerun-fails-report="$logs/again-packages.txt" \
    --jsonfile "$logs/packages.json" --packages "$*" \
    -- -race -vet=off -count=1 -tags $tags -timeout $limit || failed=1
}

# Under the race detector these try few cases; these are the promised numbers.
properties() {
  hack/say.sh "property tests of pure functions, without the race detector"
  gotestsum --jsonfile "$logs/properties.json" --packages './internal/multicluster/schema ./internal/multicluster/negotiation/plan ./internal/multicluster/splitter ./internal/testkit/fencemodel' \
    -- -vet=off -count=1 -tags "$RIK_TAGS" -timeout $limit || failed=1
}

# Tests on the kernel and the others of their packages, one package after the other: they
# share it.
privileged() {
  root || { hack/say.sh "not root: skipping the privileged and the end-to-end tests"; return 0; }
  hack/say.sh "privileged tests, on the kernel, with the race detector"
  export RIK_PRIVILEGED=1 RIK_PRIVILEGED_LOG=$logs/privileged.log
  rm -f "$RIK_PRIVILEGED_LOG"
  local packages
  mapfile -t packages < <(on_kernel)
  gotestsum --rerun-fails=1 --rerun-fails-max-failures=5 --rerun-fails-report="$logs/again-privileged.txt" \
    --jsonfile "$logs/privileged.json" --packages "${packages[*]}" \
    -- -race -vet=off -count=1 -p 1 -tags $tags -timeout $limit || failed=1
  if ! [ -s "$RIK_PRIVILEGED_LOG" ]; then
    echo "no privileged test ran" >&2
    failed=1
  fi
}

# Two end-to-end tests are tables, as long each as a third of the others together.
tables='^(TestPrivilegedSplitter|TestPrivilegedKinds)$'

# e2e NAME [FLAGS...]: end-to-end tests, all that the flags of go test leave; what is kept
# of them has that name.
e2e() {
  root || return 0
  local name=$1
  shift
  hack/say.sh "end-to-end tests, on the built programs ($name)"
  export RIK_PRIVILEGED=1 RIK_PRIVILEGED_LOG=$logs/$name.log
  rm -f "$RIK_PRIVILEGED_LOG"
  gotestsum --rerun-fails=1 --rerun-fails-max-failures=3 --rerun-fails-report="$logs/again-$name.txt" \
    --jsonfile "$logs/$name.json" --packages ./test/e2e/... \
    -- -vet=off -count=1 -tags "$RIK_TAGS" -timeout $limit "$@" || failed=1
  if ! [ -s "$RIK_PRIVILEGED_LOG" ]; then
    echo "no end-to-end test ran ($name)" >&2
    failed=1
  fi
}

# Tests on the kernel mostly wait, and so do those end to end; those of unit mostly compute:
# side by side they fill two cores. The tables begin first, one after the other: begun
# with the other end-to-end tests they would be what all wait for at last. All at once
# takes longer: what runs meanwhile, servers and guests, costs more the longer it lives.
# What the others print is shown when unit and e2e are done.
all() {
  root || { unit; properties; privileged; return 0; }
  local pid others=()
  # Jobs of their own: a background process would else ignore Ctrl-C.
  set -m
  { privileged; properties; exit $failed; } >"$logs/kernel.out" 2>&1 &
  others+=($!)
  { e2e tables -run "$tables" -parallel 1; exit $failed; } >"$logs/tables.out" 2>&1 &
  others+=($!)
  set +m
  # shellcheck disable=SC2064 # the ids of now
  trap "kill -INT -- ${others[*]/#/-} 2>/dev/null; wait ${others[*]} || true; exit 130" INT TERM
  unit others
  e2e e2e -skip "$tables" -parallel 3
  tail --pid="${others[0]}" -n +1 -f "$logs/kernel.out"
  tail --pid="${others[1]}" -n +1 -f "$logs/tables.out"
  for pid in "${others[@]}"; do wait "$pid" || failed=1; done
  trap - INT TERM
}

case $tier in
  unit) unit; properties ;;
  privileged) privileged ;;
  e2e) e2e e2e ;;
  packages) packages "$@" ;;
  all) all ;;
  *) echo "usage: test.sh [unit|privileged|e2e|packages PACKAGE...]" >&2; exit 2 ;;
esac

# A line of gotestsum's reports is "PACKAGE.TEST: 2 runs, 1 failures".
again=$(cat "$logs"/again-*.txt 2>/dev/null | awk -F': ' '{ split($2, n, /[^0-9]+/); if (n[1] > n[2]) print "  " $1 }' | sort -u) || true
if [ -n "$again" ]; then
  printf 'passed only on the second run:\n%s\n' "$again"
  [ "$second_run" = pass ] || failed=1
fi
exit $failed
