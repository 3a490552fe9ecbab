# Sandgate. `make` alone prints what there is.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
GOBUILD := CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION)'
HOSTARCH := $(shell go env GOARCH 2>/dev/null)
AGENTBIN := cmd/sandgate/agentbin/bin
FUZZTIME ?= 30s

# Tools live in .tools/, each pinned by its own module, lock or requirements file
# under tools/. A stamp is inside the folder that it stands for, so removing the
# folder rebuilds it.
BUF := .tools/bin/.buf.stamp
LINT := .tools/bin/.lint.stamp
GRPCURL := .tools/bin/.grpcurl.stamp
HELM := .tools/bin/.helm.stamp
ISSUER := .tools/bin/.issuer.stamp
RUNSC := .tools/bin/.runsc.stamp
SBOM := .tools/bin/.sbom.stamp
BUILDKIT := .tools/bin/.buildkit.stamp
# Not in .tools/bin, which is in the PATH of all tests.
RUNC := .tools/runc/.stamp
GENPY := .tools/python/.stamp
UV := .tools/uv/.stamp
GENES := tools/es/node_modules/.stamp
SYSTEM := .tools/system.stamp
CLUSTER := .tools/cluster/.stamp
PYTHON := clients/python/.venv/.stamp
DCODE := .tools/dcode/.stamp
NODE := clients/ts/node_modules/.stamp

PY := clients/python/.venv/bin

##@ Everyday

.PHONY: help
help: ## Print this list
	@awk 'BEGIN {FS = ":.*## "} \
		/^##@ / {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' Makefile
	@echo

.PHONY: quickstart setup-quickstart
quickstart: setup-quickstart $(PYTHON) $(NODE) build-dev ## Set up, build, and let a Python and a TypeScript agent work in a real sandbox: as root on Linux by runc, elsewhere by Docker
	@scripts/quickstart.sh
setup-quickstart:
	@scripts/setup-system.sh run

.PHONY: setup setup-run
setup: setup-run $(BUF) $(LINT) $(GRPCURL) $(ISSUER) $(RUNSC) $(GENPY) $(UV) $(GENES) ## Install everything that the other targets need
setup-run: $(SYSTEM) $(PYTHON) $(NODE)

.PHONY: serve
serve: build-dev ## Build and serve on 127.0.0.1:7777; SERVE_FLAGS='--listen …' changes how
	@bin/sandgate serve $(SERVE_FLAGS)

.PHONY: clean
clean: cluster-down ## Remove everything that make has built or installed
	rm -rf bin .tools .reports dist tools/es/node_modules clients/ts/node_modules clients/ts/dist clients/python/.venv clients/python/.venvs
	find $(AGENTBIN) -type f ! -name README.md -delete 2>/dev/null || true
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

##@ Code

.PHONY: gen
gen: $(BUF) $(GENPY) $(GENES) $(HELM) ## Generate the Go, Python and TypeScript code from proto/, deploy/manifests from the chart, docs/configuration.md and docs/pictures
	@scripts/gen.sh
	@scripts/manifests.sh
	@scripts/pictures/draw.py
	@go test ./cmd/sandgate/internal/serve -run '^TestConfigurationPage$$' -update >/dev/null

.PHONY: pictures
pictures: ## Draw docs/pictures from scripts/pictures and the tables of docs/performance.md
	@scripts/pictures/draw.py

.PHONY: gen-check
gen-check: $(BUF) $(GENPY) $(GENES) $(HELM) ## Fail if a generated file is stale
	@scripts/gen-check.sh

.PHONY: lint lint-proto lint-go lint-platforms lint-python lint-ts lint-scripts
lint: lint-proto lint-go lint-platforms lint-python lint-ts lint-scripts ## Check style, types, import rules and the protocol's compatibility
lint-proto: $(BUF)
	@scripts/proto-lint.sh
lint-go: $(LINT)
	.tools/bin/golangci-lint run
lint-platforms: # the command line, and the server with Docker or a cluster
	for platform in darwin/arm64 windows/amd64; do \
		GOOS=$${platform%/*} GOARCH=$${platform#*/} CGO_ENABLED=0 go build -o /dev/null ./cmd/sandgate; done
lint-python: $(PYTHON)
	cd clients/python && .venv/bin/ruff format --check . ../../examples && .venv/bin/ruff check . ../../examples && .venv/bin/mypy --strict
lint-ts: $(NODE)
	cd clients/ts && npm run --silent lint && npm run --silent typecheck
	cd examples/typescript && ../../clients/ts/node_modules/.bin/biome check --error-on-warnings --config-path=../../clients/ts --skip=suspicious/noConsole .
lint-scripts: $(PYTHON)
	@scripts/lint-scripts.sh

.PHONY: build build-dev
build: agent-amd64 agent-arm64 ## Build bin/sandgate, with the agent for amd64 and arm64 in it, and bin/sandgate-agent
	$(GOBUILD) -o bin/sandgate ./cmd/sandgate
	cp $(AGENTBIN)/sandgate-agent-linux-$(HOSTARCH) bin/sandgate-agent
# PREBUILT=1: bin/ is up to date, and other targets are using it.
ifdef PREBUILT
build-dev: ;
else
build-dev: agent-$(HOSTARCH)
	$(GOBUILD) -o bin/sandgate ./cmd/sandgate
	cp $(AGENTBIN)/sandgate-agent-linux-$(HOSTARCH) bin/sandgate-agent
endif

.PHONY: agent-amd64 agent-arm64
agent-amd64 agent-arm64: agent-%:
	GOOS=linux GOARCH=$* $(GOBUILD) -o $(AGENTBIN)/sandgate-agent-linux-$* ./cmd/sandgate-agent

.PHONY: release
release: $(GENPY) $(NODE) $(SBOM) ## Build the artifacts of a release into dist/release; VERSION=v0.1.0
	@scripts/release.sh $(VERSION)

.PHONY: constraints
constraints: ## Pin the newest allowed versions of the Python client's development environment
	@scripts/constraints.sh

##@ Tests

.PHONY: test test-go test-e2e test-clients test-python test-ts
test: ## Run all tests that need only this machine, with the race detector
	@scripts/testsum.py reset
	@$(MAKE) test-go test-clients test-e2e
	@scripts/testsum.py total
test-go: $(SYSTEM) $(RUNSC) build-dev
	@scripts/test-go.sh go $$(go list ./... | grep -v '/test/')
test-e2e: $(SYSTEM) $(GRPCURL) $(ISSUER) $(RUNSC) $(UV) $(PYTHON) $(NODE) build-dev
	@scripts/test-go.sh e2e $$(go list ./test/... | grep -v '/test/kubernetes')
test-clients: test-python test-ts
test-python: $(SYSTEM) $(PYTHON) $(DCODE) build-dev
	@scripts/test-python.sh
test-ts: $(SYSTEM) $(NODE) build-dev
	@scripts/test-ts.sh

.PHONY: test-docker
test-docker: $(SYSTEM) $(RUNSC) $(UV) $(PYTHON) $(NODE) build-dev ## Run the tests of the docker provider on a Docker daemon of their own
	@scripts/test-docker.sh

.PHONY: test-podman
test-podman: $(SYSTEM) build-dev ## Run the tests of the docker provider on the API of a Podman of their own
	@scripts/test-podman.sh

.PHONY: test-rootless
test-rootless: $(SYSTEM) build-dev ## Run the tests of the docker provider on a rootless Docker daemon of their own
	@scripts/test-rootless.sh

.PHONY: test-runc
test-runc: $(SYSTEM) $(RUNSC) build-dev ## Run the tests of the local provider, the conformance suite and the attempts to escape on a runc with idmapped mounts
	@scripts/test-runc.sh

.PHONY: test-packages
test-packages: $(SYSTEM) $(GENPY) $(NODE) build-dev ## Install the Debian, Go, Python and npm package into a directory, and use them
	@scripts/test-packages.sh

.PHONY: test-emulated
test-emulated: $(SYSTEM) ## Run the agent's tests in an emulated arm64 machine with a memory controller in cgroup v2
	@scripts/test-emulated.sh

.PHONY: test-cgroup2
test-cgroup2: $(SYSTEM) ## Run a part of the local provider's tests in an emulated machine with cgroups of version 2 only
	@scripts/test-cgroup2.sh

.PHONY: coverage coverage-check
coverage: ## Write docs/coverage.md from docs/coverage.toml
	@scripts/coverage.py write
coverage-check: ## Fail when a test that docs/coverage.md names has not passed since the last `make test`
	@scripts/coverage.py check

.PHONY: full
full: export SANDGATE_CONFORMANCE := full
full: export SANDGATE_DOCKER := full
full: export GO_TEST_TIMEOUT := 60m
full: gen-check lint build test test-docker test-podman test-rootless test-runc test-packages test-emulated test-cgroup2 test-kubernetes chaos fuzz ## Run every check and test that this machine can run, at full length

.PHONY: test-escape
test-escape: $(SYSTEM) $(RUNSC) build-dev ## Try to break out of a sandbox in over 450 ways: runc by socket and exec, restricted, gVisor, and a pod where KUBECONFIG names a cluster
	PATH=$(CURDIR)/.tools/bin:$$PATH SANDGATE_BIN=$(CURDIR)/bin/sandgate go test -count=1 -v -run '^TestEscape$$' ./test/e2e $$([[ -z $${KUBECONFIG:-} ]] || echo ./test/kubernetes)

.PHONY: test-hostile
test-hostile: $(SYSTEM) build-dev ## Measure what a hostile tenant, or a caller without a token, costs a neighbour's commands and the server's memory
	go run ./test/hostile -server bin/sandgate $(HOSTILE_FLAGS)

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME each (30s)
	@scripts/fuzz.sh $(FUZZTIME)

.PHONY: bench
bench: $(SYSTEM) $(PYTHON) build-dev ## Measure against the yardsticks of docs/performance.md on this machine
	go run ./bench $(BENCH_FLAGS)
	@scripts/bench-native.sh --must 0

.PHONY: chaos
chaos: $(SYSTEM) build-dev ## Cut 10 000 connections at seeded random moments and compare every byte; CHAOS_FLAGS='-cuts 300 -seed 7'
	go run ./test/chaos $(CHAOS_FLAGS)

.PHONY: load soak
load: $(SYSTEM) build-dev ## Make mixed calls of 200 tenants for a minute, to 2 000 fake sandboxes and to 200 real ones, and compare every byte; LOAD_FLAGS='-for 10s -local 20 -seed 7'
	go run ./test/load $(LOAD_FLAGS)
soak: $(SYSTEM) build-dev ## Make mixed calls for an hour, kill the server on the way, and fail if memory, descriptors, processes or files grow; SOAK_FLAGS='-for 2m'
	go run ./test/load -soak $(SOAK_FLAGS)

##@ Kubernetes and images

.PHONY: cluster-up cluster-down test-kubernetes bench-kubernetes scale image
cluster-up: $(CLUSTER) ## Start a small Kubernetes cluster on this machine, unless it runs
	@.tools/cluster/cluster up
cluster-down: ## Stop that cluster and remove it
	@if [[ -e $${SANDGATE_CLUSTER_DIR:-.cluster} ]]; then $(MAKE) --silent $(CLUSTER) && .tools/cluster/cluster down; fi
test-kubernetes: $(SYSTEM) $(PYTHON) $(NODE) $(HELM) $(ISSUER) build-dev ## Run the Kubernetes tests on the cluster of KUBECONFIG, else on that of cluster-up
	@scripts/cluster-test.sh
bench-kubernetes: $(SYSTEM) $(PYTHON) build-dev ## Measure on the cluster of KUBECONFIG, else that of cluster-up, beside client-go, kubectl cp and other packages
	@bench/kubernetes/run.sh $(BENCH_FLAGS)
scale: $(SYSTEM) build-dev ## Measure what 10 000 sandboxes cost server and API server, on the same cluster; SCALE_FLAGS='-n 500 -window 4s'
	@scripts/scale.sh $(SCALE_FLAGS)
image: build-dev ## Build the container image for this architecture into dist/image, without a container engine
	go -C deploy/image run . --out $(CURDIR)/dist/image --tag sandgate:$(VERSION) \
		$(HOSTARCH)=$(CURDIR)/bin/sandgate,$(CURDIR)/bin/sandgate-agent

# --- prerequisites of the targets above -------------------------------------------

$(SYSTEM): scripts/setup-system.sh
	@scripts/setup-system.sh
	@mkdir -p $(@D) && touch $@

$(CLUSTER): $(SYSTEM) scripts/setup-cluster.sh scripts/cluster-build.sh $(wildcard test/cluster/go.* test/cluster/*.go test/cluster/*/go.* test/cluster/*/*.go)
	@scripts/setup-cluster.sh
	@echo "building test/cluster"
	@scripts/cluster-build.sh
	@touch $@

$(ISSUER): tools/issuer/main.go
$(BUF) $(LINT) $(GRPCURL) $(HELM) $(ISSUER) $(RUNSC) $(SBOM) $(BUILDKIT): .tools/bin/.%.stamp: tools/%/go.mod tools/%/go.sum
	@echo "building tools/$*"
	@mkdir -p .tools/bin
	@CGO_ENABLED=0 GOBIN=$(CURDIR)/.tools/bin go -C tools/$* install tool
	@touch $@

# It needs cgo, and scripts/test-runc.sh installs the headers of libseccomp.
$(RUNC): tools/runc/go.mod tools/runc/go.sum
	@echo "building tools/runc"
	@CGO_ENABLED=1 GOBIN=$(CURDIR)/$(@D) go -C tools/runc install -tags seccomp tool
	@touch $@

$(GENPY): tools/python/requirements.txt
	@echo "installing tools/python"
	@python3 -m venv --clear .tools/python
	@.tools/python/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# A wheel that the test of installers serves to sandboxes.
$(UV): tools/python/uv.txt | $(GENPY)
	@echo "downloading $$(cat $<)"
	@rm -rf $(@D)
	@.tools/python/bin/pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: -d $(@D) -r $<
	@touch $@

$(GENES): tools/es/package.json tools/es/package-lock.json
	@echo "installing tools/es"
	@cd tools/es && npm ci --loglevel=error --no-audit --no-fund
	@touch $@

$(PYTHON): clients/python/pyproject.toml tools/python/constraints.txt
	@echo "installing clients/python"
	@test -x $(PY)/python || python3 -m venv clients/python/.venv
	@$(PY)/pip install --quiet --disable-pip-version-check -c tools/python/constraints.txt -e 'clients/python[dev]'
	@touch $@

$(DCODE): clients/python/pyproject.toml tools/python/dcode.txt
	@echo "installing .tools/dcode"
	@python3 -m venv --clear .tools/dcode
	@.tools/dcode/bin/pip install --quiet --disable-pip-version-check -r tools/python/dcode.txt -e clients/python
	@touch $@

$(NODE): clients/ts/package.json clients/ts/package-lock.json
	@echo "installing clients/ts"
	@cd clients/ts && npm ci --loglevel=error --no-audit --no-fund
	@touch $@
