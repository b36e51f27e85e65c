#!/usr/bin/env bash
# Installs Debian packages into the root directory of another Debian, without starting their
# services. usage: chroot-install.sh ROOT PACKAGE...
set -euo pipefail
root=$(realpath "$1")
shift
mv "$root/etc/resolv.conf" "$root/etc/resolv.conf.before"
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 0755 "$root/usr/sbin/policy-rc.d"
# A mount namespace of its own: the mounts end with it.
unshare --mount --propagation private bash -euc '
  root=$1
  shift
  mount -t proc proc "$root/proc"
  chroot "$root" env DEBIAN_FRONTEND=noninteractive LC_ALL=C sh -euc '\''
    apt-get update
    apt-get install -y --no-install-recommends "$@"
    apt-get clean
    rm -rf /var/lib/apt/lists/*
  '\'' - "$@"
' - "$root" "$@"
rm "$root/usr/sbin/policy-rc.d"
mv "$root/etc/resolv.conf.before" "$root/etc/resolv.conf"
