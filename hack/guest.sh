#!/usr/bin/env bash
# Makes the files OUT/kernel and OUT/initramfs that microVMs boot. The kernel is Debian's newest
# cloud kernel. The initramfs has the program INIT and the modules of that kernel. The script
# fetches the kernel once. To fetch a newer one, remove OUT first. OUT/package has the name and the
# version of the kernel's package. INIT is a program of ARCH. usage: guest.sh INIT OUT [amd64|arm64]
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/env.sh
init=$1 out=$2 arch=${3:-$(dpkg --print-architecture)}
mkdir -p "$out"

# Debian's kernel image for amd64 is compressed with lz4. An uncompressed kernel boots faster under
# software emulation (1.8 s, not 2.1 s), and Firecracker accepts only that. The header of the image
# says where the compressed part is: see the fields setup_sects, payload_offset and payload_length
# in Documentation/arch/x86/boot.rst of the kernel. The image for arm64 is not compressed: see
# Documentation/arch/arm64/booting.rst.
number() { od -An -t "u$3" -j "$2" -N "$3" "$1" | tr -d ' '; }
unpack() {
  local from=$1 to=$2 start length
  start=$((($(number "$from" 497 1) + 1) * 512 + $(number "$from" 584 4)))
  length=$(($(number "$from" 588 4) - 4))
  dd if="$from" iflag=skip_bytes,count_bytes skip="$start" count="$length" bs=1M status=none | lz4 -dfq - "$to" 2>/dev/null && [ -s "$to" ]
}

fetch() {
  local dir package
  dir=$(mktemp -d)
  trap 'rm -rf "$dir"' RETURN
  local meta=linux-image-cloud-$arch:$arch
  newest() { apt-cache depends "$meta" 2>/dev/null | awk '$1 == "Depends:" { sub(/:.*/, "", $2); print $2; exit }' || true; }
  package=$(newest)
  if [ -z "$package" ] && [ "$(id -u)" -eq 0 ]; then
    hack/progress.sh "fetching the lists of packages" apt-get update || true
    package=$(newest)
  fi
  if [ -z "$package" ]; then
    local before=
    [ "$arch" = "$(dpkg --print-architecture)" ] || before="dpkg --add-architecture $arch; "
    echo "apt does not have the package $meta: run \"${before}apt-get update\" as root, or put a kernel and its initramfs into $out yourself" >&2
    return 1
  fi
  hack/say.sh "fetching the microVMs' kernel, $package"
  # When root runs apt, it downloads as the user _apt, which must be able to write here.
  [ "$(id -u)" -ne 0 ] || chown _apt "$dir" 2>/dev/null || true
  chmod 755 "$dir"
  local progress=$PWD/hack/progress.sh
  (cd "$dir" && "$progress" "$package" apt-get download "$package:$arch")
  hack/progress.sh "unpacking $package" dpkg -x "$dir"/linux-image*.deb "$dir/x"
  dpkg-deb -W --showformat '${Package}=${Version}\n' "$dir"/linux-image*.deb >"$out/package"
  rm -rf "$out/modules"
  cp -r "$dir"/x/lib/modules/*/kernel "$out/modules"
  local image
  image=$(echo "$dir"/x/boot/vmlinuz-*)
  if [ "$arch" != amd64 ] || ! unpack "$image" "$dir/kernel"; then
    cp "$image" "$dir/kernel" # not compressed, or in another way; QEMU boots it too
  fi
  chmod 644 "$dir/kernel"
  mv "$dir/kernel" "$out/.kernel"
  mv "$out/.kernel" "$out/kernel" # last, because this file shows that all others exist
}

[ -s "$out/kernel" ] && [ -d "$out/modules" ] && [ -s "$out/package" ] || fetch
if ! [ -s "$out/initramfs" ] || [ "$init" -nt "$out/initramfs" ] || [ "$out/kernel" -nt "$out/initramfs" ] ||
  [ hack/initramfs/main.go -nt "$out/initramfs" ]; then
  go run ./hack/initramfs -init "$init" -modules "$out/modules" -out "$out/initramfs"
fi
