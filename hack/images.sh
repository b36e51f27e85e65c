#!/usr/bin/env bash
# Builds the container images of rik for architectures, without a container engine. OUT gets
#
#   rik-ARCH.tar, riklet-ARCH.tar   the images of the server and of a node, for docker load
#   oci/                            both as an OCI layout, for all architectures
#   archives/hello.tar              the image of the sample application, for all architectures
#
# A node runs iptables, which comes from Debian packages, see images-packages.sh. Each image lists its
# packages in /usr/share/doc/rik/packages. Two builds with the same packages are equal byte by byte.
#
# RIK_IMAGE_TAGS are the tags of the images, separated by commas; the default is latest. RIK_PROGRAMS
# is a directory with programs of this machine's architecture. By default programs.sh builds all
# programs. With RIK_IMAGE_LAYOUT=false, there is no OCI layout, which takes most of the time.
#
# usage: images.sh OUT ARCH...
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/env.sh
[ $# -ge 2 ] || { echo "usage: images.sh OUT amd64|arm64..." >&2; exit 2; }
out=$(realpath -m "$1")
shift
host=$(go env GOHOSTARCH)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# programs ARCH prints the directory with the programs of an architecture.
programs() {
  local arch=$1 name dir=$PWD/bin/linux-$1
  if [ "$arch" = "$host" ] && [ -n "${RIK_PROGRAMS:-}" ]; then
    dir=$work/programs
    mkdir -p "$dir"
    for name in rik rikctl riklet rik-shim rik-unpack rik-dns runc hello; do ln -s "$(realpath "$RIK_PROGRAMS")/$name" "$dir/$name"; done
  else
    hack/programs.sh "$arch" "$dir" >&2
  fi
  echo "$dir"
}

hack/cross.sh "$@" # before anything that takes long
platforms=()
for arch; do
  hack/images-packages.sh "$arch"
  dir=$(programs "$arch")
  platforms+=("$arch=$dir:$PWD/bin/debian/$arch")
done
CGO_ENABLED=0 hack/build.sh hack/images -tags "$RIK_TAGS" -o "$work/make-images" ./hack/images
mkdir -p "$out"
hack/say.sh "writing the images to $out"
"$work/make-images" -tags "${RIK_IMAGE_TAGS:-latest}" -layout="${RIK_IMAGE_LAYOUT:-true}" -out "$out" "${platforms[@]}"
