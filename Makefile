# Two commands do everything on a fresh machine with Python 3.11: `make train` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CODE := src tests examples docs benchmarks scripts
PIP := $(BIN)/python -m pip --disable-pip-version-check install -c constraints.txt
export OMP_NUM_THREADS ?= 1

.PHONY: help install train test check learn mutants bench peers docs requirements smoke clean

help: ## what there is
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing RL Lab and its pinned core (about a minute; PyTorch is the large one) ..."
	$(PIP) -e .
	@touch $@

$(VENV)/.test: $(VENV)/.core
	@echo "Installing the test tools ..."
	$(PIP) -e '.[test]'
	@touch $@

install: $(VENV)/.core ## create .venv and install the pinned core

train: $(VENV)/.core ## train CartPole-v1:ppo and show the result
	$(BIN)/rl-lab train CartPole-v1:ppo

test: check ## the whole fast suite, with style and types
	$(BIN)/python -m pytest -n 2 --dist loadscope --max-worker-restart 0 -m "not slow"

check: $(VENV)/.test ## style and types only
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy

learn: $(VENV)/.test ## learning bars and the full fault matrix (an hour or more)
	$(BIN)/python -m pytest -m slow -x

mutants: $(VENV)/.test ## break the code in known ways; each must turn a test red
	$(BIN)/python tests/mutants.py

bench: $(VENV)/.core ## time the parts of a PPO step on this machine
	$(BIN)/python benchmarks/ppo_parts.py

peers: $(VENV)/.core ## train here and in other libraries with equal settings (minutes)
	$(PIP) -e '.[peers]'
	$(BIN)/python -m benchmarks.peers

docs: $(VENV)/.core ## write docs/options.md from the configuration dataclasses
	$(BIN)/python docs/generate.py

requirements: $(VENV)/.core ## write requirements.txt from pyproject.toml and constraints.txt
	$(BIN)/python docs/requirements.py

smoke: $(VENV)/.core ## train every preset briefly, step every environment (minutes)
	$(BIN)/rl-lab smoke

clean: ## remove what installing and testing made (never runs/)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
