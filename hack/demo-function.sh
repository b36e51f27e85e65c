#!/usr/bin/env bash
# Deploys a Function, which answers HTTP in a microVM through a port of this machine. "down"
# removes everything again. usage: demo-function.sh up|down
#
# RIK_DEMO_NAME distinguishes two demos on one machine. Each of them needs its own network
# namespace.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${RIK_BIN:-$PWD/bin}
name=${RIK_DEMO_NAME:-rik-function}
dir=/var/lib/$name
run=/run/$name
export RIKCONFIG=$dir/data/config.yaml
# shellcheck source=hack/demo-common.sh
. hack/demo-common.sh

up() {
  need_root demo-function
  all_in_one demo-function-down
  hello_image
  say "deploying it as a function: the image becomes the disk of a microVM"
  sed "s|IMAGE|oci:$dir/image:v1|" examples/function/workload.yaml >"$dir/workload.yaml"
  show "$bin/rikctl" apply -f "$dir/workload.yaml"
  say "waiting for the microVM; without KVM it boots in software, which takes some seconds"
  instance=$(instance_of hello)

  show "$bin/rikctl" get functions -o wide
  show "$bin/rikctl" get instances -o wide
  await "an answer" "$dir/hello" -get http://127.0.0.1:30081
  show "$dir/hello" -get http://127.0.0.1:30081
  printf '\nthe kernel here is %s, in the function %s\n' "$(uname -r)" "$("$bin/rikctl" exec "$instance" -- /hello -kernel)"

  cat <<END

The function continues to run. Try these commands:
  export RIKCONFIG=$dir/data/config.yaml
  curl http://127.0.0.1:30081
  bin/rikctl logs -f $instance
  bin/rikctl exec $instance -- /hello -kernel
  bin/rikctl suspend $instance
  bin/rikctl resume $instance
  bin/rikctl top instances
Stop it and remove all its traces:
  make demo-function-down
END
}

down() {
  need_root demo-function-down
  remove_all
  prove \
    "virtual machine" "$(pgrep -af "qemu-system.*$name|firecracker.*$name" || true)" \
    "network namespace" "$(find "$run" /run/netns -name "$name*" 2>/dev/null || true)" \
    "iptables rule" "$(iptables-save 2>/dev/null | grep -i rik || true)"
}

demo "$@"
