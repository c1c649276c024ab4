# Everything is installed into .venv by the first target that needs it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: test demo lint types pytest format clean

test: lint types pytest

demo: $(VENV)/.installed
	$(BIN)/autojacobin demo

lint: $(VENV)/.installed
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/mypy

# One BLAS thread a worker: several workers that each start a thread per core only get in each other's way.
pytest: $(VENV)/.installed
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "autojacobin needs Python 3.10 or newer, got %d.%d: run make PYTHON=python3.11, say" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@
