# `make test` and `make demo` work from a fresh clone with nothing but Python 3.11 and make.
PYTHON ?= python3.11
BIN := .venv/bin
INSTALLED := .venv/installed

.PHONY: test demo lint format bench clean

test: lint
	$(BIN)/pytest -n 2

demo: $(INSTALLED)
	$(BIN)/silentgrad train

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	$(BIN)/python benchmarks/closed_form.py

$(INSTALLED): pyproject.toml constraints.txt
	test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[lab,dev,examples]'
	touch $@

clean:
	rm -rf .venv build dist
