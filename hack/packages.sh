#!/usr/bin/env bash
# Makes the packages and the archives for each architecture: bin/dist/*.deb, *.rpm, *.tar.gz, an
# SBOM for each architecture, and SHA256SUMS. usage: packages.sh [amd64] [arm64]; the default is
# the architecture of this machine. The output depends only on the source, the Go and C compilers,
# and the versions of Debian's libseccomp and kernel.
#
# VERSION is the version to build. RIK_SIGNING_KEY is the file of an armored OpenPGP key without a
# passphrase, or with the passphrase in NFPM_PASSPHRASE. If it is set, the packages and SHA256SUMS
# are signed.
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/env.sh
root=$PWD dist=$PWD/bin/dist
nfpm=$root/bin/nfpm-$NFPM_VERSION cyclonedx=$root/bin/cyclonedx-gomod-$CYCLONEDX_VERSION
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
archs=("$@")
[ ${#archs[@]} -gt 0 ] || archs=("$(dpkg --print-architecture)")
hack/cross.sh -run "${archs[@]}" # before anything that takes long

# package_version prints the version for packages. Between releases it has the time of the commit,
# so that later packages are newer: v0.1.0-dev becomes 0.1.0~dev.20261128103000.
package_version() {
  local version=${VERSION#v}
  case $version in
    *-dev) printf '%s~dev.%s' "${version%-dev}" "$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S)" ;;
    *) printf '%s' "${version//-/\~}" ;;
  esac
}
export RIK_PACKAGE_VERSION=${RIK_PACKAGE_VERSION:-$(package_version)}
# started ARCH BUNDLE fails unless every program of another architecture starts under QEMU's user
# emulation. Some emulated programs hang instead of ending, so a limit ends them.
started() {
  local arch=$1 bundle=$2 run=() out
  if [ "$arch" != "$(dpkg --print-architecture)" ]; then
    run=(qemu-aarch64-static)
    [ "$arch" = arm64 ] || run=(qemu-x86_64-static)
  fi
  while read -r program argument expect; do
    out=$(timeout -s KILL 60 "${run[@]}" "$bundle/$program" $argument 2>&1 </dev/null || true)
    grep -qF -- "$expect" <<<"$out" || { echo "$program for $arch does not start: $program $argument printed: ${out:0:300}" >&2; return 1; }
  done <<'PROGRAMS'
rik version v
rikctl version Client: v
riklet --help --server
runc --version 1.
rik-shim --help riklet starts this program
rik-dns --help riklet starts this program
rik-unpack --help no arguments
hello -h address of the HTTP server
PROGRAMS
  hack/say.sh "all programs for $arch start"
}

mkdir -p "$dist"
go build -tags "$RIK_TAGS" -o "$root/bin/package" ./hack/package
rm -f "$dist"/SHA256SUMS*

for arch in "${archs[@]}"; do
  work=$dist/$arch bundle=$dist/$arch/bundle
  hack/programs.sh "$arch" "$bundle"
  started "$arch" "$bundle"
  hack/guest.sh "$bundle/rik-init" "$work/guest" "$arch"
  mkdir -p "$bundle/guest"
  cp "$work/guest/kernel" "$work/guest/initramfs" "$bundle/guest/"
  RIK_KERNEL_PACKAGE=$(cat "$work/guest/package")
  export RIK_KERNEL_PACKAGE
  rm -rf "$bundle"/{man,completions,doc} "$work/nfpm"
  hack/progress.sh "documentation of the packages" "$root/bin/package" docs "$bundle"

  mkdir -p "$work/bom"
  for program in rik rikctl riklet rik-shim rik-unpack rik-dns runc hello; do
    "$cyclonedx" bin -json -noserial -notimestamp -std -output "$work/bom/$program.json" "$bundle/$program" 2>/dev/null
  done
  "$root/bin/package" sbom "$RIK_KERNEL_PACKAGE" "$dist/rik-$RIK_PACKAGE_VERSION-linux-$arch.cdx.json" "$work"/bom/{rik,rikctl,riklet,rik-shim,rik-unpack,rik-dns,runc,hello}.json

  "$root/bin/package" nfpm "$bundle" "$RIK_PACKAGE_VERSION" "$arch" "$work/nfpm"
  # Compressing takes most of the time, so as many packages as there are cores are made at once.
  for name in rik riklet rikctl; do
    for format in deb rpm; do echo "$name $format $dist/${name}_${RIK_PACKAGE_VERSION}_$arch.$format"; done
  done >"$work/nfpm/list"
  # shellcheck disable=SC2016 # the inner shell expands it
  hack/progress.sh "the packages for $arch" xargs -a "$work/nfpm/list" -P "$(nproc)" -L 1 \
    bash -euc '"$1" package -f "$2/$3.yaml" -p "$4" -t "$5" >/dev/null' - "$nfpm" "$work/nfpm"

  # The archive has the same files. Its rik installs them.
  top=rik-$RIK_PACKAGE_VERSION-linux-$arch
  rm -rf "$work/$top"
  mkdir "$work/$top"
  cp -r "$bundle/." "$work/$top/"
  rm "$work/$top/rik-init"
  install -m 0755 hack/package/install.sh "$work/$top/install.sh"
  cp LICENSE "$work/$top/"
  hack/progress.sh "$top.tar.gz" bash -c 'tar -C "$1" --sort=name --format=ustar --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u+rwX,go+rX,go-w -cf - "$2" | gzip -6n >"$3"' \
    - "$work" "$top" "$dist/$top.tar.gz"
  rm -rf "${work:?}/$top"
done

(cd "$dist" && sha256sum -- *.deb *.rpm *.tar.gz *.cdx.json >SHA256SUMS)
if [ -n "${RIK_SIGNING_KEY:-}" ]; then
  home=$(mktemp -d)
  trap 'gpgconf --homedir "$home" --kill all; rm -rf "$home"' EXIT
  gpg --homedir "$home" --batch --quiet --import "$RIK_SIGNING_KEY"
  gpg --homedir "$home" --batch --yes --pinentry-mode loopback --passphrase "${NFPM_PASSPHRASE:-}" --armor --detach-sign "$dist/SHA256SUMS"
fi
hack/say.sh "the packages are in $dist"
(cd "$dist" && ls -l -- *.deb *.rpm *.tar.gz | awk '{ printf "  %8.1f MB  %s\n", $5 / 1e6, $9 }')
