# One environment for everything: .venv. VENV=... uses another, PYTHON=... another interpreter (3.11 or newer).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# TorchRec asks for a torchmetrics that Lightning's excludes, and for FBGEMM's build for CUDA; what we test needs neither.
TORCHREC = torchrec fbgemm-gpu-cpu pyre-extensions pyvers tensordict typing-inspect
BENCHMARKS = $(shell grep -l '^if __name__' benchmarks/*.py)

.PHONY: demo prove conformance quick test full lint tests docs bench bench-tables package clean
.DEFAULT_GOAL := test

# Each set of packages has a stamp, so that the demo does not wait for what only developers need.
ENGINE = $(wildcard setup.py src/torch_dataloader_utils/_engine/*.[ch])

$(VENV)/.installed: pyproject.toml constraints.txt $(ENGINE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.installed-demo: $(VENV)/.installed
	$(INSTALL) --editable ".[iceberg]"
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(INSTALL) --editable ".[test,lint]"
	$(INSTALL) --no-deps $(foreach name,$(TORCHREC),"$(name); platform_system == 'Linux' and platform_machine == 'x86_64'")
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(INSTALL) --editable ".[docs]"
	@touch $@

# Data, plan, two epochs of DDP on two processes, audit. Fails if one row is missing or comes twice.
demo: $(VENV)/.installed-demo
	$(BIN)/python -m examples.demo

# A job on two hosts (of this machine) that loses a host again and again; then the audit. docs/how-to/prove.md
prove: $(VENV)/.installed
	$(BIN)/python -m examples.prove

lint: $(VENV)/.installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Three pytest processes for two cores, as a third of the time is waiting. One that has no tests left takes those of another.
PYTEST = $(BIN)/pytest -q -n $$(( ($$(getconf _NPROCESSORS_ONLN) * 3 + 1) / 2 )) --dist worksteal

# While writing: lint, types, and the tests that start no process, on few random examples.
quick: export TIER = quick
# `test` is what CI runs. Lint and types go beside the tests.
quick test: $(VENV)/.installed-test
	@$(MAKE) --no-print-directory --jobs=2 lint tests

tests:
	$(PYTEST) --durations=25

# Every test on fresh random examples, with trainers, packaging, pages, Ray, memory, soak and fuzzing; then `make test` once
# more as where there is no compiler. Failed examples are kept in .hypothesis and tried first the next time.
full: lint
	TIER=full $(PYTEST) --durations=50 -o faulthandler_timeout=1800
	rm -rf build/pure && mkdir -p build && cp -r src build/pure && rm -f build/pure/*/_engine/*.so
	PYTHONPATH=$(CURDIR)/build/pure $(PYTEST)

# What writers write, read by this library and others, row by row; writes docs/conformance.md.
conformance: $(VENV)/.installed-test
	$(BIN)/python -m scripts.conformance

# The site in site/. Broken links and references are errors.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

# Every script of benchmarks/, one after the other; each prints the machine, the versions and all its figures.
bench: $(VENV)/.installed-test
	@echo "benchmarks: $(BENCHMARKS)"
	@for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python $$script || exit 1; done
	@echo "results: benchmarks/results/*.json; what they mean: docs/performance.md"

# Tables of numbers in every layout and codec, and small files, against the better of polars and pyarrow in the same run.
bench-tables: $(VENV)/.installed-test
	@for layout in snappy zstd snappy-required zstd-required; do \
	    $(BIN)/python benchmarks/tabular.py 0.5 3 $$layout || exit 1; done
	@$(BIN)/python benchmarks/small_files.py

# Source package and wheel in dist/, tested in an empty environment.
package:
	PYTHON=$(PYTHON) scripts/check_package.sh

clean:
	rm -rf $(VENV) .demo build dist site
