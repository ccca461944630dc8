# The usual targets. `make test` and `make lint` are what CI runs (.ci/run).
.DEFAULT_GOAL := build
.PHONY: build test race lint fmt bench vuln

GO ?= go

# Linters have a module of their own, out of sight of those who import Sluice.
TOOL := $(GO) tool -modfile=tools/go.mod

# Modules beside the main one, which ./... does not reach.
MODULES := $(patsubst %/,%,$(dir $(shell find . -mindepth 2 -name go.mod \
	-not -path './tools/*' -not -path '*/testdata/*' -not -path '*/node_modules/*')))

# Where goroutines share memory. The rest talks through Redis and HTTP.
RACE := $(patsubst %,./%/...,$(wildcard bucket admission internal))

build:
	$(GO) build ./...

test:
	./scripts/need-redis.sh
	$(GO) vet ./...
	$(GO) test -timeout 20m ./...
	@set -e; for m in $(MODULES); do echo "$(GO) -C $$m test ./..."; $(GO) -C $$m test ./...; done
	@$(MAKE) --no-print-directory race

# The race detector needs cgo, and so a C compiler.
race:
	@set -- $$($(GO) env CC); \
	if [ "$$($(GO) env CGO_ENABLED)" = 1 ] && command -v "$$1" >/dev/null 2>&1; then \
		echo "$(GO) test -race $(RACE)"; \
		$(GO) test -race -timeout 30m $(RACE); \
	else \
		echo "no C compiler here: the same tests ran above without the race detector"; \
	fi

lint:
	@files=$$($(TOOL) gofumpt -l .) || exit 1; \
	if [ -n "$$files" ]; then echo "not formatted, run make fmt:"; echo "$$files"; exit 1; fi
	$(GO) vet ./...
	$(TOOL) staticcheck ./...
	@set -e; for m in $(MODULES); do echo "$(GO) -C $$m vet ./..."; $(GO) -C $$m vet ./...; done
	@if command -v golangci-lint >/dev/null 2>&1; then \
		echo "golangci-lint run"; golangci-lint run; \
	else \
		echo "golangci-lint is not installed: its part of the lint is left out"; \
	fi

fmt:
	$(TOOL) gofumpt -w .

# Rewrites docs/benchmarks.md with what this machine can do.
bench:
	./scripts/need-redis.sh
	cd bench && $(GO) run . -out ../docs/benchmarks.md

# Asks the Go vulnerability database, so it needs the network and is not part of lint.
vuln:
	$(TOOL) govulncheck ./...
