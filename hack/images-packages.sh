#!/usr/bin/env bash
# Unpacks the Debian packages of the container images into bin/debian/ARCH. It fetches them once; to
# fetch newer ones, remove that directory. The file "packages" in it lists them with their versions
# and SHA-256 sums, and "owners" has the package of each file. usage: images-packages.sh ARCH
set -euo pipefail
cd "$(dirname "$0")/.."
arch=$1 root=bin/debian/$1
# iptables and its libraries, libraries of programs that are not linked statically, and authorities.
names=(iptables libc6 libip4tc2 libip6tc2 libmnl0 libnetfilter-conntrack3 libnfnetlink0 libnftnl11 libseccomp2 libxtables12)
names=("${names[@]/%/:$arch}" ca-certificates)
[ ! -s "$root/packages" ] || exit 0
if [ "$arch" != "$(dpkg --print-architecture)" ] && ! dpkg --print-foreign-architectures | grep -qx "$arch"; then
  echo "apt has no packages for $arch: run dpkg --add-architecture $arch and apt-get update as root" >&2
  exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/debs" "$work/tree"
# When root runs apt, it downloads as the user _apt, which must be able to write here.
chmod 755 "$work" "$work/tree"
[ "$(id -u)" -ne 0 ] || chown _apt "$work/debs" 2>/dev/null || true
progress=$PWD/hack/progress.sh
(cd "$work/debs" && "$progress" "the Debian packages of the images for $arch" apt-get download "${names[@]}") || {
  echo "apt cannot download ${names[*]}: run apt-get update as root" >&2
  exit 1
}
for file in "$work"/debs/*.deb; do
  dpkg-deb -x "$file" "$work/tree"
  package=$(dpkg-deb --field "$file" Package)
  dpkg-deb --fsys-tarfile "$file" | tar -t | sed "s|^|$package |" >>"$work/owners"
  echo "$(dpkg-deb --show --showformat='${Package} ${Version} ${Architecture}' "$file") sha256:$(sha256sum <"$file" | cut -d' ' -f1)" >>"$work/packages"
done
mkdir -p bin/debian
rm -rf "$root"
mv "$work/tree" "$root"
mv "$work/owners" "$root/"
mv "$work/packages" "$root/" # last, because this file shows that all others exist
