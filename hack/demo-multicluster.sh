#!/usr/bin/env bash
# Runs a kcp, a rik cluster and a real Kubernetes control plane on this machine. It sends objects
# to one cluster, to the other and to both. "down" removes everything again.
# usage: demo-multicluster.sh up|down
#
# RIK_DEMO_NAME distinguishes two demos on one machine. Each of them needs its own network
# namespace.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${RIK_BIN:-$PWD/bin}
name=${RIK_DEMO_NAME:-rik-clusters}
dir=/var/lib/$name
run=/run/$name
export RIKCONFIG=$dir/data/config.yaml
export RIK_BIN=$bin
# shellcheck source=hack/demo-common.sh
. hack/demo-common.sh

# kubeconfig PLACE prints the path of the kubeconfig of the kcp or of the cluster with that name.
kubeconfig() {
  case $1 in
    kcp) echo "$dir/kcp/admin.kubeconfig" ;;
    east) echo "$dir/data/admin.kubeconfig" ;;
    west) echo "$dir/kube.kubeconfig" ;;
  esac
}

# at PLACE PROGRAM ARGUMENTS... runs kubectl or rikctl with the kcp or with a cluster.
at() {
  local config
  config=$(kubeconfig "$1")
  KUBECONFIG=$config RIKCONFIG=$(dirname "$config")/config.yaml "$bin/$2" "${@:3}"
}

# has PLACE TYPE NAME succeeds if the cluster has the object in some namespace. hasnt is the
# opposite.
has() { at "$1" kubectl get "$2" -A --field-selector "metadata.name=$3" -o name | grep -q .; }
hasnt() { at "$1" kubectl get "$2" -A >/dev/null && ! has "$@"; }

# where TYPE NAME prints which clusters have the object.
where() {
  local place
  for place in east west; do
    if ! at "$place" kubectl get "$1" -A >/dev/null 2>&1; then
      printf '  %s does not know %s\n' "$place" "$1"
    elif has "$place" "$@"; then
      printf '  %s has it, in namespace %s\n' "$place" \
        "$(at "$place" kubectl get "$1" -A --field-selector "metadata.name=$2" -o 'jsonpath={.items[*].metadata.namespace}')"
    else
      printf '  %s does not have it\n' "$place"
    fi
  done
}

start_all() {
  mkdir -p -m 0700 "$dir"
  say "starting a rik cluster, which will be east: a server with a node"
  begin server "$bin/rik" server --vmm none --data-dir "$dir/data" --state-dir "$dir/state" --run-dir "$run" --cgroup-parent "/$name"
  say "starting Kubernetes, which will be west: kube-apiserver and kube-controller-manager"
  CGO_ENABLED=0 hack/build.sh "hack/kube" -tags "$RIK_TAGS" -ldflags '-s -w' -o "$dir/kubernetes" ./hack/kube
  begin kube "$dir/kubernetes" -dir "$dir/kube" -kubeconfig "$(kubeconfig west)"
  say "starting a kcp, with its controllers"
  begin kcp "$bin/rik" kcp --root-directory "$dir/kcp" --port 6443 --run-controllers --push-mode \
    --resources-to-sync deployments.apps,workloads.rik.dev --split-types none --discovery-poll-interval 5s
  await "the rik cluster" "$bin/rikctl" get --raw /readyz
  await "its node" node_ready
  await "Kubernetes" test -s "$(kubeconfig west)"
  await "the kcp" at kcp kubectl get --raw /readyz
}

up() {
  need_root demo-multicluster
  if alive kcp; then
    say "the demo already runs; make demo-multicluster-down stops it"
    return
  fi
  fresh
  start_all
  register
  negotiate
  a_configmap
  a_deployment
  a_workload

  cat <<END

All three continue to run. Try these commands:
  export KUBECONFIG=$(kubeconfig kcp) RIKCONFIG=$dir/kcp/config.yaml
  bin/kubectl get clusters,apiresourceimports,negotiatedapiresources
  bin/rikctl describe cluster east
  bin/kubectl --kubeconfig $(kubeconfig west) get deployments,pods -A
Stop them and remove all their traces:
  make demo-multicluster-down
END
}

register() {
  say "registering both in the kcp"
  see kcp rikctl cluster register east --kubeconfig "$(kubeconfig east)"
  see kcp rikctl cluster register west --kubeconfig "$(kubeconfig west)"
  await "east" is True kcp get cluster east -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
  await "west" is True kcp get cluster west -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
  see kcp rikctl get clusters
}

negotiate() {
  local type
  say "the types of both clusters are imported; their negotiated schemas are not published yet"
  for type in deployments.v1.apps workloads.v1alpha1.rik.dev; do
    await "$type" at kcp kubectl get negotiatedapiresource "$type"
  done
  see kcp kubectl get apiresourceimports
  see kcp rikctl api negotiate --plan deployments.apps
  see kcp kubectl patch negotiatedapiresources deployments.v1.apps workloads.v1alpha1.rik.dev --type merge -p '{"spec":{"publish":true}}'
  for type in deployments.v1.apps workloads.v1alpha1.rik.dev; do
    await "$type" is True kcp get negotiatedapiresource "$type" -o 'jsonpath={.status.conditions[?(@.type=="Published")].status}'
  done
  await "the syncers" synced
  see kcp kubectl get negotiatedapiresources
  await "west" is True kcp get cluster west -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
  see kcp rikctl get clusters
}

# synced succeeds if the kcp syncs Deployments to west and Workloads to east. Each of these types
# exists in only one of the clusters.
synced() {
  at kcp kubectl get cluster west -o 'jsonpath={.status.syncedResources}' | grep -q deployments.apps &&
    at kcp kubectl get cluster east -o 'jsonpath={.status.syncedResources}' | grep -q workloads.rik.dev
}

a_configmap() {
  say "a ConfigMap goes to west, the cluster in its label"
  see kcp kubectl create configmap hello --from-literal greeting=hello
  see kcp kubectl label configmap hello workloads.kcp.dev/cluster=west
  await "the ConfigMap in west" has west configmaps hello
  where configmaps hello
  say "then to east"
  see kcp kubectl label --overwrite configmap hello workloads.kcp.dev/cluster=east
  await "the ConfigMap in east" has east configmaps hello
  await "the ConfigMap's end in west" hasnt west configmaps hello
  where configmaps hello
  say "then to no cluster"
  see kcp kubectl label configmap hello workloads.kcp.dev/cluster-
  await "the ConfigMap's end in east" hasnt east configmaps hello
  where configmaps hello
  say "and, shared, to both"
  see kcp kubectl label configmap hello sync.workloads.kcp.dev/east=true sync.workloads.kcp.dev/west=true
  await "the ConfigMap in east" has east configmaps hello
  await "the ConfigMap in west" has west configmaps hello
  where configmaps hello
}

a_deployment() {
  say "a Deployment goes to Kubernetes, and its status comes back"
  see kcp kubectl create deployment web --image web:1 --replicas 3
  see kcp kubectl label deployment web workloads.kcp.dev/cluster=west
  see kcp kubectl rollout status deployment/web --timeout=120s
  see kcp kubectl get deployments
  see kcp kubectl scale deployment web --replicas 5
  await "five replicas" is 5 kcp get deployment web -o 'jsonpath={.status.readyReplicas}'
  see west kubectl get deployments,pods -A
}

a_workload() {
  hello_image
  say "a Workload of rik goes to the rik cluster, which runs its instances"
  sed "s|IMAGE|oci:$dir/image:v1|" examples/hello/labeled.yaml >"$dir/workload.yaml"
  see kcp kubectl apply -f "$dir/workload.yaml"
  await "two instances" is 2 kcp get workload hello -o 'jsonpath={.status.readyReplicas}'
  see kcp kubectl get workloads
  see east rikctl get instances -A
  echo
  local instance
  for instance in $(running); do
    printf '%s says: ' "${instance##*/}"
    "$bin/rikctl" logs -n "${instance%%/*}" "${instance##*/}" --tail=1
  done
  say "without the label it is removed from there"
  see kcp kubectl label workload hello workloads.kcp.dev/cluster-
  await "the Workload's end in east" hasnt east workloads hello
  await "the end of its instances" none_running
  where workloads hello
}

# running prints NAMESPACE/NAME of each instance of the rik cluster.
running() {
  at east kubectl get instances -A -o 'jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name}{"\n"}{end}'
}
none_running() { local all; all=$(running) && [ -z "$all" ]; }

down() {
  need_root demo-multicluster-down
  say "stopping the kcp and Kubernetes"
  # Stop the kcp first, because it would create the objects of the clusters again.
  stop kcp
  stop kube
  if alive server; then
    "$bin/rikctl" delete workloads --all -A --timeout=60s >/dev/null 2>&1 || true
  fi
  remove_all
  prove \
    "network namespace" "$(find "$run" /run/netns -name "$name*" 2>/dev/null || true)" \
    "iptables rule" "$(iptables-save 2>/dev/null | grep -i rik || true)"
}

demo "$@"
