#!/usr/bin/env bash
# Writes the images hello:v1 and hello:v2, which docs/guide.md deploys, to a directory. They
# contain examples/hello and a shell. usage: sample-images.sh [DIR]
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/env.sh
dir=${1:-/var/lib/rik/images}
hack/say.sh "writing the sample images to $dir"
mkdir -p "$dir"
CGO_ENABLED=0 go build -ldflags '-s -w' -o bin/hello ./examples/hello
for tag in v1 v2; do
  go run -tags containers_image_openpgp ./hack/image -program bin/hello -shell -ref "$tag" -out "$dir/hello"
done
