# Two commands do everything, set-up included: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := $(VENV)/.demo-installed
INSTALLED := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
# With SECONDS=300, what CI may not finish ends after five minutes, and names what it left out.
LIMIT = $(if $(SECONDS),--seconds $(SECONDS))
PIP := -m pip install --quiet --disable-pip-version-check -c constraints.txt

FAST := tests/laws/test_law0_conservation.py tests/laws/test_law2_sensitivity.py tests/laws/test_law5_order.py \
	tests/laws/test_law1_per_sample.py::test_gradients_equal_the_loop \
	tests/capture tests/gradients tests/mechanism tests/privatizer tests/representations tests/sampling tests/test_layering.py

.PHONY: demo test test-fast test-all test-rest test-slow test-nightly test-annotations test-without-kernels test-levels test-beside lint docs dist

demo: $(DEMO)
	$(BIN)/python -m quietgrad.lab.cli.demo

# Everything but what is marked `slow` or `nightly`; annotations are executed in the laws.
test: $(INSTALLED)
	$(BIN)/python -m tests.devices.build
	$(PYTEST) -m "not slow and not nightly"

# The inner loop: the core's own tests, annotations left out.
test-fast: $(INSTALLED)
	QUIETGRAD_ANNOTATIONS=0 $(PYTEST) -m "not slow and not nightly" $(FAST)

test-all: test test-rest test-nightly

# What `.ci/run` runs after `make test`, each for as long as it has time.
test-rest: test-slow test-annotations test-without-kernels test-levels test-beside

test-slow: $(INSTALLED)
	$(PYTEST) $(LIMIT) -m "slow and not nightly"

# What needs more time than CI has.
test-nightly: $(INSTALLED)
	$(PYTEST) -m nightly

# The laws have executed theirs in `make test`. Of each other test the first and the last parameters are run.
test-annotations: $(INSTALLED)
	QUIETGRAD_ANNOTATIONS=all $(PYTEST) $(LIMIT) -m "not slow and not nightly" --ignore=tests/laws

# What the C kernels replace, on torch alone.
test-without-kernels: $(INSTALLED)
	QUIETGRAD_KERNELS=off QUIETGRAD_ANNOTATIONS=0 $(PYTEST) $(LIMIT) -m "not slow and not nightly" tests/noise tests/kernels tests/gradients \
		tests/laws/test_law1_per_sample.py tests/laws/test_law2_sensitivity.py tests/laws/test_law2_floating_point.py

# The same laws at every level of the C kernels below the one that this processor takes by itself.
test-levels: $(INSTALLED)
	for level in $$($(BIN)/python -c "from quietgrad._kernels.levels import levels; print(*levels()[:-1])"); do \
		QUIETGRAD_KERNELS=$$level QUIETGRAD_ANNOTATIONS=0 $(PYTEST) $(LIMIT) -m "not slow and not nightly" tests/kernels tests/gradients \
			tests/laws/test_law1_per_sample.py tests/laws/test_law2_sensitivity.py tests/laws/test_law2_floating_point.py || exit 1; \
	done

# Flower and Opacus, each in an environment of its own beside the others' pins.
test-beside: $(INSTALLED)
	$(BIN)/python -m scripts.beside

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
$(DEMO): pyproject.toml setup.py constraints.txt $(wildcard src/quietgrad/_kernels/native/*)
	@echo "Installing quietgrad and what it needs into $(VENV). This happens once and takes a minute or two."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) -e '.[lab]'
	touch $(DEMO)

$(INSTALLED): $(DEMO)
	$(BIN)/python $(PIP) -e '.[dev]'
	touch $(INSTALLED)
