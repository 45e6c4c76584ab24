# Two commands set up all they need: `make demo` and `make test`. `make run` watches this host.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_PORT ?= 19847
REAL_SGLANG ?= .cache/real-sglang
# Most tests wait for other processes more than they compute. Those of one file run one after another, and no file sees the
# processes of another.
PARALLEL ?= --dist loadfile --tx '3*popen//python=tests/private_python.sh'
SGLANG_MODEL := $(REAL_SGLANG)/model/model.safetensors

.PHONY: demo run test test-real test-all lint bench dashboards dashboard-pictures picture reference clean

demo: $(VENV)/.installed
	$(BIN)/stallwatch demo $(SCENARIO) --port $(DEMO_PORT)

run: $(VENV)/.installed
	$(BIN)/stallwatch serve

test: $(VENV)/.dev
	tests/system_packages.sh
	$(BIN)/python -m pytest $(PARALLEL)

# Beside a real SGLang on the CPU: x86-64, Python 3.11, 3 GB and some minutes to install, eight to run.
test-real: $(VENV)/.dev $(SGLANG_MODEL)
	REAL_SGLANG=$(REAL_SGLANG) $(BIN)/python -m pytest -m real

test-all: $(VENV)/.dev $(SGLANG_MODEL)
	tests/system_packages.sh
	REAL_SGLANG=$(REAL_SGLANG) $(BIN)/python -m pytest $(PARALLEL) -m ""

$(SGLANG_MODEL):
	tests/real/install_sglang.sh $(REAL_SGLANG)

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# What it costs beside the exporters that it replaces, written into docs/performance.md; a look in three minutes: QUICK=1.
bench: $(VENV)/.dev
	benchmarks/install_peers.sh
	PYTHONPATH=tests benchmarks/all.sh $(if $(QUICK),--quick)

dashboards: $(VENV)/.dev
	$(BIN)/python grafana/build.py

# Plays a small fleet for three minutes and draws each dashboard: Node 20, Chromium, Prometheus and 500 MB from npm.
dashboard-pictures: $(VENV)/.dev
	cd grafana/preview && npm ci && npm run check && npm run build
	$(BIN)/python grafana/preview/pictures.py docs

picture: $(VENV)/.dev
	$(BIN)/python docs/make_demo_picture.py docs/demo.svg

# The tables in docs/ that are written from the code, and the rules for Kubernetes that are written from alerts/rules.
reference: $(VENV)/.dev
	$(BIN)/python docs/make_reference.py
	$(BIN)/python deploy/kubernetes/build.py

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
