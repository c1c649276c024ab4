# Everything is installed into .venv by the first target that needs it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

# Where it is set, every process compiles all modules anew.
unexport PYTHONDONTWRITEBYTECODE

# One BLAS thread a worker: several workers that each start a thread per core only get in each other's way. A worker gets
# tests that follow one another, which share fixtures, and takes some from another one when it has none left.
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --dist worksteal

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

# The libraries of kernels are built again when their sources change.
NATIVE := $(wildcard native/*.* native/*/*.*)

.PHONY: native test check quick lowest pythons release browser demo docs lint types pytest rare bounds avx2 fuzz stress format clean

# What a change usually breaks: each feature, format, adapter and message. The types are checked beside the tests.
test: lint
	@$(MAKE) --no-print-directory --jobs 2 types pytest

# What rarely breaks: interrupts at every instant, long random runs, every method's contract, bounds, other versions.
check:
	.ci/run rare bounds lowest pythons

# The kernels, for the lowest level of CPU and this machine's best; AUTOJACOBIN_LEVELS=all make native builds all.
native: $(VENV)/.native

demo: $(VENV)/.demo-installed
	$(BIN)/autojacobin demo

docs: $(VENV)/.docs-installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo 'The site is build/site/index.html; with search: $(BIN)/mkdocs serve'

# The explorer page is tested in a real browser where there is one; this brings Debian's, if it may.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || { \
	    test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get -qq update && \
	    DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends chromium >/dev/null; \
	} || echo 'There is no Chromium, and it could not be installed: tests of the explorer page will be skipped.'

lint: $(VENV)/.installed
	@mkdir -p build
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports > build/layers.txt || { cat build/layers.txt; exit 1; }

types: native
	$(BIN)/mypy

# Temporary files are in memory, where there is room for them: the disk would take a tenth of the time.
pytest: native
	@test "$$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 {print $$4}')" -gt 4000000 2>/dev/null && export TMPDIR=/dev/shm; $(PYTEST)

rare: native
	$(PYTEST) -m 'rare or hypothesis' --hypothesis-profile thorough

# What finds most mistakes soonest: codes, distances, models, the index, the service's requests, the command line.
QUICK := tests/test_codes.py tests/search/test_distances.py tests/hashers/test_persistence.py \
    tests/hashers/test_estimator.py tests/hashers/test_shallow_methods.py tests/index/test_bad_input.py tests/index/test_metrics.py \
    tests/index/test_own_codes.py tests/service/test_requests.py tests/cli/test_wrong_use.py
quick: native
	$(PYTEST) --quiet $(QUICK)

# The same with the lowest versions of all packages, and on other Pythons: make pythons PYTHONS="3.12 3.13"
export PYTHONS
lowest pythons:
	PYTHON='$(PYTHON)' QUICK='$(QUICK)' .ci/quick $@

# Builds dist/, checks it, installs the wheel into an environment of its own and tests it there. It publishes nothing.
release:
	@grep -q '^## $(VERSION) ([0-9-]*)$$' CHANGELOG.md || { \
	    echo 'CHANGELOG.md has no dated heading for version $(VERSION); write: ## $(VERSION) ('$$(date +%F)')'; exit 1; }
	@grep -A1 '^\[project.urls\]' pyproject.toml | grep -q = || echo 'Note: [project.urls] in pyproject.toml is empty.'
	rm -rf dist
	$(PYTHON) -m venv build/packaging
	build/packaging/bin/pip install --quiet build check-wheel-contents twine
	build/packaging/bin/python -m build
	build/packaging/bin/twine check --strict dist/*
	build/packaging/bin/check-wheel-contents dist/*.whl
	PYTHON='$(PYTHON)' QUICK='$(QUICK)' .ci/quick release
	@echo 'dist/ holds version $(VERSION). To publish it: build/packaging/bin/twine upload dist/*'

# The kernels of search and index once more with every array access checked, compiled into a cache of their own.
bounds: native
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(CURDIR)/build/bounds $(PYTEST) tests/search tests/index \
	    --ignore tests/index/test_crash.py --ignore tests/index/test_interrupted.py

# All tests as on an x86 CPU without AVX-512: numba and OpenBLAS use nothing beyond AVX2.
avx2: native
	@test "$$(uname -m)" = x86_64 || { echo 'make avx2 needs an x86-64 CPU; this one is '$$(uname -m)'.'; exit 1; }
	NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES= OPENBLAS_CORETYPE=Haswell NUMBA_CACHE_DIR=$(CURDIR)/build/avx2 \
	    $(PYTEST)

# RUNS inputs for each reader of files, or for each of TARGETS.
RUNS ?= 2000
fuzz: $(VENV)/.fuzz-installed native
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 nice $(BIN)/python -m tests.fuzz --runs $(RUNS) $(TARGETS)

# Kills, interrupts, power cuts, full disks and damage against a model, for minutes: make stress SECONDS=600 SEED=2
SECONDS ?= 300
SEED    ?= 1
stress: native
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.stress --seconds $(SECONDS) --seed $(SEED)

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# An editable install has just compiled the kernels, too; this does it again for what has changed since.
$(VENV)/.native: $(NATIVE) | $(VENV)/.installed
	@test -e $@ && test -z "$$(find $(NATIVE) -newer $@)" || $(BIN)/python native/build_backend.py
	@touch $@

# The demo needs a fraction of what the tests need, and whoever tries the library first should not wait for the rest.
$(VENV)/.demo-installed: pyproject.toml $(NATIVE) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[cli,data,figures]'
	touch $@

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[test]' --group docs
	touch $@ $(VENV)/.demo-installed $(VENV)/.docs-installed $(VENV)/.native

# The site reads the sources without importing them, so it needs neither the library nor what that needs.
$(VENV)/.docs-installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --group docs
	touch $@

# Without atheris, which not every machine can build, inputs are changed at random.
$(VENV)/.fuzz-installed: $(VENV)/.installed
	-$(BIN)/python -m pip install --quiet --editable '.[fuzz]'
	touch $@

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "autojacobin needs Python 3.10 or newer, got %d.%d: run make PYTHON=python3.11, say" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
