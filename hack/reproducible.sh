#!/usr/bin/env bash
# Builds the packages of the last commit in two new folders with different names, and compares them
# byte for byte. usage: reproducible.sh [packages|dist]; dist is for all architectures.
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/env.sh
target=${1:-packages}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for name in one/rik another/long/path/rik; do
  git clone -q --no-hardlinks . "$scratch/$name"
  mkdir -p "$scratch/$name/bin"
  # The tools and a Go that hack/deps.sh fetched are the same for both.
  cp -r bin/nfpm-* bin/cyclonedx-gomod-* "$scratch/$name/bin/" 2>/dev/null || true
  [ ! -d bin/toolchain ] || ln -s "$PWD/bin/toolchain" "$scratch/$name/bin/toolchain"
  # A umask and a time zone of their own: neither may reach a package.
  (cd "$scratch/$name" && if [ "$name" = one/rik ]; then umask 022; else umask 077; export TZ=Asia/Tokyo LC_ALL=C; fi && make --no-print-directory "$target" >/dev/null)
done
diff "$scratch/one/rik/bin/dist/SHA256SUMS" "$scratch/another/long/path/rik/bin/dist/SHA256SUMS" || { echo "the two builds differ" >&2; exit 1; }
echo "two builds in two folders are identical:"
cat "$scratch/one/rik/bin/dist/SHA256SUMS"
