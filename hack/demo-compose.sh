#!/usr/bin/env bash
# Runs a server and two nodes in containers of Docker or Podman, with an application that answers at
# a port of this machine. "down" removes everything again. usage: demo-compose.sh up|down
#
# RIK_DEMO_NAME distinguishes two demos on one machine; each needs its own RIK_HELLO_PORT. The script
# uses the first compose that works, unless RIK_DEMO_COMPOSE names one: "docker compose",
# "docker-compose" or "podman-compose".
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${RIK_BIN:-$PWD/bin}
name=${RIK_DEMO_NAME:-rik-compose}
dir=/var/lib/$name
run=/run/$name
# The variables of deploy/compose/docker-compose.yml.
export RIK_HELLO_PORT=${RIK_HELLO_PORT:-8080} RIK_VERSION=$name RIK_ARCHIVES=$dir/images/archives
# shellcheck source=hack/demo-common.sh
. hack/demo-common.sh

# find_engine sets compose, the command, and engine, which works on single containers. used is the
# name of the compose.
find_engine() {
  local candidate candidates=("docker compose" docker-compose podman-compose) chosen=${RIK_DEMO_COMPOSE:-}
  # A running demo keeps its compose.
  if [ -z "$chosen" ] && [ -e "$dir/compose" ]; then chosen=$(<"$dir/compose"); fi
  if [ -n "$chosen" ]; then candidates=("$chosen"); fi
  for candidate in "${candidates[@]}"; do
    read -ra compose <<<"$candidate"
    engine=docker
    case $candidate in *podman-compose*) engine=podman ;; esac
    if "${compose[@]}" version >/dev/null 2>&1 && "$engine" info >/dev/null 2>&1 && { [ -n "$chosen" ] || named; }; then
      used=$candidate
      compose+=(-p "$name" -f deploy/compose/docker-compose.yml)
      return
    fi
  done
  cat >&2 <<END
demo-compose did not run: no container engine works together with a compose on this machine.
It needs Docker and docker compose, docker-compose 1.29 or later, or podman and podman-compose. If
Docker is installed, start it with: systemctl start docker. Podman needs a name server for its
containers, from the packages netavark and aardvark-dns.
END
  exit 1
}

# named succeeds if the containers of the engine can find each other by name. With
# RIK_DEMO_COMPOSE=podman-compose this is not checked, for a Podman with helpers in other directories.
named() {
  local helper=aardvark-dns
  [ "$engine" = podman ] || return 0
  [ "$(podman info --format '{{.Host.NetworkBackend}}')" = netavark ] || helper=dnsname
  [ -n "$(find /usr/lib/podman /usr/libexec/podman /usr/local/libexec/podman /usr/lib/cni /usr/libexec/cni /opt/cni/bin -name "$helper" 2>/dev/null)" ]
}

# ids KIND [FLAG]... prints the ids of the demo's containers, networks or volumes.
ids() {
  local kind=$1
  shift
  if [ "$kind" = container ]; then set -- "$@" --all --no-trunc; fi
  "$engine" "$kind" ls --quiet --filter "label=com.docker.compose.project=$name" "$@"
}

container_of() { "$engine" container ls --quiet --filter "label=com.docker.compose.project=$name" --filter "label=com.docker.compose.service=$1"; }
rikctl() { "$engine" exec "$(container_of server)" rikctl "$@"; }
answers() { "$dir/hello" -get "http://127.0.0.1:$RIK_HELLO_PORT"; }
both_ready() { [ "$(rikctl get instances -l rik.dev/workload=hello -o 'jsonpath={.items[*].status.ready}')" = "true true" ]; }

# until_done WHAT COMMAND... waits until the command succeeds, for at most two minutes.
until_done() {
  local what=$1 end=$((SECONDS + 120))
  shift
  until "$@" >/dev/null 2>&1; do
    if [ $SECONDS -ge $end ]; then
      echo "timed out waiting for $what; the logs end with:" >&2
      local id
      for id in $(ids container); do "$engine" logs --tail 10 "$id" >&2 || true; done
      exit 1
    fi
    sleep 0.2
  done
}

up() {
  need_root demo-compose
  find_engine
  if [ -n "$(container_of server)" ]; then
    say "the demo already runs; make demo-compose-down stops it"
  else
    fresh
    # Another user must be able to read the archives: a container engine can run as one.
    mkdir -p -m 0755 "$dir"
    echo "$used" >"$dir/compose"
    local arch
    arch=$(go env GOHOSTARCH)
    RIK_PROGRAMS=$bin RIK_IMAGE_TAGS=$name RIK_IMAGE_LAYOUT=false hack/images.sh "$dir/images" "$arch" >/dev/null
    hello_program
    say "loading the images into $engine"
    for image in rik riklet; do "$engine" load --quiet --input "$dir/images/$image-$arch.tar" >/dev/null; done
    rm "$dir/images"/*.tar
    show "${compose[@]}" up -d
  fi
  until_done "an answer of the application" answers
  until_done "two instances" both_ready
  show rikctl get nodes -o wide
  show rikctl get instances -o wide
  show "$dir/hello" -get "http://127.0.0.1:$RIK_HELLO_PORT"

  cat <<END

The cluster continues to run. Try these commands:
  curl http://127.0.0.1:$RIK_HELLO_PORT
  $engine exec $(container_of server) rikctl get instances
  $engine exec $(container_of server) rikctl describe workload hello
  $engine kill $(container_of server)     # the application continues to answer
Stop it and remove all its traces:
  make demo-compose-down
END
}

down() {
  need_root demo-compose-down
  find_engine
  local all networks id image left=()
  all=$(ids container)
  networks=$(ids network)
  if [ -n "$all" ]; then
    say "stopping the containers, and removing them with their volumes"
    "${compose[@]}" down -v >/dev/null 2>&1 || true
  fi
  # Podman's server keeps a process for each command of "docker exec" for five minutes after its end.
  # SIGTERM would make that process start Podman once more.
  for id in $all; do
    pgrep -f -- "conmon .*-c $id -u " | xargs -r kill -KILL || true
  done
  # podman-compose leaves the network.
  for id in $(ids network); do "$engine" network rm "$id" >/dev/null; done
  for image in rik riklet; do
    if "$engine" image inspect "rik.dev/$image:$name" >/dev/null 2>&1; then "$engine" image rm "rik.dev/$image:$name" >/dev/null; fi
  done
  rm -rf --one-file-system "$dir"
  for id in $all; do
    left+=("$(find /sys/fs/cgroup -type d -name "*$id*" 2>/dev/null || true)" "$(grep -- "$id" /proc/self/mountinfo || true)" "$(pgrep -af -- "$id" | grep -v pgrep || true)")
  done
  for id in $networks; do left+=("$(ip -o link | grep -- "br-${id:0:12}" || true)"); done
  prove \
    "container" "$(ids container)" \
    "volume" "$(ids volume)" \
    "network" "$(ids network)" \
    "image" "$("$engine" image ls --quiet --filter "reference=rik.dev/*:$name")" \
    "cgroup, mount, process or link of a container" "$(printf '%s\n' "${left[@]}" | grep . || true)"
}

demo "$@"
