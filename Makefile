# `make test` and `make demo` work from a fresh clone with nothing but Python (3.11 to 3.13) and make.
PYTHON ?= $(firstword $(foreach version,3.11 3.12 3.13,$(shell command -v python$(version))) python3)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable
# Each says that its packages are installed.
LAB := .venv/installed-lab
DOCS := .venv/installed-docs
ALL := .venv/installed-all

.PHONY: test demo docs lint format bench clean

test: lint
	$(BIN)/pytest -n 2

demo: $(LAB)
	$(BIN)/silentgrad demo

docs: $(DOCS)
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs build/site

lint: $(ALL)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(ALL)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(ALL)
	$(BIN)/python benchmarks/closed_form.py

$(LAB): pyproject.toml constraints.txt | .venv
	$(PIP) '.[lab]'
	touch $@

$(DOCS): pyproject.toml constraints.txt | .venv
	$(PIP) '.[lab,docs]'
	touch $(LAB) $@

$(ALL): pyproject.toml constraints.txt | .venv
	$(PIP) '.[lab,counts,cluster,onnx,tensorboard,examples,docs,dev]'
	touch $(LAB) $(DOCS) $@

.venv:
	$(PYTHON) -m venv .venv

clean:
	rm -rf .venv build dist
