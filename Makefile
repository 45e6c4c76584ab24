# Two commands set up all they need: `make demo` and `make test`. `make run` watches this host.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_PORT ?= 19847

.PHONY: demo run test lint picture clean

demo: $(VENV)/.installed
	$(BIN)/stallwatch demo --port $(DEMO_PORT)

run: $(VENV)/.installed
	$(BIN)/stallwatch serve

test: $(VENV)/.dev
	tests/system_packages.sh
	$(BIN)/python -m pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

picture: $(VENV)/.dev
	$(BIN)/python docs/make_demo_picture.py docs/demo.svg

$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade "pip>=25.1"

$(VENV)/.installed: $(BIN)/pip pyproject.toml
	$(BIN)/pip install --quiet --editable .
	touch $@

$(VENV)/.dev: $(BIN)/pip pyproject.toml
	$(BIN)/pip install --quiet --editable . --group dev
	touch $@

clean:
	rm -rf $(VENV) dist build
