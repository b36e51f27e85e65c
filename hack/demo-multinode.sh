#!/usr/bin/env bash
# Runs three nodes on one machine, each in its own network namespace. A bridge connects them, and
# an instance on each node answers the others. "down" removes everything again.
# usage: demo-multinode.sh up|down
#
# RIK_DEMO_NAME distinguishes two demos on one machine. Each of them needs its own network
# namespace.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${RIK_BIN:-$PWD/bin}
name=${RIK_DEMO_NAME:-rik-nodes}
dir=/var/lib/$name
run=/run/$name
link=rikdemo0
net=10.98.0
nodes="1 2 3"
export RIKCONFIG=$dir/data/config.yaml
# shellcheck source=hack/demo-common.sh
. hack/demo-common.sh

dirs() { echo --state-dir "$dir/node-$1/state" --run-dir "$run/$1" --cgroup-parent "/$name-$1"; }

all_ready() {
  [ "$("$bin/rikctl" get nodes -o 'jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}')" = "True True True" ]
}

up() {
  need_root demo-multinode
  if alive server; then
    say "the demo already runs; make demo-multinode-down stops it"
  else
    fresh
    mkdir -p -m 0700 "$dir"
    say "joining three network namespaces by the bridge $link"
    ip link add "$link" type bridge
    ip address add "$net.1/24" dev "$link"
    ip link set "$link" up
    for i in $nodes; do
      ip netns add "$name-$i"
      ip link add "rikdemo$i" type veth peer name eth0 netns "$name-$i"
      ip link set "rikdemo$i" master "$link" up
      ip -n "$name-$i" link set lo up
      ip -n "$name-$i" link set eth0 up
      ip -n "$name-$i" address add "$net.1$i/24" dev eth0
      ip -n "$name-$i" route add default via "$net.1"
    done
    say "starting the server, here, and a riklet in each of them"
    begin server "$bin/rik" server --no-agent --advertise-address "$net.1" --data-dir "$dir/data"
    await "the API server" "$bin/rikctl" get --raw /readyz
    await "the join token" test -s "$dir/data/node-token"
    for i in $nodes; do
      # shellcheck disable=SC2046 # several words are meant
      begin "node-$i" nsenter --net="/run/netns/$name-$i" -- "$bin/riklet" --server "https://$net.1:5000" \
        --token-file "$dir/data/node-token" --node-name "node-$i" --node-address "$net.1$i" $(dirs "$i") "${node_flags[@]}"
    done
    await "three nodes" all_ready
  fi

  hello_image
  say "deploying it: one instance on each node, one port on all of them"
  sed "s|IMAGE|oci:$dir/image:v1|" examples/hello/everywhere.yaml >"$dir/workload.yaml"
  show "$bin/rikctl" apply -f "$dir/workload.yaml"
  "$bin/rikctl" rollout status workload/everywhere --timeout=120s

  show "$bin/rikctl" get nodes -o wide
  show "$bin/rikctl" get instances -o wide
  echo
  local from to address
  for from in $("$bin/rikctl" get instances -l rik.dev/workload=everywhere -o name); do
    for to in $("$bin/rikctl" get instances -l rik.dev/workload=everywhere -o name); do
      address=$("$bin/rikctl" get instance "${to##*/}" -o 'jsonpath={.status.address}')
      printf '%s asks %-12s and receives: ' "${from##*/}" "$address"
      "$bin/rikctl" exec "${from##*/}" -- /hello -get "http://$address:8080"
    done
  done
  printf '%s asks by name      and receives: ' "${from##*/}"
  "$bin/rikctl" exec "${from##*/}" -- /hello -get http://everywhere.default.rik.local:8080
  for i in $nodes; do
    printf 'this machine asks node-%s and receives: ' "$i"
    "$dir/hello" -get "http://$net.1$i:30080"
  done

  cat <<END

The cluster continues to run. Try these commands:
  export RIKCONFIG=$dir/data/config.yaml
  bin/rikctl get instances -o wide
  ip link set rikdemo2 down        # disconnects node-2; up connects it again
  bin/rikctl get nodes -w
Stop it and remove all its traces:
  make demo-multinode-down
END
}

down() {
  need_root demo-multinode-down
  if alive server; then
    say "deleting the instances"
    "$bin/rikctl" delete workload --all --timeout=60s >/dev/null 2>&1 || true
  fi
  say "stopping the nodes and the server, and removing their files and devices"
  for i in $nodes; do
    stop "node-$i"
    if [ -e "/run/netns/$name-$i" ]; then
      # shellcheck disable=SC2046 # several words are meant
      nsenter --net="/run/netns/$name-$i" -- "$bin/riklet" purge $(dirs "$i")
      ip netns delete "$name-$i"
    fi
  done
  stop server
  if ip link show "$link" >/dev/null 2>&1; then ip link delete "$link"; fi
  rm -rf --one-file-system "$dir" "$run"
  prove \
    "network namespace" "$(find /run/netns -name "$name-*" 2>/dev/null || true)" \
    "link" "$(ip -o link | grep rikdemo || true)"
}

demo "$@"
