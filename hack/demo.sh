#!/usr/bin/env bash
# Starts a cluster on this machine and runs containers in it. "down" removes everything again.
# usage: demo.sh up|down
#
# RIK_DEMO_NAME distinguishes two demos on one machine. Each of them needs its own network
# namespace.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${RIK_BIN:-$PWD/bin}
name=${RIK_DEMO_NAME:-rik-demo}
dir=/var/lib/$name
run=/run/$name
export RIKCONFIG=$dir/data/config.yaml
# shellcheck source=hack/demo-common.sh
. hack/demo-common.sh

up() {
  need_root demo
  all_in_one demo-down

  hello_image
  say "deploying it: a workload, then three instances of it"
  sed "s|IMAGE|oci:$dir/image:v1|" examples/hello/workload.yaml >"$dir/workload.yaml"
  if ! "$bin/rikctl" get workload hello >/dev/null 2>&1; then
    show "$bin/rikctl" create workload -f "$dir/workload.yaml"
    show "$bin/rikctl" create instance --workload-id hello --replicas 3
  fi
  "$bin/rikctl" wait --for=condition=Ready instance -l rik.dev/workload=hello --timeout=120s >/dev/null

  show "$bin/rikctl" get nodes
  show "$bin/rikctl" get instances -o wide
  echo
  for instance in $("$bin/rikctl" get instances -l rik.dev/workload=hello -o name); do
    printf '%s says: ' "${instance##*/}"
    "$bin/rikctl" logs "${instance##*/}" --tail=1
  done

  cat <<END

The cluster continues to run. Try these commands:
  export RIKCONFIG=$dir/data/config.yaml
  bin/rikctl get instances
  bin/rikctl describe workload hello
  bin/rikctl exec -it INSTANCE -- /hello -h
  bin/rikctl why INSTANCE
Stop it and remove all its traces:
  make demo-down
END
}

down() {
  need_root demo-down
  remove_all
  prove \
    "network namespace" "$(find "$run" /run/netns -name "$name*" 2>/dev/null || true)" \
    "iptables rule" "$(iptables-save 2>/dev/null | grep -i rik || true)"
}

demo "$@"
