# The functions that the demos share. A demo sets name, dir, run and bin, and then sources this
# file.
#
# RIK_DEMO_NODE adds flags to each node. For example, with --vmm=none a node does not boot a
# microVM to find out whether it can.
source hack/env.sh
read -ra node_flags <<<"${RIK_DEMO_NODE:-}"
say() { hack/say.sh "$@"; }
show() { printf '\n\033[1m$ %s\033[0m\n' "$*"; "$@"; }

# see PLACE PROGRAM ARGUMENTS... prints a command and runs it with at, which the demos with
# several clusters define.
see() {
  printf '\n\033[1m%s $ %s\033[0m\n' "$1" "${*:2}"
  at "$@"
}

# is EXPECTED PLACE ARGUMENTS... succeeds if kubectl prints EXPECTED there.
is() { [ "$(at "$2" kubectl "${@:3}" 2>/dev/null)" = "$1" ]; }

# need_root TARGET exits if the user is not root. TARGET is the make target for the message.
need_root() {
  [ "$(id -u)" -eq 0 ] && return
  echo "containers and networks need root: sudo make $1" >&2
  exit 1
}

# alive PROCESS succeeds if a process that begin started still runs. After a restart of the
# machine, another process can have its id. So this checks that the command line contains a path
# of the demo.
alive() { [ -f "$dir/$1.pid" ] && grep -qsF "$dir/" "/proc/$(cat "$dir/$1.pid")/cmdline"; }

# fresh removes the processes and files of an earlier demo that was killed, or that ended with the
# machine. Demos that cannot continue with them call it.
fresh() {
  [ -e "$dir" ] || return 0
  say "an earlier demo was not stopped: removing its processes and files"
  down
}

# begin PROCESS COMMAND... runs a command in the background, with a log and a pid file.
begin() {
  local what=$1
  shift
  setsid "$@" >>"$dir/$what.log" 2>&1 </dev/null &
  echo $! >"$dir/$what.pid"
}

# stop PROCESS sends SIGTERM to a process, and SIGKILL after a minute.
stop() {
  alive "$1" || return 0
  kill "$(cat "$dir/$1.pid")" 2>/dev/null || true
  local end=$((SECONDS + 60))
  while alive "$1" && [ $SECONDS -lt $end ]; do sleep 0.1; done
  if alive "$1"; then kill -9 "$(cat "$dir/$1.pid")"; fi
}

# all_alive succeeds if all processes in $parts run. The default of parts is the server.
all_alive() {
  local part
  for part in ${parts:-server}; do alive "$part" || return 1; done
}

# await WHAT COMMAND... waits until the command succeeds. After two minutes, or when a process has
# ended, it shows the logs and exits. The interval between tries grows to half a second.
await() {
  local what=$1 end=$((SECONDS + 120)) pause=1
  shift
  until "$@" >/dev/null 2>&1; do
    if [ $SECONDS -ge $end ] || ! all_alive; then
      echo "timed out waiting for $what; the logs end with:" >&2
      tail -n 20 "$dir"/*.log >&2
      exit 1
    fi
    sleep 0.$pause
    if [ $pause -lt 5 ]; then pause=$((pause + 1)); fi
  done
}

node_ready() { "$bin/rikctl" wait --for=condition=Ready node/"$(hostname | tr '[:upper:]_' '[:lower:]-')" --timeout=1s; }

# all_in_one TARGET starts a cluster in one process, unless it runs. TARGET is the make target that
# stops it.
all_in_one() {
  if alive server; then
    say "the demo already runs; make $1 stops it"
    return
  fi
  mkdir -p -m 0700 "$dir"
  say "starting a cluster: API server, controller, scheduler and node in one process"
  begin server "$bin/rik" server --data-dir "$dir/data" --state-dir "$dir/state" --run-dir "$run" --cgroup-parent "/$name" "${node_flags[@]}"
  await "the API server" "$bin/rikctl" get --raw /readyz
  await "the node" node_ready
}

# remove_all stops that cluster and its instances, and removes their files.
remove_all() {
  if alive server; then
    say "deleting the instances"
    "$bin/rikctl" delete workload --all --timeout=60s >/dev/null 2>&1 || true
    say "stopping the server"
    stop server
  fi
  if [ -d "$dir" ]; then
    say "removing the files and devices of the node"
    "$bin/rik" purge --state-dir "$dir/state" --run-dir "$run" --cgroup-parent "/$name"
    rm -rf --one-file-system "$dir" "$run"
  fi
}

# instance_of WORKLOAD waits until an instance of the workload is ready, and prints its name.
instance_of() {
  await "an instance of $1" instance_ready "$1"
  "$bin/rikctl" get instances -l "rik.dev/workload=$1" -o 'jsonpath={.items[0].metadata.name}'
}
instance_ready() { "$bin/rikctl" wait --for=condition=Ready instance -l "rik.dev/workload=$1" --timeout=1s; }

hello_program() { CGO_ENABLED=0 hack/build.sh "examples/hello" -tags "$RIK_TAGS" -ldflags '-s -w' -o "$dir/hello" ./examples/hello; }

# hello_image writes an image of examples/hello to $dir/image, without a registry.
hello_image() {
  say "building an OCI image without a registry"
  mkdir -p -m 0755 "$dir/image"
  hello_program
  CGO_ENABLED=0 hack/build.sh "hack/image" -tags "$RIK_TAGS" -o "$dir/make-image" ./hack/image
  "$dir/make-image" -program "$dir/hello" -ref v1 -out "$dir/image"
}

# prove [WHAT LIST]... fails if something of the demo is left. The caller adds lists of leftovers
# that only its demo can have.
prove() {
  local left=0
  check() { # what, list
    if [ -n "$2" ]; then printf 'left: %s\n%s\n' "$1" "$2"; left=1; else printf '  no %s\n' "$1"; fi
  }
  say "looking for leftovers"
  check "process" "$(pgrep -af "/$name/" | grep -v pgrep || true)"
  check "mount" "$(grep "/$name/" /proc/self/mountinfo || true)"
  check "cgroup" "$(find /sys/fs/cgroup -type d -path "*/$name*" 2>/dev/null || true)"
  while [ $# -gt 0 ]; do
    check "$1" "$2"
    shift 2
  done
  check "file" "$(ls -d "$dir" "$run" 2>/dev/null || true)"
  [ $left -eq 0 ] && say "nothing is left"
  return $left
}

# demo up|down
demo() {
  case ${1:-} in
    up | down) "$1" ;;
    *) echo "usage: $(basename "$0") up|down" >&2; exit 2 ;;
  esac
}
