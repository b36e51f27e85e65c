#!/usr/bin/env bash
# Tests each way onto a machine, each on a Debian of its own with systemd: packages (.deb, .rpm)
# and the archive. It builds the packages of the last commit, and those of an earlier version to
# upgrade from. The earlier version is the newest earlier commit that can build packages, or the
# same commit under a lower version. usage: installs.sh [-run PATTERN]...; the flags are those of go test.
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

make --no-print-directory packages
version=$(sed -n 's/.* rik_\(.*\)_[a-z0-9]*\.deb$/\1/p' bin/dist/SHA256SUMS)
export RIK_PACKAGES=$PWD/bin/test/packages RIK_OLD_PACKAGES=$PWD/bin/test/packages-old
rm -rf "$RIK_PACKAGES" "$RIK_OLD_PACKAGES"
mkdir -p "$RIK_PACKAGES" "$RIK_OLD_PACKAGES"
cp bin/dist/*"$version"*{.deb,.rpm,.tar.gz} "$RIK_PACKAGES/"

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
  RIK_PACKAGE_VERSION="0.0.1~$version" make --no-print-directory -C "$clone/rik" packages
  cp "$clone"/rik/bin/dist/*{.deb,.rpm,.tar.gz} "$RIK_OLD_PACKAGES/"
else
  RIK_PACKAGE_VERSION="0.0.1~$version" make --no-print-directory packages
  mv bin/dist/*"0.0.1~$version"* "$RIK_OLD_PACKAGES/"
fi

hack/say.sh "lintian"
lintian --allow-root --fail-on error "$RIK_PACKAGES"/*.deb

export RIK_DEBIAN_ROOT=$PWD/bin/test/debian RIK_SAMPLE_IMAGE=$PWD/bin/test/hello
if ! [ -e "$RIK_DEBIAN_ROOT/etc/debian_version" ]; then
  rm -rf "$RIK_DEBIAN_ROOT"
  hack/progress.sh "making a Debian with systemd" debootstrap --variant=minbase \
    --include=systemd,systemd-sysv,dbus,init-system-helpers,iproute2,iptables,curl,ca-certificates,procps,kmod,rpm \
    bookworm "$RIK_DEBIAN_ROOT.part" "${RIK_BARE_MIRROR:-http://deb.debian.org/debian}"
  mv "$RIK_DEBIAN_ROOT.part" "$RIK_DEBIAN_ROOT"
fi
rm -rf "$RIK_SAMPLE_IMAGE"
CGO_ENABLED=0 go build -ldflags '-s -w' -o bin/hello ./examples/hello
go run -tags containers_image_openpgp ./hack/image -program bin/hello -shell -ref v1 -out "$RIK_SAMPLE_IMAGE"

export RIK_PRIVILEGED=1 RIK_PRIVILEGED_LOG=$PWD/bin/test/installs.log
rm -f "$RIK_PRIVILEGED_LOG"
go test -vet=off -count=1 -tags "$RIK_TAGS" -timeout 45m -v "$@" ./test/packages
[ -s "$RIK_PRIVILEGED_LOG" ] || { echo "no installation was tested" >&2; exit 1; }
