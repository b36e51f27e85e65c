#!/usr/bin/env bash
# Measures the budgets of docs/specification.md on the built programs, and writes the output to
# bin/bench.txt too. usage: bench.sh [BENCHMARK...]; all benchmarks by default.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" -ne 0 ]; then
  echo "the benchmarks run containers: run make bench as root" >&2
  exit 1
fi
source hack/env.sh
export RIK_PRIVILEGED=1 RIK_BIN=$PWD/bin
# Build the programs again, so that the benchmarks measure this source. The benchmarks of many
# clusters use real physical clusters, so they need the programs of Kubernetes too.
make --no-print-directory build "$PWD/bin/kube-apiserver" "$PWD/bin/kube-controller-manager" testprograms
hack/say.sh "building the baseline: the control plane without rik"
go build -tags "$RIK_TAGS" -ldflags '-s -w' -o bin/floor ./bench/floor
go test -c -tags "$RIK_TAGS" -o bin/bench.test ./bench
# PostgreSQL and MariaDB, for BenchmarkDatastores. Without them it leaves these two out.
if databases=$(hack/databases.sh bin/databases); then
  while IFS= read -r assignment; do export "${assignment?}"; done <<<"$databases"
fi
hack/say.sh "measuring (some minutes; do not use the machine meanwhile)"
pattern=$(IFS='|'; echo "${*:-.}")
(cd bench && ../bin/bench.test -test.run '^$' -test.bench "$pattern" -test.benchtime 1x -test.timeout 1h) 2>&1 | tee bin/bench.txt
