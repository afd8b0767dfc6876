# Two commands do everything: `make repro` (the pipeline) and `make test`. Both set up their own environment first.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
# Several clones can share one environment: make repro VENV=~/envs/shift-diffusion
VENV ?= .venv
BIN := $(abspath $(subst ~,$(HOME),$(VENV)))/bin
STAMP := $(BIN)/../.shift-diffusion-installed
# Quoted wherever it is used: the path may hold a space. DVC's stages say `python`, so the environment comes first.
RUN := PATH="$(BIN):$$PATH"

.PHONY: help setup check repro test test-slow smoke chaos lint format ui clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

setup:  ## Make the virtual environment (VENV) and install the pinned packages
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0])'
	@test -x "$(BIN)/python" || "$(PYTHON)" -m venv "$(BIN)/.."
	@cat pyproject.toml constraints.txt | cmp -s - "$(STAMP)" || { \
	  "$(BIN)/python" -m pip install --quiet --constraint constraints.txt --editable '.[test,s3]' \
	  && cat pyproject.toml constraints.txt > "$(STAMP)"; }
	@"$(BIN)/python" -c 'import shift_diffusion, pathlib, sys; here = pathlib.Path.cwd().resolve(); \
	  sys.exit(here not in pathlib.Path(shift_diffusion.__file__).resolve().parents and "shift_diffusion is imported from elsewhere")'

check: setup  ## Report everything wrong in params.yaml, data and environment, in seconds
	@$(RUN) python -m shift_diffusion.cli check

repro: check  ## Run the whole pipeline on params.yaml (dvc repro) and say where the results are
	@$(RUN) dvc repro
	@$(RUN) python -m shift_diffusion.cli results

test: setup  ## Run the fast tests
	@$(RUN) python -m pytest

test-slow: setup  ## Run the slow tests too
	@$(RUN) python -m pytest -m 'slow or not slow'

smoke: setup  ## Run the whole pipeline, tiny, in a temporary clone
	@$(RUN) python -m pytest tests/test_end_to_end.py -m slow

chaos: setup  ## Kill the smoke pipeline 20 times at random moments and compare the results byte for byte
	@$(RUN) python -m tests.chaos

lint: setup  ## Check style
	@$(RUN) ruff check . && $(RUN) ruff format --check .

format: setup  ## Apply the style
	@$(RUN) ruff check --fix . && $(RUN) ruff format .

ui: setup  ## Open MLflow's pages on http://127.0.0.1:5000
	@$(RUN) mlflow ui --host 127.0.0.1 --backend-store-uri "sqlite:///$(CURDIR)/mlflow.db"

clean:  ## Remove what can be made again: checkpoints, caches of tools (not models, data or history)
	rm -rf .checkpoints .pytest_cache .ruff_cache .cache
	find . -name __pycache__ -prune -exec rm -rf {} +
