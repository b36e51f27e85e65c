#!/usr/bin/env bash
# Installs the Debian packages that the build, the demos and the tests need, and a Go if this
# machine has none from 1.21 on. usage: deps.sh [containers]; with that argument it leaves out
# the packages that only microVMs and tests need.
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/env.sh

case $(uname -m) in
  aarch64) qemu=qemu-system-arm ;;
  *) qemu=qemu-system-x86 ;;
esac
packages=(gcc libc6-dev libseccomp-dev pkg-config iproute2 iptables procps util-linux)
case ${1:-all} in
  all) packages+=("$qemu" e2fsprogs lz4 protobuf-compiler libprotobuf-dev busybox-static curl) ;;
  containers) ;;
  *) echo "usage: deps.sh [containers]" >&2; exit 2 ;;
esac

# line WORD prints the second word of the line of go.mod that begins with WORD.
line() { awk -v word="$1" '$1 == word { print $2; exit }' go.mod; }
minimum=$(line go)
toolchain=$(line toolchain)

at_least() { printf '%s\n' "$1" "${2:-0}" | sort -V -C; }

# installed prints the version of the Go on the PATH, such as 1.26.8, or nothing.
installed() {
  local version
  version=$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null) || return 0
  version=${version#devel }
  version=${version#go}
  printf '%s' "${version%% *}"
}

# switches succeeds if the Go on the PATH fetches the Go that go.mod names and runs it. From 1.21
# on, Go does so with each command in this folder, unless GOTOOLCHAIN forbids it.
switches() {
  local has=$1 result
  at_least 1.21 "$has" && [ "$(cd / && go env GOTOOLCHAIN)" != local ] || return 1
  result=$(mktemp)
  hack/progress.sh "Go $has fetches $toolchain" bash -c 'go version >"$1"' - "$result" || true
  if ! grep -q "go version $toolchain " "$result"; then
    rm -f "$result"
    return 1
  fi
  rm -f "$result"
}

# proxies prints the module proxies of GOPROXY, one on each line. For the module of the toolchain,
# "direct" is a proxy too: https://golang.org/toolchain?go-get=1 names it.
proxies() {
  local setting=${GOPROXY:-} proxy
  [ -n "$setting" ] || setting=$(cd / && go env GOPROXY 2>/dev/null) || true
  for proxy in $(tr ',|' '  ' <<<"${setting:-https://proxy.golang.org,direct}"); do
    case $proxy in
      direct) echo https://go.dev/dl/mod ;;
      off) return ;;
      *) echo "${proxy%/}" ;;
    esac
  done
}

# hash FOLDER prints the hash of the files below a folder, in go.sum's format for modules.
hash() {
  local sum
  sum=$(cd "$1" && find . -type f -printf '%P\0' | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum)
  # shellcheck disable=SC2059 # the format contains the bytes
  printf "h1:%s\n" "$(printf "$(sed 's/../\\x&/g' <<<"${sum%% *}")" | base64)"
}

# fetch_go fetches the module of the toolchain into bin/toolchain. It compares the hash before it
# runs any of its programs.
fetch_go() {
  local arch version sum dir proxy
  case $(uname -m) in
    x86_64) arch=amd64 ;;
    aarch64) arch=arm64 ;;
    *) echo "hack/toolchain.sum has no Go for $(uname -m): install Go $minimum or newer, see https://go.dev/doc/install" >&2; return 1 ;;
  esac
  version=v0.0.1-$toolchain.linux-$arch
  sum=$(awk -v version="$version" '$2 == version { print $3 }' hack/toolchain.sum)
  [ -n "$sum" ] || { echo "hack/toolchain.sum has no line for $version" >&2; return 1; }
  mkdir -p bin
  dir=$(mktemp -d "$PWD/bin/toolchain.XXXXXX")
  # shellcheck disable=SC2064 # expand the folder now
  trap "chmod -R u+w '$dir'; rm -rf '$dir'" EXIT
  for proxy in $(proxies); do
    hack/progress.sh "fetching $toolchain from $proxy" \
      curl -fsSL --retry 3 -o "$dir/zip" "$proxy/golang.org/toolchain/@v/$version.zip" && break
  done
  if ! [ -s "$dir/zip" ]; then
    echo "downloading Go failed: set GOPROXY to a module proxy that this machine reaches, or install Go $minimum or newer (https://go.dev/doc/install)" >&2
    return 1
  fi
  hack/progress.sh "unpacking $toolchain" unzip -q -d "$dir/module" "$dir/zip"
  if [ "$(hash "$dir/module")" != "$sum" ]; then
    echo "the Go from $proxy is not used: its hash is $(hash "$dir/module"), and hack/toolchain.sum has $sum" >&2
    return 1
  fi
  # A Go that fetches another Go does the same. Modules carry no file modes, and no go.mod below
  # their own.
  cd "$dir/module/golang.org/toolchain@$version"
  chmod a+x bin/* pkg/tool/*/*
  find src -name _go.mod -execdir cp {} go.mod \;
  # A go.mod of its own keeps the packages below bin/toolchain out of rik's ./... pattern.
  echo "module toolchain" >go.mod
  cd - >/dev/null
  rm -rf bin/toolchain
  mv "$dir/module/golang.org/toolchain@$version" bin/toolchain
  hack/say.sh "$(bin/toolchain/bin/go version) is in bin/toolchain; it builds rik, and nothing else on this machine uses it"
}

need=() fetch=false
has=$(installed)
if ! at_least "$minimum" "$has"; then
  if [ -n "$has" ] && switches "$has"; then
    : # each Go command in this folder now uses the fetched one
  else
    fetch=true
    hack/say.sh "rik is built by Go $minimum or newer; this machine has ${has:-none}"
    for program in curl unzip; do command -v $program >/dev/null || need+=($program); done
    [ -e /etc/ssl/certs/ca-certificates.crt ] || need+=(ca-certificates)
  fi
fi

have() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }
for package in "${packages[@]}"; do
  have "$package" || need+=("$package")
done

sudo=()
apt() {
  hack/progress.sh "$1" "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -o Dpkg::Use-Pty=0 "${@:2}"
}

if [ ${#need[@]} -gt 0 ]; then
  if ! command -v apt-get >/dev/null; then
    echo "this is not Debian or Ubuntu; install the counterparts of: ${need[*]}" >&2
    exit 1
  fi
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "missing packages, and neither root nor sudo: apt-get install ${need[*]}" >&2; exit 1; }
    sudo=(sudo)
  fi
  hack/say.sh "installing ${need[*]}"
  if ! apt-get install -s --no-install-recommends "${need[@]}" >/dev/null 2>&1 ||
    ! apt "installing packages" install --no-install-recommends "${need[@]}"; then
    apt "fetching the lists of packages" update
    apt "installing packages" install --no-install-recommends "${need[@]}"
  fi
fi
if $fetch; then fetch_go; fi
