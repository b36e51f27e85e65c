#!/usr/bin/env bash
# Deploys an App, which answers HTTP as a plain process through a port of this machine. "down"
# removes everything again. usage: demo-app.sh up|down
#
# RIK_DEMO_NAME distinguishes two demos on one machine. Each of them needs its own network
# namespace.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${RIK_BIN:-$PWD/bin}
name=${RIK_DEMO_NAME:-rik-app}
dir=/var/lib/$name
run=/run/$name
export RIKCONFIG=$dir/data/config.yaml
# shellcheck source=hack/demo-common.sh
. hack/demo-common.sh

# processes prints the ids of the processes in the cgroups of the node's instances.
processes() {
  find /sys/fs/cgroup -path "*/$name/*" -path '*/app/cgroup.procs' -exec cat {} + 2>/dev/null | sort -un | paste -sd, -
}

up() {
  need_root demo-app
  all_in_one demo-app-down
  say "packing a program as version 1.0.0 of a repository"
  hello_program
  mkdir -p "$dir/repository"
  tar -C "$dir" -czf "$dir/repository/hello-1.0.0.tar.gz" hello
  sed "s|REPOSITORY|$dir/repository|" examples/app/hello.yaml >"$dir/hello.yaml"
  show cat "$dir/hello.yaml"
  show "$bin/rik" deploy -f "$dir/hello.yaml"
  instance=$(instance_of hello)

  show "$bin/rik" get apps
  show "$bin/rikctl" get instances -o wide
  await "an answer" "$dir/hello" -get http://127.0.0.1:30082
  show "$dir/hello" -get http://127.0.0.1:30082
  show ps -o pid,uid,gid,args -p "$(processes)"

  cat <<END

The app continues to run. Try these commands:
  export RIKCONFIG=$dir/data/config.yaml
  curl http://127.0.0.1:30082
  bin/rikctl logs -f $instance
  bin/rik get apps -o wide
  bin/rikctl describe instance $instance
  bin/rik delete hello
Stop it and remove all its traces:
  make demo-app-down
END
}

down() {
  need_root demo-app-down
  remove_all
  prove \
    "process of the app" "$(ps -eo pid,args | grep '[.]/hello -listen :8082' || true)" \
    "network namespace" "$(find "$run" /run/netns -name "$name*" 2>/dev/null || true)" \
    "iptables rule" "$(iptables-save 2>/dev/null | grep -i rik || true)"
}

demo "$@"
