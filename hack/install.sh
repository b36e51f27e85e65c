#!/usr/bin/env bash
# Installs what make build built, with a service of systemd for a server and one for a
# node, or removes it again. Neither is started, and the data of both stay.
# usage: install.sh install|uninstall; PREFIX and DESTDIR are the usual ones.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${RIK_BIN:-$PWD/bin}
DESTDIR=${DESTDIR:-}
prefix=${PREFIX:-/usr/local}
# A program looks for the others beside it: they are in a folder of their own.
lib=$prefix/lib/rik
units=$prefix/lib/systemd/system
# Commands for people. The rest is rik with a word: rik kcp, rik scheduler.
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
