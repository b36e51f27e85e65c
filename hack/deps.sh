#!/usr/bin/env bash
# Installs from Debian what the build, the demo and the tests need, if missing.
set -euo pipefail
cd "$(dirname "$0")/.."

need=()
have() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }
for package in gcc libc6-dev libseccomp-dev pkg-config protobuf-compiler libprotobuf-dev iproute2 iptables busybox-static procps util-linux e2fsprogs lz4 qemu-system-x86; do
  have "$package" || need+=("$package")
done
if ! command -v go >/dev/null; then
  echo "rik needs Go 1.26 or newer on the PATH: see https://go.dev/doc/install" >&2
  exit 1
fi
[ ${#need[@]} -eq 0 ] && exit 0
if ! command -v apt-get >/dev/null; then
  echo "this is not Debian or Ubuntu; install the counterparts of: ${need[*]}" >&2
  exit 1
fi
hack/say.sh "installing ${need[*]}"
sudo=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "missing packages, and neither root nor sudo: apt-get install ${need[*]}" >&2; exit 1; }
  sudo=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
"${sudo[@]}" apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null 2>&1 ||
  { "${sudo[@]}" apt-get update -qq && "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null; }
