#!/usr/bin/env bash
# Writes the generated files: gRPC stubs from proto/, deep copies and protobuf code of the API
# types, CRDs, and the pages in docs/reference. With --check it changes nothing, and fails if a
# file differs from what it would write.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
tools=$root/bin/gen
mkdir -p "$tools"
source hack/env.sh

if [ "${1:-}" = --check ]; then
  scratch=$(mktemp -d)
  trap 'chmod -R u+w "$scratch"; rm -rf "$scratch"' EXIT
  mkdir "$scratch/rik"
  git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$scratch/rik" 2>/dev/null || true
  ln -s "$root/bin" "$scratch/rik/bin"
  (cd "$scratch/rik" && git init -q && ./hack/generate.sh)
  status=0
  while IFS= read -r file; do
    if ! cmp -s "$file" "$scratch/rik/$file"; then
      echo "stale: $file (run make generate)"
      status=1
    fi
  done < <(cd "$scratch/rik" && grep -rlE --include='*.go' --include='*.proto' --include='*.md' --include='*.yaml' -e '(Code|This file was) (auto)?generated' -e 'controller-gen.kubebuilder.io/version' api config internal docs/reference 2>/dev/null | sort)
  exit $status
fi

for tool in k8s.io/code-generator/cmd/{conversion-gen,deepcopy-gen,defaulter-gen,go-to-protobuf,go-to-protobuf/protoc-gen-gogo} \
  k8s.io/kube-openapi/cmd/openapi-gen golang.org/x/tools/cmd/goimports \
  google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc; do
  [ -x "$tools/$(basename $tool)" ] || go build -o "$tools/" "$tool"
done
# controller-gen is installed as a module of its own, because it needs newer libraries than rik.
[ -x "$tools/controller-gen" ] || GOBIN=$tools GOFLAGS= go install sigs.k8s.io/controller-tools/cmd/controller-gen@v0.23.0
export PATH=$tools:$PATH

# gRPC stubs.
mapfile -t protos < <(cd proto && find . -name '*.proto' | sed 's|^\./||' | sort)
protoc -I proto --go_out=. --go_opt=module=rik.dev/rik \
  --go-grpc_out=. --go-grpc_opt=module=rik.dev/rik "${protos[@]}"

# API types. go-to-protobuf needs a folder in which each package is under its import path.
deepcopy-gen --go-header-file /dev/null --output-file zz_generated.deepcopy.go ./api/rik/v1alpha1 ./api/workload/v1alpha1 ./api/apiresource/v1alpha1
controller-gen crd paths=./api/workload/v1alpha1 paths=./api/apiresource/v1alpha1 output:crd:dir=config
include=$(mktemp -d "$root/bin/include.XXXXXX")
cleanup() { chmod -R u+w "$include"; rm -rf "$include"; }
trap cleanup EXIT
mkdir -p "$include/rik.dev" "$include/k8s.io" "$include/github.com/gogo"
ln -s "$root" "$include/rik.dev/rik"
ln -s "$(go list -m -f '{{.Dir}}' k8s.io/apimachinery)" "$include/k8s.io/apimachinery"
ln -s "$(go list -m -f '{{.Dir}}' github.com/gogo/protobuf)" "$include/github.com/gogo/protobuf"
(cd "$include" && go-to-protobuf \
  --go-header-file /dev/null --output-dir=. --proto-import="$include" \
  --packages=rik.dev/rik/api/rik/v1alpha1 \
  --apimachinery-packages=-k8s.io/apimachinery/pkg/util/intstr,-k8s.io/apimachinery/pkg/api/resource,-k8s.io/apimachinery/pkg/runtime/schema,-k8s.io/apimachinery/pkg/runtime,-k8s.io/apimachinery/pkg/apis/meta/v1)

# The API server's hub types, and their conversions from and to the versioned types.
apis=internal/apiserver/apis
go run hack/hubgen.go api/rik/v1alpha1 "$apis/rik/zz_generated.types.go"
deepcopy-gen --go-header-file /dev/null --output-file zz_generated.deepcopy.go "./$apis/rik"
defaulter-gen --go-header-file /dev/null --output-file zz_generated.defaults.go "./$apis/rik/v1alpha1"
conversion-gen --go-header-file /dev/null --output-file zz_generated.conversion.go "./$apis/rik/v1alpha1"
openapi-gen --go-header-file /dev/null --output-dir "$apis/openapi" --output-pkg "rik.dev/rik/$apis/openapi" \
  --output-file zz_generated.openapi.go --report-filename /dev/null ./api/rik/v1alpha1

# The reference pages.
go build -tags "$RIK_TAGS" -ldflags '-s -w' -o "$tools/gendocs" ./hack/gendocs
# The tests of the pages check that this secret of the environment is on none of them.
RIK_TOKEN=never-on-a-page gendocs docs/reference
