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
# A kubectl that is built without a version accepts no server's version.
KUBECTL_VERSION := $(shell sed -n 's,^[[:space:]]*k8s.io/kubernetes \(v[^ ]*\).*,\1,p' go.mod)
RUNC_VERSION := v1.5.2
GOLANGCI_VERSION := v2.15.0
COMPOSE_VERSION := v2.40.3
VALE_VERSION := v3.22.0
GOVULNCHECK_VERSION := v1.9.0
# Newer versions of nfpm need modules that are not on every proxy.
NFPM_VERSION := v2.45.2
CYCLONEDX_VERSION := v1.10.0
export NFPM_VERSION CYCLONEDX_VERSION VERSION LDFLAGS
export PREFIX DESTDIR
export GOFLAGS := $(shell source hack/env.sh && echo $$GOFLAGS)
TAGS := $(shell source hack/env.sh && echo $$RIK_TAGS)
# If hack/deps.sh fetched a Go, it comes first. It finds its own GOROOT.
export PATH := $(BIN)/toolchain/bin:$(PATH)
unexport GOROOT

# The programs that run containers, in addition to rik and runc.
CONTAINER_PROGRAMS := rikctl rik-shim rik-unpack rik-dns
# The other programs: the agent of a node without a server, and the init of microVMs.
OTHER_PROGRAMS := riklet rik-init
# SQLite is C, so rik needs cgo. All other programs are static and run with any libc. cgo adds -g
# by default. The programs are stripped, and without -g SQLite compiles in 25 % less time.
WITH_C := CGO_ENABLED=1 CGO_CFLAGS=-O2
# Names of the program rik: each is a link that runs one component. cmd/ also has each of them as
# a program for go install.
COMPONENTS := controller scheduler kcp cluster-controller deployment-splitter syncer crd-puller compat

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-22s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## install the Debian packages and the Go that build and tests need
	@hack/deps.sh

.PHONY: build
build: deps containers ## build all programs into bin/
	@CGO_ENABLED=0 hack/build.sh "$(OTHER_PROGRAMS)" -tags $(TAGS) -ldflags '$(LDFLAGS)' -o $(BIN)/ $(addprefix ./cmd/,$(OTHER_PROGRAMS))
	@hack/guest.sh $(BIN)/rik-init $(BIN)/guest

# The programs that a cluster of containers needs. make demo builds only these.
.PHONY: containers
containers: deps-containers hello $(BIN)/runc
	@$(WITH_C) hack/build.sh rik -tags $(TAGS) -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/rik
	@for name in $(COMPONENTS); do ln -f $(BIN)/rik $(BIN)/$$name; done
	@CGO_ENABLED=0 hack/build.sh "$(CONTAINER_PROGRAMS)" -tags $(TAGS) -ldflags '$(LDFLAGS)' -o $(BIN)/ $(addprefix ./cmd/,$(CONTAINER_PROGRAMS))

# The program in the sample of "rik demo", and in the containers of tests.
.PHONY: hello
hello: deps-containers
	@CGO_ENABLED=0 hack/build.sh hello -tags $(TAGS) -ldflags '-s -w' -o $(BIN)/ ./examples/hello

.PHONY: deps-containers
deps-containers:
	@hack/deps.sh containers

.PHONY: install
install: build ## install the programs and the systemd service of a server (PREFIX, DESTDIR)
	@$(BIN)/rik install server --no-start --prefix $(or $(PREFIX),/usr/local) --root $(or $(DESTDIR),/)

.PHONY: uninstall
uninstall: ## remove the installed programs and the service; the instances stop, and the data stays
	@$(BIN)/rik uninstall --keep-data --prefix $(or $(PREFIX),/usr/local) --root $(or $(DESTDIR),/)

$(BIN)/runc: hack/runc.sh | deps-containers
	@hack/runc.sh $(RUNC_VERSION) $@

# Programs in bin can be built by their relative path, as in "make bin/kubectl".
bin/%: $(BIN)/% ;

# The programs of Kubernetes are static like most of rik's, so that both share the build cache.
$(addprefix $(BIN)/,kubectl kube-apiserver kube-controller-manager): go.mod | deps-containers
	@CGO_ENABLED=0 hack/build.sh $(@F) -tags $(TAGS) -ldflags '-s -w -X k8s.io/component-base/version.gitVersion=$(KUBECTL_VERSION)' -o $@ k8s.io/kubernetes/cmd/$(@F)

$(BIN)/gotestsum: go.mod | deps-containers
	@GOBIN=$(BIN) GOFLAGS= hack/progress.sh gotestsum go install -v gotest.tools/gotestsum@v1.13.0

$(BIN)/golangci-lint-$(GOLANGCI_VERSION): | deps-containers
	@GOBIN=$(BIN) GOFLAGS= CGO_ENABLED=0 hack/progress.sh "the linter, once" go install -v github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	@mv $(BIN)/golangci-lint $@

# vale needs cgo for tree-sitter, which parses code and is written in C. Optimizing it takes most
# of the build's time. The language check parses no code, so it does not need the optimization.
$(BIN)/vale-$(VALE_VERSION): | deps-containers
	@GOBIN=$(BIN) GOFLAGS= CGO_ENABLED=1 CGO_CFLAGS=-O0 hack/progress.sh "the prose checker, once" go install -v -trimpath -ldflags '-s -w' github.com/vale-cli/vale/v3/cmd/vale@$(VALE_VERSION)
	@mv $(BIN)/vale $@

$(BIN)/govulncheck: Makefile | deps-containers
	@GOBIN=$(BIN) GOFLAGS= hack/progress.sh govulncheck go install -v golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION)

$(BIN)/nfpm-$(NFPM_VERSION): | deps-containers
	@GOBIN=$(BIN) GOFLAGS= CGO_ENABLED=0 hack/progress.sh "nfpm, once" go install -v github.com/goreleaser/nfpm/v2/cmd/nfpm@$(NFPM_VERSION)
	@mv $(BIN)/nfpm $@

$(BIN)/cyclonedx-gomod-$(CYCLONEDX_VERSION): | deps-containers
	@GOBIN=$(BIN) GOFLAGS= CGO_ENABLED=0 hack/progress.sh "the SBOM generator, once" go install -v github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@$(CYCLONEDX_VERSION)
	@mv $(BIN)/cyclonedx-gomod $@

PACKAGERS := $(BIN)/nfpm-$(NFPM_VERSION) $(BIN)/cyclonedx-gomod-$(CYCLONEDX_VERSION)

.PHONY: packages
packages: deps $(PACKAGERS) ## make .deb and .rpm packages and the archive of this machine's architecture
	@hack/packages.sh

.PHONY: dist
dist: deps $(PACKAGERS) ## make the packages and archives of all architectures
	@hack/packages.sh amd64 arm64

# docker compose of the second generation, for TestPrivilegedCompose. Debian has the first one.
$(BIN)/docker-compose-plugin: hack/compose-plugin.sh | deps-containers
	@hack/compose-plugin.sh $(COMPOSE_VERSION) $@

# The server that tests run without the race detector.
.PHONY: testprograms
testprograms: deps-containers hello
	@$(WITH_C) hack/build.sh testserver -tags $(TAGS) -ldflags '$(LDFLAGS)' -o $(BIN)/ ./internal/testkit/testserver

# The programs of Kubernetes and of rik that the tests run.
KUBERNETES := $(BIN)/kubectl $(BIN)/kube-apiserver $(BIN)/kube-controller-manager testprograms

.PHONY: test
test: build $(KUBERNETES) $(BIN)/gotestsum ## run all tests; the privileged and end-to-end tests need root
	@hack/test.sh

.PHONY: unit
unit: $(KUBERNETES) $(BIN)/gotestsum ## run the tests that need no root
	@hack/test.sh unit

.PHONY: privileged
privileged: build $(BIN)/gotestsum ## run the privileged tests on the kernel (root)
	@hack/test.sh privileged

.PHONY: e2e
e2e: build $(KUBERNETES) $(BIN)/gotestsum ## run the end-to-end tests (root)
	@hack/test.sh e2e

.PHONY: nightly
nightly: ## run the long tests: all tests, fuzz targets, databases, drills, benchmarks (some need root)
	@hack/nightly.sh

.PHONY: check
check: deps $(BIN)/golangci-lint-$(GOLANGCI_VERSION) $(BIN)/vale-$(VALE_VERSION) ## run the static checks
	@LINTER=golangci-lint-$(GOLANGCI_VERSION) hack/check.sh

.PHONY: generate
generate: ## write the generated code and documents
	@hack/generate.sh

.PHONY: sample-images
sample-images: deps ## write the images of the guide to /var/lib/rik/images (root)
	@hack/sample-images.sh

# The container images contain programs that are linked statically, for each architecture.
IMAGE_ARCHITECTURES ?= amd64 arm64
.PHONY: images
images: deps ## build the container images into bin/images, for amd64 and arm64
	@RIK_IMAGE_TAGS='$(VERSION),latest' hack/images.sh $(BIN)/images $(IMAGE_ARCHITECTURES)

.PHONY: bench
bench: build ## measure the performance budgets (root)
	@hack/bench.sh

.PHONY: demo
demo: containers ## start a cluster with running containers on this machine (root)
	@hack/demo.sh up

.PHONY: demo-down
demo-down: ## stop the demo, remove all its traces, and check that nothing is left
	@hack/demo.sh down

.PHONY: demo-multinode
demo-multinode: build ## start three nodes on this machine, with an instance on each (root)
	@hack/demo-multinode.sh up

.PHONY: demo-multinode-down
demo-multinode-down: ## stop the demo, remove all its traces, and check that nothing is left
	@hack/demo-multinode.sh down

.PHONY: demo-function
demo-function: build ## run an HTTP server in a microVM (root)
	@hack/demo-function.sh up

.PHONY: demo-function-down
demo-function-down: ## stop the demo, remove all its traces, and check that nothing is left
	@hack/demo-function.sh down

.PHONY: demo-app
demo-app: containers ## run an HTTP server as a plain process (root)
	@hack/demo-app.sh up

.PHONY: demo-app-down
demo-app-down: ## stop the demo, remove all its traces, and check that nothing is left
	@hack/demo-app.sh down

.PHONY: demo-multicluster
demo-multicluster: build $(KUBERNETES) ## put a rik cluster and Kubernetes behind one kcp (root)
	@hack/demo-multicluster.sh up

.PHONY: demo-multicluster-down
demo-multicluster-down: ## stop the demo, remove all its traces, and check that nothing is left
	@hack/demo-multicluster.sh down

.PHONY: demo-split
demo-split: build $(BIN)/kubectl ## split a Deployment over two rik clusters, and cut one of them off for a while (root)
	@hack/demo-split.sh up

.PHONY: demo-split-down
demo-split-down: ## stop the demo, remove all its traces, and check that nothing is left
	@hack/demo-split.sh down

.PHONY: demo-compose
demo-compose: build ## run a server and two nodes in containers of Docker or Podman (root)
	@hack/demo-compose.sh up

.PHONY: demo-compose-down
demo-compose-down: ## stop the demo, remove all its traces, and check that nothing is left
	@hack/demo-compose.sh down

.PHONY: clean
clean: ## remove bin/
	rm -rf $(BIN)
