# Build, try and check Treadle. `make` alone lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SECONDS ?= 60

# Commands start much faster with cached bytecode, which some environments disable.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup assets demo up test test-all check editors fmt docs docs-site docs-release screenshots bench simulate chaos attack fuzz soak release release-check clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

setup: $(VENV)/.ready ## Create .venv and install Treadle with its development tools

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "Python is missing: apt-get install python3 python3-venv"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed (or: make PYTHON=python3.12 ...)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "The venv module is missing: apt-get install python3-venv"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml | $(BIN)/python
	@test -e $(VENV)/.ready || echo "Installing Treadle into $(VENV) (once; a few seconds) ..."
	@test -e $(VENV)/.ready || $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.ready: pyproject.toml | $(BIN)/python
	@echo "Installing Treadle and its development tools into $(VENV) (once; about a minute) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' --editable ./conformance
	@touch $@

$(VENV)/.docs: pyproject.toml | $(BIN)/python
	@$(BIN)/python -c 'import material, mkdocs, ruff, treadle' 2>/dev/null || { echo "Installing the site's tools into $(VENV) (once; about half a minute) ..."; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'; }
	@touch $@

assets: setup ## Fetch the dashboard's front-end libraries from npm
	@$(BIN)/python -m build_tools.assets

demo: $(VENV)/.core ## Run the demo: parallel work, a retry, a killed worker, a repaired workflow, an external service, a verified log
	@$(BIN)/treadle demo
	@$(BIN)/python examples/render_farm/show.py

up: setup assets ## Start the engine on the store in TREADLE_STORE (default: ./treadle.db)
	@$(BIN)/treadle up

test: export PYTHONDONTWRITEBYTECODE =# six processes import every test; without cached bytecode, compiling them dominates
QUICK := not soak and not all_cases and (postgres or not postgres_all)
test: setup assets ## Run the tests in under ten minutes, without most PostgreSQL cases above the stores, most crash points and full sizes
	@$(BIN)/python -m pytest -q -n 6 --durations=10 -m "$(QUICK)"

test-all: test ## Run every test: what `test` leaves out, too, and generated examples and long tests at full size
	@$(BIN)/python -m pytest -q -n 6 -m "not soak and not ($(QUICK))" --timeout 3600
	@$(MAKE) soak

check: setup ## Check format, lint, prose, types and layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/python -m build_tools.prose
	@$(BIN)/python -m build_tools.wrap --check
	@$(BIN)/python -m build_tools.editors --check
	@$(BIN)/python -m build_tools.release files
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

editors: setup ## Write the editors' derived files and build the extension for VS Code, dist/treadle-afl.vsix
	@$(BIN)/python -m build_tools.editors --build

fmt: setup ## Format the code, wrap the pages and apply safe fixes
	@$(BIN)/python -m build_tools.wrap
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: setup ## Regenerate the documentation that is derived from code
	@$(BIN)/python -m docs.generate

docs-site: $(VENV)/.docs ## Build the documentation site into site/; dead links and pages missing in the navigation are errors
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "Open site/index.html, or serve it: $(BIN)/python -m mkdocs serve"

docs-release: $(VENV)/.docs ## Commit the site as VERSION (default: of the package) to the branch gh-pages, which `git push origin gh-pages` publishes
	@NO_MKDOCS_2_WARNING=1 PATH="$(abspath $(BIN)):$$PATH" $(BIN)/mike -q deploy --update-aliases $(or $(VERSION),$$($(BIN)/python -c 'from treadle.version import VERSION; print(".".join(VERSION.split(".")[:2]))')) latest
	@$(BIN)/mike set-default latest
	@echo "Committed to the branch gh-pages. Look at it: $(BIN)/mike serve"

screenshots: setup assets ## Take screenshots of every dashboard page, and record the terminal of the README, into docs/images
	@$(BIN)/python -m tests.web.browser.screenshots
	@$(BIN)/python -m docs.recording

bench: setup ## Run all benchmarks on SQLite and PostgreSQL (about 15 minutes); see bench/RESULTS.md
	@$(BIN)/python -m bench

simulate: setup ## Run randomised fault simulations for SECONDS, or replay the one with SEED
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED) --about "$(ABOUT)",--seconds $(SECONDS) --first $(or $(FIRST),0))

chaos: setup ## Kill and stop real processes at random on both stores; ARGUMENTS="--tasks 5000 --store sqlite ..." for a smaller run
	@$(BIN)/python -m tests.chaos $(ARGUMENTS)

attack: setup ## Attack real processes on both stores: kills, full disks, every route x caller, bad input, bombs (five minutes); ARGUMENTS="--only bombs ..."
	@$(BIN)/python -m tests.attack $(ARGUMENTS)

fuzz: setup ## Fuzz every parser of external input for SECONDS each, or only TARGET
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	@$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(if $(TARGET),--target $(TARGET))

soak: setup ## Run the long tests, and those with generated examples, at full size
	@$(BIN)/python -m pytest -q -m soak --timeout 3600
	@TREADLE_TEST_EXAMPLES=20 $(BIN)/python -m pytest -q -m "not soak" --timeout 3600 tests/properties tests/crash/test_damage.py tests/evaluator tests/runs/test_step_codec.py tests/search tests/model/test_arguments.py

release: setup ## Build sdist and wheel of the last commit into dist/, check them, and write the SBOM and checksums
	@$(BIN)/python -m build_tools.release build

release-check: setup ## Try the wheel in dist/ on python3.11 to python3.14, or on TREADLE_PYTHONS=path:path
	@$(BIN)/python -m build_tools.release check

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis .fuzz dist site
