# Two commands set up all they need: `make demo` and `make test`. `make run` watches this host.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_PORT ?= 19847

.PHONY: demo run test lint clean

demo: $(VENV)/.demo
	$(BIN)/stallwatch demo --port $(DEMO_PORT)

run: $(VENV)/.demo
	$(BIN)/stallwatch serve

test: $(VENV)/.dev
	tests/system_packages.sh
	$(BIN)/python -m pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade "pip>=25.1"

$(VENV)/.demo: $(VENV)/bin/pip pyproject.toml
	$(BIN)/pip install --quiet --editable ".[demo]"
	touch $@

$(VENV)/.dev: $(VENV)/bin/pip pyproject.toml
	$(BIN)/pip install --quiet --editable ".[demo]" --group dev
	touch $@

clean:
	rm -rf $(VENV) dist build
