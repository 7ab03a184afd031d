# Everything runs in a virtual environment inside the checkout; the first target that needs it makes it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The demo needs less than the tests do. It uses their environment where that is ready.
DEMO_VENV := $(if $(wildcard $(VENV)/.ready),$(VENV),.venv-demo)
# More than the two cores that tests are planned for: many of them wait for a process, a server or a disk.
JOBS ?= 4

.PHONY: help setup demo lint check test soak bench bench-pipeline bench-postgres bench-segments bench-wal bench-live format clean
help: ## list these targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

TESTS := XDG_CACHE_HOME=$(CURDIR)/.cache $(BIN)/pytest -q -n $(JOBS) --dist loadgroup

CHECK_PYTHON := $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Runstate needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3.11"; exit 2; }

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(CHECK_PYTHON)
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,spark]'
	touch $@

# Spark's classes, kept for the many tests that start it.
$(VENV)/.warm: $(VENV)/.ready
	XDG_CACHE_HOME=$(CURDIR)/.cache $(BIN)/runstate pipeline warm
	touch $@

.venv-demo/.ready: pyproject.toml constraints.txt
	@$(CHECK_PYTHON)
	@echo "Installing what the demo needs, most of it Spark, into .venv-demo. The first time, it takes about a minute."
	@$(PYTHON) -m venv .venv-demo
	@PIP_CONSTRAINT=constraints.txt .venv-demo/bin/python -m pip install --disable-pip-version-check --editable '.[spark]'
	@touch $@

setup: $(VENV)/.ready ## make the virtual environment

demo: $(DEMO_VENV)/.ready ## the main job on embedded defaults
	@$(DEMO_VENV)/bin/runstate demo

lint: setup ## format, lint, types, imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

check: lint ## the same, and the fast tests; before every commit
	$(TESTS) -m 'not slow'

test: $(VENV)/.warm ## every test
	$(TESTS)

soak: $(VENV)/.warm ## the crash and race tests for longer: make soak ROUNDS=2000
	RUNSTATE_KILL_ROUNDS=$(or $(ROUNDS),2000) $(TESTS) tests/crash tests/conformance tests/pipeline/test_live_parity.py tests/pipeline/test_stages.py \
	  tests/pipeline/test_private_disks.py tests/pipeline/test_cluster.py tests/test_docs.py

bench: setup ## measure against the limits of this machine; prints ratios, writes a plot
	$(BIN)/python -m benchmarks

bench-pipeline: setup ## the same for the Spark pipeline; minutes, and some gigabytes of disk
	$(BIN)/python -m benchmarks.pipeline

bench-postgres: setup ## the same for Postgres, beside the package eventsourcing and bare SQL on the same server
	$(BIN)/python -m benchmarks.postgres

bench-segments: setup ## appends to sessions, beside the flushes that their protocol needs
	$(BIN)/python -m benchmarks.segments

bench-wal: setup ## the write-ahead log, beside raw writes and flushes of the same bytes
	$(BIN)/python -m benchmarks.wal

bench-live: setup ## the lag of live projection, in one process and on Spark, and how fast it catches up
	$(BIN)/python -m benchmarks.live

format: setup ## let ruff rewrite what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove what the targets above made
	rm -rf $(VENV) .venv-demo .cache build dist demo benchmarks/results .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
