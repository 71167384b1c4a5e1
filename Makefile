# Everything a person needs to build, try and check Treadle. `make` alone lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SECONDS ?= 60

# Commands start much faster when Python may keep what it has compiled; some surroundings forbid it by default.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup assets demo up test check fmt docs screenshots bench simulate chaos fuzz soak clean

help: ## List the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

setup: $(VENV)/.ready ## Create .venv and install Treadle with its development tools

$(VENV)/.ready: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "Python is missing: apt-get install python3 python3-venv"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed (or: make PYTHON=python3.12 ...)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "The venv module is missing: apt-get install python3-venv"; exit 1; }
	@echo "Setting up $(VENV) (once; about a minute) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

assets: setup ## Fetch the dashboard's front-end libraries from npm
	@$(BIN)/python -m build_tools.assets

demo: setup assets ## Run the story: parallel work, a retry, a killed worker, a workflow repaired, an outside service, a verified log
	@$(BIN)/treadle demo
	@$(BIN)/python examples/render_farm/show.py

up: setup assets ## Start the engine on the store of TREADLE_STORE (default: ./treadle.db)
	@$(BIN)/treadle up

test: export PYTHONDONTWRITEBYTECODE =# four processes read all tests: compiling them is what takes longest then
test: setup assets ## Run all tests, a real PostgreSQL among them
	@$(BIN)/python -m pytest -q -n 4 --dist loadgroup -m "not soak"

check: setup ## Format, lint, types, layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

fmt: setup ## Format the code and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: setup ## Write the parts of the documentation that are made from code
	@$(BIN)/python -m docs.generate

screenshots: setup assets ## Take pictures of every page of the dashboard, into docs/images
	@$(BIN)/python -m tests.web.browser.screenshots

bench: setup ## Measure on SQLite and PostgreSQL, about 15 minutes; see bench/RESULTS.md
	@$(BIN)/python -m bench

simulate: setup ## Play histories in which everything goes wrong, for SECONDS; or the one of SEED, line by line
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED) --about "$(ABOUT)",--seconds $(SECONDS) --first $(or $(FIRST),0))

chaos: setup ## Real processes, killed and stopped at random on both stores; ARGUMENTS="--tasks 5000 --store sqlite ..." for less
	@$(BIN)/python -m tests.chaos $(ARGUMENTS)

fuzz: setup ## Look for texts from outside that do harm, SECONDS for each target; or for that of TARGET only
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	@$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(if $(TARGET),--target $(TARGET))

soak: setup ## The long tests, at the sizes that the issues state
	@$(BIN)/python -m pytest -q -m soak --timeout 3600

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis .fuzz dist
