#!/usr/bin/env bash
# Splits a Deployment over two rik clusters, each in its own network namespace. One of them is cut
# off and connected again, while a client sends requests to the application. "down" removes
# everything again.
# usage: demo-split.sh up|down
#
# RIK_DEMO_NAME distinguishes two demos on one machine. Each of them needs its own network
# namespace.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${RIK_BIN:-$PWD/bin}
name=${RIK_DEMO_NAME:-rik-split}
dir=/var/lib/$name
run=/run/$name
link=riksplit0
net=10.97.0
clusters="east west"
parts="east west kcp"
# shellcheck source=hack/demo-common.sh
. hack/demo-common.sh

# address CLUSTER prints the address of the cluster's server, which is also its node, on the link.
address() { case $1 in east) echo $net.11 ;; west) echo $net.12 ;; esac; }

# place PLACE prints the folder with the administrator's credentials for the kcp or a cluster.
place() { [ "$1" = kcp ] && echo "$dir/kcp" || echo "$dir/$1/data"; }

# at PLACE PROGRAM ARGUMENTS... runs kubectl or rikctl with the kcp or with a cluster. For a cluster
# it does so in the cluster's network namespace, so that it works while the cluster is cut off.
at() {
  local files inside=()
  files=$(place "$1")
  [ "$1" = kcp ] || inside=(nsenter "--net=/run/netns/$name-$1" --)
  KUBECONFIG=$files/admin.kubeconfig RIKCONFIG=$files/config.yaml "${inside[@]}" "$bin/$2" "${@:3}"
}

ready='jsonpath={.status.conditions[?(@.type=="Ready")].status}'

# containers CLUSTER prints how many processes of the application run in the cgroup of the
# cluster's node. It does not ask rik.
containers() {
  local process n=0
  for process in $(pgrep -x hello); do
    if grep -q "/$name-$1/" "/proc/$process/cgroup" 2>/dev/null; then
      n=$((n + 1))
    fi
  done
  echo $n
}

# run_there EAST WEST succeeds if these numbers of containers run in the two clusters.
run_there() { [ "$(containers east)" = "$1" ] && [ "$(containers west)" = "$2" ]; }

# divided EAST WEST waits until these numbers of containers run, and shows the state.
divided() {
  await "$1 containers in east and $2 in west" run_there "$1" "$2"
  await "the status in the kcp" is $(($1 + $2)) kcp get deployment web -o 'jsonpath={.status.readyReplicas}'
  see kcp kubectl get deployments
  instances
}

# instances shows the instances of each cluster, and the number of containers that really run.
instances() {
  local cluster
  for cluster in $clusters; do
    see "$cluster" rikctl get instances -A
    printf '%s really runs %d containers\n' "$cluster" "$(containers "$cluster")"
  done
}

# join CLUSTER creates the cluster's network namespace and connects it to the link.
join() {
  ip netns add "$name-$1"
  ip link add "riksplit-$1" type veth peer name eth0 netns "$name-$1"
  ip link set "riksplit-$1" master "$link" up
  ip -n "$name-$1" link set lo up
  ip -n "$name-$1" link set eth0 up
  ip -n "$name-$1" address add "$(address "$1")/24" dev eth0
  ip -n "$name-$1" route add default via "$net.1"
}

dirs() { echo --state-dir "$dir/$1/state" --run-dir "$run/$1" --cgroup-parent "/$name-$1"; }

start_all() {
  local cluster
  say "joining two network namespaces by the bridge $link"
  mkdir -p -m 0700 "$dir"
  ip link add "$link" type bridge
  ip address add "$net.1/24" dev "$link"
  ip link set "$link" up
  for cluster in $clusters; do
    join "$cluster"
    say "starting the rik cluster $cluster in one of them: a server with a node"
    # shellcheck disable=SC2046 # several words are meant
    begin "$cluster" nsenter "--net=/run/netns/$name-$cluster" -- "$bin/rik" server --bind-address "$(address "$cluster")" \
      --node-name "$cluster-1" --node-address "$(address "$cluster")" --data-dir "$dir/$cluster/data" $(dirs "$cluster") "${node_flags[@]}"
  done
  say "starting a kcp, with its controllers, outside of both"
  begin kcp "$bin/rik" kcp --bind-address "$net.1" --root-directory "$dir/kcp" --port 6443 --run-controllers --push-mode \
    --auto-publish-apis --discovery-poll-interval 5s
  for cluster in $clusters; do
    await "$cluster" at "$cluster" kubectl get --raw /readyz
    await "its node" at "$cluster" rikctl wait --for=condition=Ready "node/$cluster-1" --timeout=1s
  done
  await "the kcp" at kcp kubectl get --raw /readyz
}

register() {
  local cluster
  say "registering both clusters in the kcp; they negotiate the schema of Deployments"
  for cluster in $clusters; do
    see kcp rikctl cluster register "$cluster" --kubeconfig "$(place "$cluster")/admin.kubeconfig"
  done
  for cluster in $clusters; do
    await "$cluster" is True kcp get cluster "$cluster" -o "$ready"
    await "Deployments being carried to $cluster" carried "$cluster"
  done
  see kcp rikctl get clusters
}
carried() { at kcp kubectl get cluster "$1" -o 'jsonpath={.status.syncedResources}' | grep -q '"deployments.apps"'; }

# deploy creates the Deployment. It starts the requests when the application answers.
deploy() {
  say "a Deployment of ten replicas without a cluster"
  see kcp kubectl create deployment web --image "oci:$dir/image:v1" --replicas 10 --port 8080 -- /hello -listen :8080
  divided 5 5
  say "its template changes: it gets a node port and a probe; the clusters are updated one after the other"
  see kcp kubectl patch deployment web --type=json --patch-file examples/split/outside.yaml
  see kcp kubectl rollout status deployment/web --timeout=120s
  await "both clusters to answer" answer
  say "from now on a client sends 50 requests a second to the application"
  begin stream "$dir/stream" -to "http://$(address east):30080,http://$(address west):30080"
}
answer() { "$dir/hello" -get "http://$(address east):30080" && "$dir/hello" -get "http://$(address west):30080"; }

scale() {
  say "scaled to seven: the remainder goes by the names of the clusters"
  see kcp kubectl scale deployment web --replicas 7
  divided 4 3
}

cut_off() {
  say "disconnecting the cluster west"
  ip link set riksplit-west down
  await "the kcp to miss it" is False kcp get cluster west -o "$ready"
  see kcp rikctl get clusters
  see kcp rikctl why deployment/web
  say "the Deployment has a grace period of ten seconds; then all seven replicas run in east"
  await "seven containers in east" run_there 7 3
  see kcp kubectl get deployments
  see kcp rikctl why deployment/web
  instances
  say "west has not received this and still runs its three replicas; docs/multicluster.md shows how to fence such clusters"
}

mend() {
  say "connecting the cluster west again"
  ip link set riksplit-west up
  await "west" is True kcp get cluster west -o "$ready"
  say "the replicas are balanced again"
  divided 4 3
  see kcp rikctl why deployment/web
}

# count stops the requests and prints their results.
count() {
  say "the results of the requests"
  stop stream
  cat "$dir/stream.log"
}

up() {
  need_root demo-split
  if alive kcp; then
    say "the demo already runs; make demo-split-down stops it"
    return
  fi
  fresh
  trap cleanup EXIT
  start_all
  hello_image
  CGO_ENABLED=0 hack/build.sh "examples/stream" -tags "$RIK_TAGS" -ldflags '-s -w' -o "$dir/stream" ./examples/stream
  register
  deploy
  scale
  cut_off
  mend
  count
  trap - EXIT

  cat <<END

Both clusters continue to run. Try these commands:
  export KUBECONFIG=$dir/kcp/admin.kubeconfig RIKCONFIG=$dir/kcp/config.yaml
  bin/kubectl scale deployment web --replicas 12
  bin/rikctl why deployment/web
  bin/rikctl whatif --lose-cluster east
  ip link set riksplit-east down        # disconnects east; up connects it again
Stop them and remove all their traces:
  make demo-split-down
END
}

# cleanup runs after a failure or an interrupt.
cleanup() {
  local status=$?
  trap - EXIT
  say "the demo failed: removing its processes and files"
  down || true
  exit "$status"
}

down() {
  local cluster
  need_root demo-split-down
  stop stream
  # Stop the kcp first, because it would start stopped instances again.
  say "stopping the kcp"
  stop kcp
  say "stopping the clusters, and removing the files and devices of their nodes"
  for cluster in $clusters; do
    stop "$cluster"
    if [ -e "/run/netns/$name-$cluster" ]; then
      # shellcheck disable=SC2046 # several words are meant
      nsenter "--net=/run/netns/$name-$cluster" -- "$bin/riklet" purge $(dirs "$cluster")
      ip netns delete "$name-$cluster"
    fi
  done
  if ip link show "$link" >/dev/null 2>&1; then ip link delete "$link"; fi
  rm -rf --one-file-system "$dir" "$run"
  prove \
    "network namespace" "$(find /run/netns -name "$name-*" 2>/dev/null || true)" \
    "link" "$(ip -o link | grep riksplit || true)"
}

demo "$@"
