# rik: make help lists the targets.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

BIN := $(CURDIR)/bin
VERSION ?= $(shell git describe --tags --match 'v[0-9]*' 2>/dev/null || echo v0.1.0-dev)
COMMIT := $(shell git rev-parse HEAD 2>/dev/null)
COMMIT_DATE := $(shell TZ=UTC git log -1 --format=%cd --date=format-local:%Y-%m-%dT%H:%M:%SZ 2>/dev/null)
DIRTY := $(if $(shell git status --porcelain --untracked-files=no 2>/dev/null),true,false)
SET := -X rik.dev/rik/internal/version
LDFLAGS := -s -w $(SET).Version=$(VERSION) $(SET).Commit=$(COMMIT) $(SET).Date=$(COMMIT_DATE) $(SET).Dirty=$(DIRTY)
# A kubectl that is not told its version finds no server's acceptable.
KUBECTL_VERSION := $(shell sed -n 's,^[[:space:]]*k8s.io/kubernetes \(v[^ ]*\).*,\1,p' go.mod)
RUNC_VERSION := v1.5.2
GOLANGCI_VERSION := v2.15.0
VALE_VERSION := v3.22.0
GOVULNCHECK_VERSION := v1.9.0
export PREFIX DESTDIR
export GOFLAGS := $(shell source hack/env.sh && echo $$GOFLAGS)
TAGS := $(shell source hack/env.sh && echo $$RIK_TAGS)
# The Go that hack/deps.sh fetched, if it had to. It knows its own GOROOT.
export PATH := $(BIN)/toolchain/bin:$(PATH)
unexport GOROOT

# What running containers takes besides rik itself and runc.
CONTAINER_PROGRAMS := rikctl rik-shim rik-unpack rik-dns
# The rest: a node without a server, and the init of microVMs.
OTHER_PROGRAMS := riklet rik-init
# SQLite is C, so rik is built with cgo. All other programs are static, and run on a machine
# of any libc. Nobody keeps what a debugger of C reads: without it (-g) SQLite takes a quarter
# less time to compile.
WITH_C := CGO_ENABLED=1 CGO_CFLAGS=-O2
# rik called by these names; cmd/ has each as a program of its own for go install.
COMPONENTS := controller scheduler kcp cluster-controller deployment-splitter syncer crd-puller compat

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-22s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## install what the build and the tests need from Debian, and Go
	@hack/deps.sh

.PHONY: build
build: deps containers ## build every program into bin/
	@CGO_ENABLED=0 hack/build.sh "$(OTHER_PROGRAMS)" -tags $(TAGS) -ldflags '$(LDFLAGS)' -o $(BIN)/ $(addprefix ./cmd/,$(OTHER_PROGRAMS))
	@hack/guest.sh $(BIN)/rik-init $(BIN)/guest

# What a cluster of containers needs, which is what make demo builds.
.PHONY: containers
containers: deps-containers $(BIN)/runc
	@$(WITH_C) hack/build.sh rik -tags $(TAGS) -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/rik
	@for name in $(COMPONENTS); do ln -f $(BIN)/rik $(BIN)/$$name; done
	@CGO_ENABLED=0 hack/build.sh "$(CONTAINER_PROGRAMS)" -tags $(TAGS) -ldflags '$(LDFLAGS)' -o $(BIN)/ $(addprefix ./cmd/,$(CONTAINER_PROGRAMS))

.PHONY: deps-containers
deps-containers:
	@hack/deps.sh containers

.PHONY: install
install: build ## install the programs and the services of systemd (PREFIX, DESTDIR)
	@hack/install.sh install

.PHONY: uninstall
uninstall: ## remove what install installed; data and running instances stay
	@hack/install.sh uninstall

$(BIN)/runc: hack/runc.sh | deps-containers
	@hack/runc.sh $(RUNC_VERSION) $@

# The programs by their names below this directory, as in "make bin/kubectl".
bin/%: $(BIN)/% ;

# Kubernetes' own programs, and those below, are as static as rik's: they share what is compiled.
$(addprefix $(BIN)/,kubectl kube-apiserver kube-controller-manager): go.mod | deps-containers
	@CGO_ENABLED=0 hack/build.sh $(@F) -tags $(TAGS) -ldflags '-s -w -X k8s.io/component-base/version.gitVersion=$(KUBECTL_VERSION)' -o $@ k8s.io/kubernetes/cmd/$(@F)

$(BIN)/gotestsum: go.mod | deps-containers
	@GOBIN=$(BIN) GOFLAGS= hack/progress.sh gotestsum go install -v gotest.tools/gotestsum@v1.13.0

$(BIN)/golangci-lint-$(GOLANGCI_VERSION): | deps-containers
	@GOBIN=$(BIN) GOFLAGS= CGO_ENABLED=0 hack/progress.sh "the linter, once" go install -v github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	@mv $(BIN)/golangci-lint $@

# vale needs cgo: tree-sitter parses code, in C. Optimizing that takes most of the build's
# time, and the check parses no code.
$(BIN)/vale-$(VALE_VERSION): | deps-containers
	@GOBIN=$(BIN) GOFLAGS= CGO_ENABLED=1 CGO_CFLAGS=-O0 hack/progress.sh "the prose checker, once" go install -v -trimpath -ldflags '-s -w' github.com/vale-cli/vale/v3/cmd/vale@$(VALE_VERSION)
	@mv $(BIN)/vale $@

$(BIN)/govulncheck: Makefile | deps-containers
	@GOBIN=$(BIN) GOFLAGS= hack/progress.sh govulncheck go install -v golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION)

# The servers that tests run against, without the race detector, and what their
# containers run.
.PHONY: testprograms
testprograms: deps-containers
	@$(WITH_C) hack/build.sh testserver -tags $(TAGS) -ldflags '$(LDFLAGS)' -o $(BIN)/ ./internal/testkit/testserver
	@CGO_ENABLED=0 hack/build.sh hello -tags $(TAGS) -ldflags '-s -w' -o $(BIN)/ ./examples/hello

# The Kubernetes that tests run against, and what is below it.
KUBERNETES := $(BIN)/kubectl $(BIN)/kube-apiserver $(BIN)/kube-controller-manager testprograms

.PHONY: test
test: build $(KUBERNETES) $(BIN)/gotestsum ## everything; as root with the privileged and end-to-end tests
	@hack/test.sh

.PHONY: unit
unit: $(KUBERNETES) $(BIN)/gotestsum ## the tests that need no root
	@hack/test.sh unit

.PHONY: privileged
privileged: build $(BIN)/gotestsum ## the tests on the kernel (root)
	@hack/test.sh privileged

.PHONY: e2e
e2e: build $(KUBERNETES) $(BIN)/gotestsum ## the end-to-end tests (root)
	@hack/test.sh e2e

.PHONY: nightly
nightly: ## the long runs: all tests strictly, govulncheck, soundness of the meet, fuzz targets, databases of Debian; as root also leaks, drills, the demo in a bare Debian
	@hack/nightly.sh

.PHONY: check
check: deps $(BIN)/golangci-lint-$(GOLANGCI_VERSION) $(BIN)/vale-$(VALE_VERSION) ## the static checks
	@LINTER=golangci-lint-$(GOLANGCI_VERSION) hack/check.sh

.PHONY: generate
generate: ## write all generated code and documents again
	@hack/generate.sh

.PHONY: sample-images
sample-images: deps ## the images that the guide deploys, in /var/lib/rik-images (root)
	@hack/sample-images.sh

.PHONY: bench
bench: build ## the performance budgets (root)
	@hack/bench.sh

.PHONY: demo
demo: containers ## a cluster on this machine, from nothing to running containers (root)
	@hack/demo.sh up

.PHONY: demo-down
demo-down: ## stop the demo, remove all it made, and prove it
	@hack/demo.sh down

.PHONY: demo-multinode
demo-multinode: build ## three nodes on this machine, an instance on each (root)
	@hack/demo-multinode.sh up

.PHONY: demo-multinode-down
demo-multinode-down: ## stop them, remove all they made, and prove it
	@hack/demo-multinode.sh down

.PHONY: demo-function
demo-function: build ## an HTTP answer from inside a microVM (root)
	@hack/demo-function.sh up

.PHONY: demo-function-down
demo-function-down: ## stop it, remove all it made, and prove it
	@hack/demo-function.sh down

.PHONY: demo-app
demo-app: containers ## an HTTP answer of a bare process (root)
	@hack/demo-app.sh up

.PHONY: demo-app-down
demo-app-down: ## stop it, remove all it made, and prove it
	@hack/demo-app.sh down

.PHONY: demo-multicluster
demo-multicluster: build $(KUBERNETES) ## a rik cluster and Kubernetes behind one kcp (root)
	@hack/demo-multicluster.sh up

.PHONY: demo-multicluster-down
demo-multicluster-down: ## stop them, remove all they made, and prove it
	@hack/demo-multicluster.sh down

.PHONY: demo-split
demo-split: build $(BIN)/kubectl ## one Deployment over two rik clusters, one of which is cut off for a while (root)
	@hack/demo-split.sh up

.PHONY: demo-split-down
demo-split-down: ## stop them, remove all they made, and prove it
	@hack/demo-split.sh down

.PHONY: clean
clean: ## remove what was built
	rm -rf $(BIN)
