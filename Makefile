# The verbs of this project. `make help` lists them.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SOAK_SECONDS ?= 3600
TEST_WORKERS ?= logical

export HF_HUB_OFFLINE := 1
# Every process of a test would compile the packages again.
export PYTHONDONTWRITEBYTECODE :=
export TOKENIZERS_PARALLELISM := false

.PHONY: help install install-airflow install-typescript docs demo dashboard test test-all test-quick test-numerics mutants test-api year soak check format serve strangers bench lock release release-check clean
.DEFAULT_GOAL := help

help:  ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED)  ## environment in .venv and the demo's data, from the locks

$(INSTALLED): requirements/cpu.txt requirements/dev.txt pyproject.toml
	@echo "install: environment in $(VENV) ($$($(PYTHON) --version))"
	@$(PYTHON) -m venv $(VENV)
	@echo "install: torch"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c requirements/cpu.txt torch
	@echo "install: everything else, pinned"
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps \
		-r requirements/cpu.txt -r requirements/dev.txt
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@echo "install: the demo's data"
	@$(BIN)/recsys data fetch movielens-100k
	@touch $(INSTALLED)

install-airflow:  ## Airflow in .venv-airflow, for the tests that run the DAGs
	@$(PYTHON) -m venv .venv-airflow
	@.venv-airflow/bin/python -m pip install -q --disable-pip-version-check --no-deps \
		-r requirements/airflow.txt

install-typescript: install  ## the TypeScript client's compiler, for its tests; needs Node.js
	@$(BIN)/python -m serving.web.descriptions > serving/client/typescript/openapi.json
	@cd serving/client/typescript && npm ci --silent --no-fund --no-audit && npm run --silent generate

# Material warns of the second version of MkDocs; versions are locked.
docs: install  ## the documentation site in site/, which opens from a disk; any warning fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

demo: install  ## MovieLens-100K from raw file to metrics, recommendations and a bundle
	@$(BIN)/recsys demo

serve: install  ## answer requests on http://127.0.0.1:8000 with the demo's bundle
	@$(BIN)/recsys serve runs/movielens-100k --expose-users --allow-admin

dashboard: install  ## which bundle to release and why, on http://127.0.0.1:8100, of all runs below runs/
	@$(BIN)/recsys dashboard --root runs

test: install  ## the tests of every feature that run without a GPU, a process a core (TEST_WORKERS=0 for one)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "not gpu and not slow" -n $(TEST_WORKERS) \
		--dist worksteal --durations 10

test-all: install  ## those, and the slow ones: README and guides, browsers, kills, a year; CI runs it
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "not gpu" -n $(TEST_WORKERS) --dist worksteal \
		--durations 10

test-quick: install  ## the tests nearest to what changed since the last commit, at most 80 seconds of them
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.quick

# Processors round in different orders, and some eigensolvers fail on one and not on the other.
test-numerics: install  ## tests that compare numbers, under other instruction sets and threads
	@$(BIN)/python -m tests.numerics

mutants: install  ## plant the faults of tests/mutants.toml one at a time; each must fail its tests
	@$(BIN)/python -m tests.mutants

test-api: install  ## 10,000 generated requests against the OpenAPI document, and compiled lists against numpy's
	@RECSYS_API_CASES=10000 $(BIN)/python -m pytest -q tests/serving/web/test_openapi.py tests/serving/test_compiled.py

soak: install  ## 200 kills of the event writer and of runs, 100 swaps, 20 drains, an hour of load (SOAK_SECONDS=600 for less)
	@RECSYS_KILLS=200 $(BIN)/python -m pytest -q tests/serving/online/test_kills.py
	@RECSYS_SWAPS=100 RECSYS_DRAINS=20 $(BIN)/python -m pytest -q tests/serving/server/test_swaps.py tests/serving/server/test_drain.py
	@RECSYS_PIPELINE_KILLS=200 $(BIN)/python -m pytest -q -s tests/soak/test_pipeline_kills.py
	@RECSYS_SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest -q tests/soak/test_server_soak.py

year: install  ## a synthetic year of days, weeks and faults, about an hour; two weeks of it are a test
	@OMP_NUM_THREADS=2 $(BIN)/python -m tests.benchmarks.scheduled.benchmark_year

check: install  ## format, lint, types, import rules, length limits
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m pytest -q tests/test_code_limits.py

release-check: install  ## wheel, demo from it, docs, licences, audit, changelog; ten minutes, needs an index and pip-audit
	@$(BIN)/python -m tests.release.check

release: install  ## wheel, sdist, SBOM, hashed lock and their digests in dist/release; needs an index
	@$(BIN)/python -m tests.release.build

format: install  ## rewrite files in the house format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

strangers: install  ## logs that nothing was tuned on, untuned, beside simple peers; 4 hours, or SETS="fiction music"; continues
	@$(BIN)/python -m tests.benchmarks.strangers.benchmark_strangers $(if $(SETS),--sets $(SETS))

bench: install  ## list the benchmarks and how long they took; ONLY=kernels or ONLY=all runs them
	@$(BIN)/python -m tests.benchmarks $(ONLY)

lock: install  ## resolve requirements/*.in again
	@$(BIN)/python requirements/lock.py cpu dev gpu airflow

clean:  ## remove the environment, runs and caches
	@rm -rf $(VENV) runs .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist site
