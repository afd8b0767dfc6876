# Two commands do everything: `make repro` (the pipeline) and `make test`. Both set up their own environment first.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
# Several clones can share one environment: make repro VENV=~/envs/shift-diffusion
VENV ?= .venv
BIN := $(if $(filter /% ~%,$(VENV)),$(subst ~,$(HOME),$(VENV)),$(CURDIR)/$(VENV))/bin
# Quoted wherever it is used: the path may hold a space. DVC's stages say `python`, so the environment comes first.
RUN := PATH="$(BIN):$$PATH"
# pip compiles nothing (half the packages are never imported), so what is imported must be kept compiled: a machine
# that forbids it would compile torch anew in every process, ten seconds each.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup setup-test check repro test test-slow smoke chaos lint format ui clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

# $(call install,EXTRAS,STAMP): pip runs only when what is to be installed has changed since
define install
@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0])'
@test -x "$(BIN)/python" || "$(PYTHON)" -m venv "$(BIN)/.."
@cat pyproject.toml constraints.txt | cmp -s - "$(BIN)/../$(2)" || { \
  echo "installing into $(VENV) (a few minutes the first time)" \
  && "$(BIN)/python" -m pip install --quiet --no-compile --constraint constraints.txt --editable '.$(1)' \
  && cat pyproject.toml constraints.txt > "$(BIN)/../$(2)"; }
endef

setup:  ## Make the virtual environment (VENV) and install the pinned packages
	$(call install,,.installed)

setup-test:
	$(call install,[test],.installed-test)

check: setup  ## Report everything wrong in params.yaml, data and environment, in seconds
	@$(RUN) python -m shift_diffusion.cli check

repro: check  ## Run the whole pipeline on params.yaml (dvc repro) and say where the results are
	@$(RUN) dvc repro
	@$(RUN) python -m shift_diffusion.cli results

# A process per core with one thread each: the tests are many and small.
test: setup-test  ## Run the fast tests
	@$(RUN) OMP_NUM_THREADS=1 python -m pytest --numprocesses logical --maxprocesses 8

test-slow: setup-test  ## Run the slow tests too
	@$(RUN) python -m pytest -m 'slow or not slow'

smoke: setup-test  ## Run the whole pipeline, tiny, in a temporary clone
	@$(RUN) python -m pytest tests/test_end_to_end.py -m slow

chaos: setup-test  ## Kill the smoke pipeline 20 times at random moments and compare the results byte for byte
	@$(RUN) python -m tests.chaos

lint: setup-test  ## Check style
	@$(RUN) ruff check . && $(RUN) ruff format --check .

format: setup-test  ## Apply the style
	@$(RUN) ruff check --fix . && $(RUN) ruff format .

ui: setup  ## Open MLflow's pages on http://127.0.0.1:5000
	@$(RUN) MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false mlflow ui --host 127.0.0.1 --backend-store-uri "sqlite:///$(CURDIR)/mlflow.db"

clean:  ## Remove what can be made again: checkpoints, caches of tools (not models, data or history)
	rm -rf .checkpoints .pytest_cache .ruff_cache .cache
	find . -name __pycache__ -prune -exec rm -rf {} +
