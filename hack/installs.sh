#!/usr/bin/env bash
# Tests each way onto a machine, each on a Debian of its own with systemd: packages (.deb, .rpm),
# the archive, "make install", and the containers of deploy/compose with Docker and Podman. It builds
# all of them from the last commit, and from an earlier version to upgrade from. The earlier version
# is the newest earlier commit that can build packages, or the same commit under a lower version.
#
# usage: installs.sh [-run PATTERN]...; the flags are those of go test.
# RIK_BARE_MIRROR is the Debian archive.
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/env.sh
if [ "$(id -u)" -ne 0 ]; then
  echo "these tests boot machines in namespaces: run them as root (sudo hack/installs.sh)" >&2
  exit 1
fi
missing=()
for tool in debootstrap:debootstrap systemd-nspawn:systemd-container script:bsdutils lintian:lintian; do
  command -v "${tool%%:*}" >/dev/null || missing+=("${tool#*:}")
done
if [ ${#missing[@]} -gt 0 ]; then
  hack/progress.sh "installing ${missing[*]}" apt-get install -y --no-install-recommends "${missing[@]}"
fi
arch=$(dpkg --print-architecture)
mirror=${RIK_BARE_MIRROR:-http://deb.debian.org/debian}

# collect TREE OUT copies what a build of a tree made: the packages, the images, and the folder in
# which "make install" runs, which has the programs and no source.
collect() {
  local tree=$1 out=$2 program
  rm -rf "$out"
  mkdir -p "$out/source/bin"
  cp "$tree"/bin/dist/*{.deb,.rpm,.tar.gz} "$tree/bin/dist/SHA256SUMS" "$out/"
  cp -r "$tree/Makefile" "$tree/hack" "$tree/go.mod" "$out/source/"
  for program in rik rikctl riklet rik-shim rik-unpack rik-dns rik-init runc hello guest; do cp -r "$tree/bin/$program" "$out/source/bin/"; done
  # Docker and Podman find the same names in both versions, as with the tag "latest".
  RIK_PROGRAMS=$tree/bin/dist/$arch/bundle RIK_IMAGE_TAGS=latest RIK_IMAGE_LAYOUT=false hack/images.sh "$out/images" "$arch"
  cp -r "$tree/deploy/compose" "$out/"
}

now=$PWD/bin/test/packages old=$PWD/bin/test/packages-old
# The packages and the archive are those of this build alone.
rm -f bin/dist/*.deb bin/dist/*.rpm bin/dist/*.tar.gz
make --no-print-directory build packages bin/docker-compose-plugin
version=$(sed -n 's/.* rik_\(.*\)_[a-z0-9]*\.deb$/\1/p' bin/dist/SHA256SUMS)
collect . "$now"

# The newest earlier commit whose packages this script can build. It is built in a clone, with the
# same build cache.
if git cat-file -e HEAD~1:hack/packages.sh 2>/dev/null; then
  clone=$(mktemp -d)
  trap 'rm -rf "$clone"' EXIT
  git clone -q --no-hardlinks . "$clone/rik"
  git -C "$clone/rik" checkout -q HEAD~1
  mkdir -p "$clone/rik/bin"
  cp bin/nfpm-* bin/cyclonedx-gomod-* "$clone/rik/bin/"
  # Commits of the same second have the same version.
  RIK_PACKAGE_VERSION="0.0.1~$version" make --no-print-directory -C "$clone/rik" build packages
  collect "$clone/rik" "$old"
else
  rm -f bin/dist/*.deb bin/dist/*.rpm bin/dist/*.tar.gz
  RIK_PACKAGE_VERSION="0.0.1~$version" make --no-print-directory packages
  collect . "$old"
fi

hack/say.sh "lintian"
lintian --allow-root --fail-on error "$now"/*.deb

# The Debian that the machines are copies of, and one with container engines.
export RIK_DEBIAN_ROOT=$PWD/bin/test/debian RIK_ENGINES_ROOT=$PWD/bin/test/debian-engines RIK_SAMPLE_IMAGE=$PWD/bin/test/hello
if ! [ -e "$RIK_DEBIAN_ROOT/etc/debian_version" ]; then
  rm -rf "$RIK_DEBIAN_ROOT" "$RIK_DEBIAN_ROOT.part"
  hack/progress.sh "making a Debian with systemd" debootstrap --variant=minbase \
    --include=systemd,systemd-sysv,dbus,init-system-helpers,iproute2,iptables,nftables,curl,ca-certificates,procps,kmod,make,rpm \
    bookworm "$RIK_DEBIAN_ROOT.part" "$mirror"
  mv "$RIK_DEBIAN_ROOT.part" "$RIK_DEBIAN_ROOT"
fi
if ! [ -e "$RIK_ENGINES_ROOT/etc/debian_version" ]; then
  rm -rf "$RIK_ENGINES_ROOT" "$RIK_ENGINES_ROOT.part"
  cp -a "$RIK_DEBIAN_ROOT" "$RIK_ENGINES_ROOT.part"
  hack/progress.sh "adding container engines to it" hack/chroot-install.sh "$RIK_ENGINES_ROOT.part" \
    docker.io docker-compose podman podman-compose netavark aardvark-dns
  # The tests start what they need.
  chroot "$RIK_ENGINES_ROOT.part" systemctl disable -q docker.service docker.socket containerd.service \
    podman.service podman.socket podman-restart.service podman-auto-update.service podman-auto-update.timer
  install -D bin/docker-compose-plugin "$RIK_ENGINES_ROOT.part/usr/libexec/docker/cli-plugins/docker-compose"
  mv "$RIK_ENGINES_ROOT.part" "$RIK_ENGINES_ROOT"
fi
# A virtual machine of amd64 that starts from a disk, with the kernel of the packages.
export RIK_GUEST=$PWD/bin/dist/amd64/guest RIK_DISK_INITRAMFS=$PWD/bin/test/disk-initramfs
if [ -d "$RIK_GUEST" ]; then
  CGO_ENABLED=0 go build -o bin/test/diskinit ./internal/testkit/diskinit
  go run ./hack/initramfs -init bin/test/diskinit -modules "$RIK_GUEST/modules" -out "$RIK_DISK_INITRAMFS"
fi
# Programs of Debian that tests install next to rik.
export RIK_DEBIAN_PACKAGES=$PWD/bin/test/debian-packages
hack/debian-packages.sh "$RIK_DEBIAN_ROOT" "$RIK_DEBIAN_PACKAGES" ufw firewalld nftables dnf
rm -rf "$RIK_SAMPLE_IMAGE"
CGO_ENABLED=0 go build -ldflags '-s -w' -o bin/hello ./examples/hello
go run -tags containers_image_openpgp ./hack/image -program bin/hello -shell -ref v1 -out "$RIK_SAMPLE_IMAGE"
cp bin/hello "$RIK_SAMPLE_IMAGE-program"

export RIK_PACKAGES=$now RIK_OLD_PACKAGES=$old RIK_SAMPLE_PROGRAM=$RIK_SAMPLE_IMAGE-program
# Nodes on a disk that is 90 % full start no instances, and a machine takes up to 2 GB.
used=$(df --output=pcent "${TMPDIR:-/tmp}" | tr -dc 0-9)
if [ "$used" -ge 87 ]; then
  echo "the disk of ${TMPDIR:-/tmp} is $used % full, and nodes start no instances from 90 % on: free space, or set TMPDIR" >&2
  exit 1
fi
export RIK_PRIVILEGED=1 RIK_PRIVILEGED_LOG=$PWD/bin/test/installs.log
rm -f "$RIK_PRIVILEGED_LOG"
go test -vet=off -count=1 -tags "$RIK_TAGS" -timeout 90m -v "$@" ./test/packages
[ -s "$RIK_PRIVILEGED_LOG" ] || { echo "no installation was tested" >&2; exit 1; }
