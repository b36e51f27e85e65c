#!/usr/bin/env bash
# Builds the container images of both architectures twice, and fails if the builds differ. It also
# starts each foreign program in them, if the machine can emulate the architecture.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for build in first second; do
  # The second build links all programs again.
  rm -rf bin/linux-amd64 bin/linux-arm64
  hack/images.sh "$work/$build" amd64 arm64 >/dev/null
  (cd "$work/$build" && find . -type f -exec sha256sum {} + | sort -k 2) >"$work/$build.sums"
  rm -rf "${work:?}/$build"
done
diff "$work/first.sums" "$work/second.sums" || { echo "two builds of the images differ" >&2; exit 1; }
hack/say.sh "two builds of the images are equal: $(wc -l <"$work/first.sums") files"

declare -A machines=([amd64]=x86_64 [arm64]=aarch64)
for arch in amd64 arm64; do
  emulator=qemu-${machines[$arch]}-static
  command -v "$emulator" >/dev/null || { hack/say.sh "the programs for $arch were not started: $emulator is missing"; continue; }
  for program in "rik --help" "rikctl --version" "riklet --help" "runc --version" "hello -kernel"; do
    read -ra words <<<"$program"
    timeout -s KILL 120 "$emulator" "bin/linux-$arch/${words[0]}" "${words[@]:1}" >/dev/null
  done
  hack/say.sh "the programs for $arch start"
done
