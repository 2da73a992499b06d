# Two commands do everything, set-up included: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test test-without-kernels lint docs dist

demo: $(INSTALLED)
	$(BIN)/python -m quietgrad.lab.cli.demo

test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2

# What the C kernels replace, on torch alone; `make test` has executed the annotations of both.
test-without-kernels: $(INSTALLED)
	QUIETGRAD_KERNELS=off QUIETGRAD_ANNOTATIONS=0 $(BIN)/python -m pytest -n 2 tests/noise tests/kernels tests/gradients tests/laws/test_law1_per_sample.py \
		tests/laws/test_law2_sensitivity.py tests/laws/test_law2_floating_point.py

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Wheel and sdist, checked and tried in an empty environment without the repository.
dist: $(INSTALLED)
	$(BIN)/python scripts/check_dist.py

docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# constraints.txt pins what was tested; a looser torch would fetch gigabytes of GPU packages.
$(INSTALLED): pyproject.toml setup.py constraints.txt $(wildcard src/quietgrad/_kernels/native/*)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(INSTALLED)
