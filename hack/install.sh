#!/usr/bin/env bash
# Installs the built programs and the systemd services of a server and of a node, or removes
# them. It starts no service and removes no data.
# usage: install.sh install|uninstall; PREFIX and DESTDIR have their usual meaning.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${RIK_BIN:-$PWD/bin}
DESTDIR=${DESTDIR:-}
prefix=${PREFIX:-/usr/local}
# A program finds the other programs in its own folder, so all of them are in one.
lib=$prefix/lib/rik
units=$prefix/lib/systemd/system
# The commands that users run. Components are commands of rik, such as rik kcp.
commands=(rik rikctl riklet)

install_all() {
  install -d "$DESTDIR$lib/guest" "$DESTDIR$prefix/bin" "$DESTDIR$units"
  install -m 0755 "$bin"/{rik,rikctl,riklet,rik-shim,rik-unpack,rik-dns,runc} "$DESTDIR$lib/"
  install -m 0644 "$bin"/guest/{kernel,initramfs} "$DESTDIR$lib/guest/"
  for name in "${commands[@]}"; do ln -sfn "../lib/rik/$name" "$DESTDIR$prefix/bin/$name"; done
  for unit in deploy/systemd/*.service; do
    sed "s|@LIB@|$lib|" "$unit" | install -m 0644 /dev/stdin "$DESTDIR$units/$(basename "$unit")"
  done
}

uninstall_all() {
  rm -rf "$DESTDIR$lib"
  for name in "${commands[@]}"; do
    [ "$(readlink "$DESTDIR$prefix/bin/$name")" != "../lib/rik/$name" ] || rm "$DESTDIR$prefix/bin/$name"
  done
  for unit in deploy/systemd/*.service; do rm -f "$DESTDIR$units/$(basename "$unit")"; done
}

case ${1:-} in
  install) install_all ;;
  uninstall) uninstall_all ;;
  *) echo "usage: install.sh install|uninstall" >&2; exit 2 ;;
esac
