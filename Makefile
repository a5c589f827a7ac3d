# make demo, make test: each sets up what is missing first.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready

.PHONY: help setup demo docs docs-serve test test-engines test-thirdparty thirdparty test-cuda check unit test-ipex fmt \
	bench fuzz chaos dist check-dist clean

help:
	@echo "make demo    train, score and optimise on generated scenes; no data and no network needed"
	@echo "make test    lint, types, contracts and all tests"
	@echo "make test-engines  the tests on local Ray and Spark clusters, and the slow tests that make test leaves out"
	@echo "make test-cuda  the tests that need a GPU"
	@echo "make test-thirdparty  the networks of timm, transformers and segmentation-models-pytorch"
	@echo "make setup   create the virtual environment (the others do it if it is missing)"
	@echo "make check   lint, types and contracts only"
	@echo "make fmt     format the code"
	@echo "make fuzz    hunt for faults with damaged files and odd commands (SECONDS=600 SEED=n RESUME=1)"
	@echo "make chaos   kill commands and their processes at seeded moments (SEED=n MOMENTS=20)"
	@echo "make docs    the documentation site, in build/docs/site; make docs-serve shows it in a browser"
	@echo "make bench   the benchmarks: ratios to a baseline of the same run"
	@echo "make test-ipex  the tests of Intel's extension, in their own environment (torch 2.8, several GB)"
	@echo "make dist    build the sdist and the wheels (one with compiled kernels), and check their descriptions"
	@echo "make check-dist  make dist, then try each extra in a fresh environment (long, several GB; EXTRAS='onnx serve')"
	@echo "make clean   remove the virtual environment and all caches"

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable ".[optimize,plots,ray,serve,serve-ray,spark,tune]" --group dev --group docs
	touch $(READY)

demo: setup
	$(BIN)/boxwright demo

# The notebooks are written from the tutorials, the reference from the code.
docs: setup
	$(BIN)/python tools/make_notebooks.py
	$(BIN)/python tools/make_docs.py build/docs
	$(BIN)/zensical build --strict --clean --config-file build/docs/zensical.toml

docs-serve: setup
	$(BIN)/python tools/make_docs.py build/docs
	$(BIN)/zensical serve --config-file build/docs/zensical.toml

test: check unit

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file benchmarks/mypy.ini benchmarks/*.py
	$(BIN)/lint-imports --no-cache

# Two test processes with one computing thread each: more threads than cores would slow each other down.
# Tests that share a cluster stay in one process (loadgroup). A test process that crashes ends the run: the others
# would wait for it.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadgroup --max-worker-restart 0 --durations=25

unit: setup
	$(PYTEST) -m "not engines and not more and not thirdparty"
	$(PYTEST) -m "engines and not more" tests/contract tests/integration

# Real clusters on this machine: Ray with several nodes, Spark with a master and two workers (Java 17 is needed). It kills
# workers at more moments than `make test`; `make chaos` has more.
test-engines: setup
	$(PYTEST) -m "engines or more" tests

# Beside the environment and without what they depend on: torchvision's wheel requires a torch with CUDA.
thirdparty: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(VENV)/thirdparty \
		--requirement tests/thirdparty/requirements.txt

test-thirdparty: thirdparty
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/thirdparty docs/how-to/with-timm.md docs/how-to/with-transformers.md

# What they find is kept in runs/fuzz/findings and runs/chaos.
SECONDS = 600
MOMENTS = 20

fuzz: setup
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(RESUME),--resume)

chaos: setup
	$(BIN)/python -m tests.chaos --moments $(MOMENTS) $(if $(SEED),--seed $(SEED))

# Intel's extension ends the interpreter on any other torch than its own.
test-ipex:
	test -x .venv-ipex/bin/python || $(PYTHON) -m venv .venv-ipex
	.venv-ipex/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[ipex]" pytest pytest-timeout pytest-xdist hypothesis sybil
	OMP_NUM_THREADS=1 .venv-ipex/bin/python -m pytest tests/ipex tests/contract/test_runtimes.py -k ipex

# On a machine with a GPU. Another Python than the virtual environment's: make test-cuda BIN=/usr/bin READY=
test-cuda: $(READY)
	OMP_NUM_THREADS=4 $(BIN)/python -m pytest tests/cuda tests/contract/test_devices.py tests/unit/devices

fmt: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Those that need weights or data named say so when they are called alone; a file without a parser is part of another one.
bench: setup
	for file in $$(grep -l ArgumentParser benchmarks/[a-z]*.py | xargs grep -L "required=True"); do echo "== $$file"; $(BIN)/python $$file || exit 1; done

# The wheel for Linux on x86-64 carries the training kernels; pip takes the other one elsewhere.
DIST = .venv-dist/bin
BUILD = PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(DIST)/python -m build --outdir dist

dist:
	test -x $(DIST)/python || $(PYTHON) -m venv .venv-dist
	$(DIST)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "pip>=25.1"
	$(DIST)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --group dist
	rm -rf dist
	$(BUILD)
	BOXWRIGHT_KERNELS=1 $(BUILD) --wheel
	$(DIST)/twine check --strict dist/*

check-dist: dist
	$(DIST)/python deploy/check_dist.py dist $(EXTRAS)

clean:
	rm -rf $(VENV) .venv-ipex .venv-dist .mypy_cache .ruff_cache .pytest_cache build dist
