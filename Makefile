# Everything goes through one environment, .venv, which is made once and renewed when
# pyproject.toml changes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Python compiles what is imported when it is; all at once takes a third of the time of installing.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
NOTEBOOK := notebooks/01_approve_fork_compare.ipynb
# Arguments for pytest: make test ARGS="-k fork -x"
ARGS ?=
# The 3.11 of Debian 12 is the oldest Python supported.
OLDEST := 3, 11

# One after the other: two cores are shared by Lab, its kernels and Chromium already, so the tests
# in a browser have the machine to themselves; the others run two at a time.
.NOTPARALLEL:
.PHONY: help install browser lab test format-check lint types walls pytest \
  tests-chosen tests-without-browser tests-in-browser format notebooks bench soak shots clean

help:
	@echo "make lab      open JupyterLab on $(NOTEBOOK)"
	@echo "make test     style, types, layers and every test   (ARGS=\"-k name\" for pytest)"
	@echo "make format   let ruff format and repair what it can"
	@echo "make bench    measure, and print ratios"
	@echo "make soak     the slow variants of the tests"
	@echo "make shots    screenshots of the views, into shots/"
	@echo "make notebooks  execute the notebooks and save their outputs"
	@echo "make clean    remove what the above left behind, except $(VENV)"
	@echo "PYTHON=python3.12 chooses the interpreter $(VENV) is made with."

install: $(STAMP)

$(STAMP): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { \
	  echo "$(PYTHON) not found: install Python 3.11 or newer, or say PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < ($(OLDEST)))' || { \
	  echo "Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) -V 2>&1): say PYTHON=python3.11 or the like" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) has no venv: on Debian and Ubuntu, apt-get install python3-venv" >&2; exit 1; }
# An environment whose interpreter is gone or too old is made anew.
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < ($(OLDEST)))' 2>/dev/null \
	  || $(PYTHON) -m venv --clear $(VENV)
	@echo "Installing into $(VENV); this takes a minute or two."
	$(PIP) --editable '.[dev]'
	@touch $@

# The tests drive the Chromium of the system. Without one they are skipped, with a reason.
browser: $(STAMP)
	@found() { $(BIN)/python -c 'import sys; from tests.browser.lab import find_browser; sys.exit(not find_browser())'; }; \
	if found; then exit 0; fi; \
	if [ -n "$$KASSETTE_BROWSER" ]; then \
	  echo "KASSETTE_BROWSER=$$KASSETTE_BROWSER does not run; the browser tests will be skipped." >&2; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing Chromium."; \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y \
	    --no-install-recommends chromium fonts-dejavu-core; } </dev/null >/dev/null && found \
	    || echo "Chromium could not be installed; the browser tests will be skipped." >&2; \
	else \
	  echo "No Chromium found; the browser tests will be skipped. To run them, install chromium" >&2; \
	  echo "(Debian: apt-get install chromium fonts-dejavu-core) or point KASSETTE_BROWSER at one." >&2; \
	fi

# JupyterLab refuses to run as root unless told to.
lab: $(STAMP)
	$(BIN)/python -m jupyterlab $$([ "$$(id -u)" != 0 ] || echo --allow-root) \
	  --LabApp.default_url=/lab/tree/$(NOTEBOOK)

test: format-check lint types walls pytest

format-check: $(STAMP)
	$(BIN)/ruff format --check .

lint: $(STAMP)
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

walls: $(STAMP)
	$(BIN)/lint-imports

pytest: $(if $(ARGS),tests-chosen,tests-without-browser tests-in-browser)

tests-chosen: $(STAMP) browser
	$(BIN)/python -m pytest $(ARGS)

tests-without-browser: $(STAMP)
	$(BIN)/python -m pytest --ignore tests/browser --numprocesses 2 --dist worksteal

tests-in-browser: $(STAMP) browser
	$(BIN)/python -m pytest tests/browser

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Ana decides in the saved outputs, whoever runs this.
notebooks: $(STAMP)
	KASSETTE_BY=ana $(BIN)/python -m tests.notebooks.refresh

bench: $(STAMP)
	$(BIN)/python -m pytest -m bench -s --timeout=900 tests/benchmarks $(ARGS)

soak: $(STAMP) browser
	$(PIP) --editable '.[dev,soak]'
	$(BIN)/python -m pytest -m slow -s --timeout=3600 $(ARGS)

shots: $(STAMP) browser
	KASSETTE_SHOTS=shots $(BIN)/python -m pytest tests/browser/test_shots.py $(ARGS)
	@ls shots

clean:
	rm -rf shots build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info
	find kassette_nb tests notebooks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
