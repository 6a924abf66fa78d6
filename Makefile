# `make test` and `make demo` work from a fresh clone with nothing but Python 3.11 and make.
PYTHON ?= python3.11
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable
# Each says that its packages are installed.
LAB := .venv/installed-lab
ALL := .venv/installed-all

.PHONY: test demo lint format bench clean

test: lint
	$(BIN)/pytest -n 2

demo: $(LAB)
	$(BIN)/silentgrad demo

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

$(ALL): pyproject.toml constraints.txt | .venv
	$(PIP) '.[lab,counts,onnx,tensorboard,examples,dev]'
	touch $(LAB) $@

.venv:
	$(PYTHON) -m venv .venv

clean:
	rm -rf .venv build dist
