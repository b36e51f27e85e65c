#!/usr/bin/env bash
# Runs the tests. usage: test.sh [unit|privileged|e2e|packages PACKAGE...]; without an argument
# it runs all tests that this user can run.
#
# A failed test runs once more, alone, because a loaded machine can miss a deadline. The end of
# the output lists the tests that passed only on the second run. They fail the run if
# RIK_SECOND_RUN=fail, as in hack/nightly.sh. A test that fails twice always fails the run.
#
# The tests run without vet, because hack/check.sh runs it.
set -euo pipefail
cd "$(dirname "$0")/.."
tier=${1:-all}
[ $# -eq 0 ] || shift
second_run=${RIK_SECOND_RUN:-pass}
tags=containers_image_openpgp
# The time limit of a test program. On a slow and busy machine the longest ones take half of it.
limit=45m
logs=$PWD/bin/test
mkdir -p "$logs"
rm -f "$logs"/again-*.txt
source hack/env.sh
export RIK_BIN=$PWD/bin
# The kernel and initramfs that microVMs boot.
export RIK_GUEST=$PWD/bin/guest
# The servers allocate a lot, most of all under the race detector. This trades memory for time.
export GOGC=300
# By default the race detector makes each program wait one second at its end for goroutines that
# may still race. There are about a hundred test programs, and most of them take less than that.
export GORACE=atexit_sleep_ms=100
# All processes of the tests use the scheduling policy SCHED_BATCH (sched(7)): a process that
# wakes up does not preempt the running one. About ten processes compete for two cores. The
# policy saves 40 % of the context switches, and 10 % of the processor time.
chrt --batch --pid 0 $$ || echo "the tests run with normal scheduling, which takes longer" >&2
# New memory costs one page fault for each 4 KiB. On some virtual machines a fault takes 16 us or
# more: that is a ninth of the processor time, and a fifth under the race detector. Huge pages,
# which are Debian's default, need one fault for each 2 MiB. The setting "never" stays as it is.
huge=/sys/kernel/mm/transparent_hugepage/enabled
if [ -w $huge ] && grep -qF '[madvise]' $huge && echo always 2>/dev/null >$huge; then
  trap "echo madvise >$huge" EXIT
fi
gotestsum() { bin/gotestsum --format pkgname-and-test-fails --hide-summary skipped "$@"; }

root() { [ "$(id -u)" -eq 0 ]; }
failed=0

# The packages whose tests take minutes start first. If one of them started last, the other core
# would be idle until it ends.
longest_first() {
  awk '/\/internal\/(multicluster\/(syncer|cluster|splitter\/controller|negotiation|crdpuller)|app\/multicluster|apiserver|apiserver\/syncerauth|controller)$/ { print; next }
    { rest = rest $0 "\n" } END { printf "%s", rest }'
}

# The packages with privileged tests. The longest one is first, so that its microVMs end before
# the end-to-end tests start theirs.
on_kernel() {
  git ls-files '*_privileged_test.go' | grep -v '^test/' | xargs -n1 dirname | sort -u | sed "s|^|$(go list -m)/|" |
    awk '/\/riklet\/runner$/ { print; next } { rest = rest $0 "\n" } END { printf "%s", rest }'
}

# The tests that need no root. The argument "others" leaves out the packages with privileged
# tests: privileged then runs all tests of these packages, so that each is linked only once.
unit() {
  hack/say.sh "unit and control-plane tests, with the race detector"
  local packages
  mapfile -t packages < <(go list -tags $tags ./... | grep -v -e /test/e2e -e /test/packages -e /bench |
    if [ "${1:-}" = others ]; then grep -v -x -F -f <(on_kernel); else cat; fi | longest_first)
  # Three packages at once, because some tests wait without using a core.
  gotestsum --rerun-fails=1 --rerun-fails-max-failures=5 --rerun-fails-report="$logs/again-unit.txt" \
    --jsonfile "$logs/unit.json" --packages "${packages[*]}" \
    -- -race -vet=off -count=1 -p 3 -tags $tags -timeout $limit || failed=1
}

# packages PACKAGE... runs the tests of these packages that need no root.
packages() {
  gotestsum --rerun-fails=1 --rerun-fails-max-failures=5 --rerun-fails-report="$logs/again-packages.txt" \
    --jsonfile "$logs/packages.json" --packages "$*" \
    -- -race -vet=off -count=1 -tags $tags -timeout $limit || failed=1
}

# Under the race detector, property tests try few cases. Here they try the documented numbers.
properties() {
  hack/say.sh "property tests of pure functions, without the race detector"
  gotestsum --jsonfile "$logs/properties.json" --packages './internal/multicluster/schema ./internal/multicluster/negotiation/plan ./internal/multicluster/splitter ./internal/testkit/fencemodel' \
    -- -vet=off -count=1 -tags "$RIK_TAGS" -timeout $limit || failed=1
}

# The privileged tests and the other tests of their packages. The packages run one after the
# other, because they share the kernel.
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

# Two end-to-end tests are tables. Each of them takes a third of the time of all others together.
tables='^(TestPrivilegedSplitter|TestPrivilegedKinds)$'

# e2e NAME [FLAGS...] runs the end-to-end tests that the flags of go test select. Its files in
# bin/test have that name.
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

# Privileged and end-to-end tests mostly wait, and unit tests mostly compute. Together they use
# two cores well. The two tables start first and run one after the other, because with the other
# end-to-end tests they would end last. Running all tests at once would take longer: servers and
# guests cost processor time as long as they run. The output of the tests in the background
# appears when unit and e2e are done.
all() {
  root || { unit; properties; privileged; return 0; }
  local pid others=()
  # With job control, background processes receive Ctrl-C. Without it they would ignore it.
  set -m
  { privileged; properties; exit $failed; } >"$logs/kernel.out" 2>&1 &
  others+=($!)
  { e2e tables -run "$tables" -parallel 1; exit $failed; } >"$logs/tables.out" 2>&1 &
  others+=($!)
  set +m
  # shellcheck disable=SC2064 # expand the process ids now
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
