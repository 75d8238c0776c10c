# Two commands matter: `make demo` and `make test`. Each sets up .venv on first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# What is imported is compiled once, then and not when it is installed, whatever the environment says of that.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test check bench bench-quick docs notebooks release-check clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e ".[dev]"
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/semcal demo --out runs/demo

# On all processors, a file of tests on one. A test that hangs ends the run after ten minutes and says where it was; one
# takes half a minute at most. MARKS='not slow' takes those on a real model with them, which `python -m tools.real_model
# runs/real` fetches.
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

# Every benchmark in a tiny size, to see that it runs: five minutes of processor time at most.
bench-quick: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks --quick

# Runs each notebooks/NAME.py and writes NAME.ipynb with what it shows.
notebooks: $(STAMP)
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e ".[docs]"
	$(BIN)/python -m tools.notebooks

docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e ".[docs]"
	$(BIN)/sphinx-build -W -b html docs docs/_build

# Lowest, newest and fixed versions of what is depended on, each in a clean environment: half an hour, and gigabytes.
# TORCH=2.13.0+cpu takes the CPU build of PyTorch.
TORCH ?= 2.13.0
release-check: $(STAMP)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/python -m tools.release_check --uv $(BIN)/uv --torch $(TORCH)

clean:
	rm -rf $(VENV) docs/_build runs
