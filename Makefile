# The main commands are `make demo` and `make test`. Each creates .venv on first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Compile modules once, on their first import and not at installation, independent of the environment.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test check bench bench-quick docs notebooks release-check clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e ".[dev]"
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/semcal demo --out runs/demo

# On all processors, each file of tests on one. A hanging test ends the run after ten minutes with its place; tests take
# at most half a minute. MARKS='not slow' includes tests on a real model, which `python -m tools.real_model runs/real`
# fetches.
MARKS ?= not slow and not real
test: $(STAMP)
	$(BIN)/python -m pytest -m '$(MARKS)' -n auto --dist loadfile --no-loadscope-reorder \
		-o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# Run every benchmark in a tiny size, in at most five minutes of processor time.
bench-quick: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks --quick

# Run each notebooks/NAME.py and write NAME.ipynb with its outputs.
notebooks: $(STAMP)
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e ".[docs]"
	$(BIN)/python -m tools.notebooks

docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e ".[docs]"
	$(BIN)/sphinx-build -W -b html docs docs/_build

# Test the lowest, newest and fixed versions of dependencies, each in a clean environment: half an hour, and gigabytes.
# TORCH=2.13.0+cpu selects the CPU build of PyTorch.
TORCH ?= 2.13.0
release-check: $(STAMP)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/python -m tools.release_check --uv $(BIN)/uv --torch $(TORCH)

clean:
	rm -rf $(VENV) docs/_build runs
