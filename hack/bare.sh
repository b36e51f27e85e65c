#!/usr/bin/env bash
# Runs make demo and make demo-down of the last commit as root in a new Debian, which has only git
# and make. It removes that Debian afterward. It fails if one of the two commands fails or prints
# nothing for 30 seconds. It also fails if the Go that hack/deps.sh fetches did not build the demo.
#
# usage: bare.sh [--caches]; with --caches the Debian uses the build and module caches of this
# machine's Go, which saves minutes. The script needs debootstrap and the network. The demo uses
# the network namespace of this machine.
# RIK_BARE_MIRROR and RIK_BARE_SUITE select another archive and another release of Debian.
set -euo pipefail
shopt -s lastpipe
cd "$(dirname "$0")/.."
source hack/env.sh
mirror=${RIK_BARE_MIRROR:-http://deb.debian.org/debian}
suite=${RIK_BARE_SUITE:-bookworm}
silence=30
case ${1:-} in
  '') caches=() ;;
  --caches) caches=("$(go env GOCACHE)" /root/.cache/go-build "$(go env GOMODCACHE)" /root/go/pkg/mod) ;;
  *) echo "usage: bare.sh [--caches]" >&2; exit 2 ;;
esac
if [ "$(id -u)" -ne 0 ]; then
  echo "this script builds a Debian and runs the demo in it: run it as root (sudo hack/bare.sh)" >&2
  exit 1
fi

# The demo mounts overlays on this folder. So it must not be on an overlay, and not in memory.
root=$(mktemp -d /var/tmp/rik-bare.XXXXXX)
remove() {
  if grep -qF " $root/" /proc/self/mountinfo; then
    echo "$root is not removed: a file system is mounted in it" >&2
    return
  fi
  rm -rf --one-file-system "$root"
}
trap remove EXIT

hack/progress.sh "making a Debian ($suite) from $mirror" debootstrap --variant=minbase --include=git,make "$suite" "$root" "$mirror"
git clone -q --no-hardlinks . "$root/root/rik"
# A network that inspects TLS has its own certificate authorities.
find /usr/local/share/ca-certificates -name '*.crt' -exec install -Dt "$root/usr/local/share/ca-certificates" {} + 2>/dev/null || true
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"

# inside COMMAND... runs a command in the Debian. Its mounts and processes are in namespaces that
# end with the command.
inside() {
  local environment=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin) name
  for name in GOPROXY GONOSUMDB GOSUMDB http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    [ -z "${!name:-}" ] || environment+=("$name=${!name}")
  done
  # shellcheck disable=SC2016 # the inner shell expands it
  unshare --mount --propagation private --pid --fork --kill-child --ipc --uts bash -euc '
    root=$1 caches=$2
    shift 2
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/run"
    while [ "$caches" -gt 0 ]; do
      mkdir -p "$root$2"
      mount --bind "$1" "$root$2"
      shift 2
      caches=$((caches - 2))
    done
    cd "$root"
    exec chroot "$root" /usr/bin/env -i "$@"' inside "$root" ${#caches[@]} "${caches[@]}" "${environment[@]}" "$@"
}

# watched COMMAND... runs a command inside and shows its output. It fails if the command fails, or
# prints nothing for too long.
watched() {
  local line last=$SECONDS longest=0 status
  set +e
  inside "$@" 2>&1 | while IFS= read -r line; do
    [ $((SECONDS - last)) -le $longest ] || longest=$((SECONDS - last))
    last=$SECONDS
    printf '%s\n' "$line"
  done
  status=${PIPESTATUS[0]}
  set -e
  hack/say.sh "exit code $status, at most $longest s without output"
  [ "$status" -eq 0 ] && [ $longest -le $silence ]
}

# One call runs both commands, because the demo's processes end with the call.
watched bash -ec 'start=$SECONDS; make -C /root/rik demo; echo "make demo took $((SECONDS - start)) s"; make -C /root/rik demo-down'
inside test -x /root/rik/bin/toolchain/bin/go
