# Everything a contributor runs. Each target sets up what it needs; `make` alone lists them.

VENV := .venv
BIN := $(VENV)/bin
PYTHON_STAMP := $(VENV)/.stamp
NODE_DIR := tests/interop/node
NODE_STAMP := $(if $(wildcard $(NODE_DIR)/package.json),$(NODE_DIR)/node_modules/.stamp)

# A Node that setup put into the environment is found after the system's.
export PATH := $(PATH):$(CURDIR)/$(BIN)
ifdef PYTHON
export PYTHON
endif
# Some images set this: every program that a test starts would compile all of Toril again.
unexport PYTHONDONTWRITEBYTECODE

# Tests that `make test` runs with a part of their jobs and `make prove` with all of them.
BIG := tests/worker/test_deploys.py tests/worker/test_library_attacks.py tests/client/test_bulk_slices.py tests/features/test_lane_stress.py \
	tests/features/dead_letters/test_bulk.py tests/features/test_group_cancel.py tests/features/test_group_crash.py tests/features/test_group_retreats.py \
	tests/interop/test_cron.py

# Tests wait as long as they work: six processes keep two cores busy. Who is done early helps others.
SPREAD := -n 6 --dist worksteal

# What `make test-scripts` runs: every kind of call, without those tests that count how they are sent.
AS_SCRIPTS := tests/features/test_flows.py tests/features/test_lane_order.py tests/features/test_lane_failures.py \
	tests/features/dead_letters tests/features/test_group_stages.py tests/features/test_group_compensation.py \
	tests/features/test_schedulers.py tests/features/test_deduplication.py tests/features/test_ways_in.py

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-scripts test-django prove wheel chaos check bench docs docs-serve peers pictures format clean

help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(PYTHON_STAMP) $(NODE_STAMP) ## Make .venv with all that the project, its tests and benchmarks import
	@echo "Set up: $(VENV) is complete"

$(PYTHON_STAMP): pyproject.toml constraints.txt tools/setup.sh
	@echo "Setting up Python in $(VENV)"
	@tools/setup.sh python

$(NODE_DIR)/node_modules/.stamp: $(wildcard $(NODE_DIR)/package*.json) | $(PYTHON_STAMP)
	@echo "Setting up Node in $(NODE_DIR)"
	@tools/setup.sh node

demo: $(PYTHON_STAMP) ## Watch a short show of the whole, on a server of its own
	@$(BIN)/python -m toril demo

# The first run reads the tests once for all, in two halves: each process would compile every module.
$(VENV)/.compiled: $(PYTHON_STAMP)
	@$(BIN)/python -m pytest --collect-only -q tests/[a-f]*/ >/dev/null 2>&1 & \
	$(BIN)/python -m pytest --collect-only -q tests/[g-z]*/ tests/test_*.py >/dev/null 2>&1; wait
	@touch $@

test: setup $(VENV)/.compiled ## Run the tests against a real Valkey (T="-k lanes" passes arguments on)
	@$(BIN)/python -m pytest $(SPREAD) $(T)

test-scripts: setup ## The features once more on servers without functions, where calls go as scripts
	@TORIL_AS_SCRIPTS=1 $(BIN)/python -m pytest $(SPREAD) $(AS_SCRIPTS) $(T)

test-django: $(PYTHON_STAMP) ## Django's own tests of task backends, and ours, on Django 6 (in .django/)
	@$(BIN)/python -m tests.django_suite

prove: setup ## Prove what the tests sample: every crash point, 10 million interleavings, mutants
	@TORIL_PROVE=1 $(BIN)/python -m pytest -n 4 --dist worksteal --timeout 14400 tests/crash tests/model tests/mutants tests/hostile tests/interop/test_fuzz.py tests/packaging $(BIG) $(T)

wheel: $(PYTHON_STAMP) ## Build the wheel, install each extra alone, check what an index would say
	@TORIL_PROVE=1 $(BIN)/python -m pytest --timeout 1200 tests/packaging $(T)

chaos: setup ## A storm of 100,000 jobs and 200 kills (C="TORIL_CHAOS_JOBS=1000000 …" for another, C=cluster for one on a cluster)
ifeq ($(C),cluster)
	@env TORIL_CLUSTER_JOBS=$${TORIL_CLUSTER_JOBS:-50000} TORIL_CLUSTER_MASTER_KILLS=$${TORIL_CLUSTER_MASTER_KILLS:-20} TORIL_CLUSTER_MIGRATIONS=$${TORIL_CLUSTER_MIGRATIONS:-50} TORIL_CLUSTER_WORKER_KILLS=$${TORIL_CLUSTER_WORKER_KILLS:-100} \
		$(BIN)/python -m pytest -s --timeout 3600 tests/chaos/test_cluster_storm.py $(T)
else
	@env TORIL_CHAOS_JOBS=100000 TORIL_CHAOS_KILLS=200 $(C) $(BIN)/python -m pytest -s --timeout 14400 tests/chaos $(T)
endif

check: $(PYTHON_STAMP) ## Lint, types, layers, Lua headers, generated code, lengths
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src
	$(BIN)/lint-imports
	$(BIN)/python tools/unasync.py --check
	$(BIN)/python tools/check_lua.py
	$(BIN)/python tools/check_commands.py
	$(BIN)/python tools/reference.py --check
	$(BIN)/python tools/figures.py --check
	$(BIN)/python tools/check_functions.py

format: $(PYTHON_STAMP) ## Format the code and write the generated files anew
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format .
	$(BIN)/python tools/unasync.py
	$(BIN)/python tools/reference.py
	$(BIN)/python tools/figures.py

bench: setup ## Measure against Node BullMQ and other queues (B="--quick" passes arguments on)
	@$(BIN)/python benchmarks/run.py $(B)
	@$(BIN)/python tools/readme_numbers.py

docs: $(PYTHON_STAMP) ## Check the documentation and build its site into site/, strictly
	@$(BIN)/python tools/check_docs.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "site/index.html is the documentation"

docs-serve: $(PYTHON_STAMP) ## Serve the documentation at http://127.0.0.1:8000 and follow changes
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve --livereload

peers: setup ## Run the programs of other queues in docs/coming-from as they are printed (needs port 6379)
	@$(BIN)/python tools/peers.py $(P)

pictures: setup ## Draw the pictures of the documentation anew, from the real programs
	@$(BIN)/python tools/pictures.py

clean: ## Remove what the other targets made
	rm -rf $(VENV) .django $(NODE_DIR)/node_modules .pytest_cache .mypy_cache .ruff_cache .import_linter_cache dist build site
