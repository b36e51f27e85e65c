#!/usr/bin/env bash
# Fails if this machine lacks a Debian package that hack/programs.sh needs for an architecture, and
# prints the commands that install all of them. With -run it also needs the emulator that starts the
# programs of another architecture. usage: cross.sh [-run] amd64|arm64...
set -euo pipefail
own=$(dpkg --print-architecture)
run=false
[ "${1:-}" != -run ] || { run=true; shift; }
status=0
for arch; do
  case $arch in
    amd64) machine=x86_64 ;;
    arm64) machine=aarch64 ;;
    *) echo "there are no programs for $arch: use amd64 or arm64" >&2; exit 2 ;;
  esac
  missing=()
  [ -f "/usr/lib/$machine-linux-gnu/libseccomp.a" ] || missing+=("/usr/lib/$machine-linux-gnu/libseccomp.a")
  packages="libseccomp-dev:$arch" before=
  if [ "$arch" != "$own" ]; then
    packages="crossbuild-essential-$arch $packages qemu-user-static" before="dpkg --add-architecture $arch"
    command -v "$machine-linux-gnu-gcc" >/dev/null || missing+=("$machine-linux-gnu-gcc")
    ! $run || command -v "qemu-$machine-static" >/dev/null || missing+=("qemu-$machine-static")
  fi
  [ ${#missing[@]} -gt 0 ] || continue
  status=1
  echo "building for $arch needs ${missing[*]}. As root, run:" >&2
  printf '  %s\n' ${before:+"$before"} "apt-get update" "apt-get install $packages" >&2
done
exit $status
