# Everything is one command; the first one sets up .venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
# Threads that spin while they wait slow everything down as soon as another process wants a core.
PASSIVE := OMP_WAIT_POLICY=passive

.PHONY: demo test lint types bench check clean

demo: $(READY)
	$(PASSIVE) $(VENV)/bin/memopt demo

test: $(READY)
	$(PASSIVE) OMP_NUM_THREADS=1 PYTHONHASHSEED=0 $(RUN) -m pytest -n 2 --dist worksteal

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

# The parts of the package lie side by side at the root; the type checker reads them as installed.
types: $(READY)
	rm -rf build/types && mkdir -p build/types/memopt
	ln -s $(CURDIR)/memopt/* $(CURDIR)/compiler $(CURDIR)/passes $(CURDIR)/runtime build/types/memopt/
	MYPYPATH=build/types $(VENV)/bin/mypy -p memopt

check: lint types test

bench: $(READY)
	$(RUN) benchmarks/recompute.py
	$(RUN) benchmarks/swap.py
	$(RUN) benchmarks/estimate.py
	$(RUN) benchmarks/own_time.py
	$(RUN) benchmarks/compile_time.py
	$(RUN) benchmarks/simulate_overlap.py
	$(RUN) benchmarks/distributed.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "memopt needs Python 3.11 or newer; set PYTHON=..."'
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,examples]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info
