#!/usr/bin/env bash
# Fetches packages of Debian with all that they need and a Debian in a directory does not have. It installs
# nothing, and changes nothing in that directory. Each package gets a directory OUT/NAME, and is
# fetched once. usage: debian-packages.sh ROOT OUT NAME...
set -euo pipefail
cd "$(dirname "$0")/.."
root=$1 out=$2
shift 2
missing=()
for name in "$@"; do [ -d "$out/$name" ] || missing+=("$name"); done
[ ${#missing[@]} -gt 0 ] || exit 0
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists,archives}/partial
# The settings and the state of apt are those of the directory. When root runs apt, it downloads as
# root, because another user cannot write here.
apt=(apt-get -qq -o Dir::Etc::SourceParts=- -o Dir::Etc::SourceList="$root/etc/apt/sources.list"
  -o Dir::Etc::TrustedParts="$root/etc/apt/trusted.gpg.d" -o Dir::State::Status="$root/var/lib/dpkg/status"
  -o Dir::State::Lists="$work/lists" -o Dir::Cache::archives="$work/archives" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=
  -o APT::Sandbox::User=root)
hack/progress.sh "fetching the lists of packages" "${apt[@]}" update
for name in "${missing[@]}"; do
  hack/progress.sh "fetching $name" "${apt[@]}" -y --no-install-recommends --download-only install "$name"
  mkdir "$work/$name"
  mv "$work"/archives/*.deb "$work/$name/"
  mv "$work/$name" "$out/$name"
done
