# Fresh clone: `make demo` or `make test`; each creates .venv and installs what it needs. While you work: `make fast`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One process a core, one thread each: faster than threads that wait for each other on a small machine.
WORKERS ?= 2
# With bytecode, or every process would rewrite and compile all tests before the first one runs.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.PHONY: demo docs fast test full install lint package audit lock bounds core release clean

# What is installed is what requirements.lock names, by hash; LOCK= (nothing) leaves the choice to pip, within constraints.txt.
# torch comes apart: pip takes a CPU build where it finds one.
LOCK ?= requirements.lock
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check

$(BIN)/.installed: pyproject.toml constraints.txt packages/papm-models/pyproject.toml $(LOCK)
	$(PYTHON) -m venv $(VENV)
	$(if $(LOCK),$(PIP) --no-deps --require-hashes -r $(LOCK))
	$(PIP) -c constraints.txt torch
	$(if $(LOCK),$(PIP) --no-deps --no-build-isolation -e . -e packages/papm-models,$(PIP) -c constraints.txt -e ".[dev]" -e packages/papm-models)
	$(BIN)/python -m pip check --disable-pip-version-check
	touch $@

install: $(BIN)/.installed

demo: install
	$(BIN)/papm demo

# The site, into build/site; a dead link or an unknown anchor ends it. Then every code block is run.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	$(PYTEST) tests/test_docs.py

lint: install
	$(BIN)/ruff check src tests benchmarks tools hatch_build.py docs/*.py
	$(BIN)/ruff format --check src tests benchmarks tools hatch_build.py docs/*.py
	$(BIN)/mypy

# The wheel and the sdist are built; the wheel is installed in a folder of its own, where it must have every file of the
# package, run, and build its C loops from the sources that came with it.
package: install
	rm -rf dist build/wheel build/cache
	$(BIN)/python -m build --no-isolation --outdir dist . > /dev/null
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target build/wheel dist/*.whl
	cd build && PYTHONPATH=wheel ../$(BIN)/python -c "import papm, sys; assert 'wheel' in papm.__file__; print('wheel of papm', papm.__version__, 'imports')"
	diff -r -q -x __pycache__ src/papm build/wheel/papm
	cd build && PYTHONPATH=wheel ../$(BIN)/python -m papm doctor > /dev/null
	cd build && PYTHONPATH=wheel PAPM_CACHE=cache ../$(BIN)/python -c "import shutil; from papm.engine.fast_paths import c_paths; found = c_paths(); print('C loops of the wheel:', found); assert all(found.values()) or not shutil.which('cc')"

# What to run after each change: all but the tests marked slow, and no wheel.
fast: install lint
	$(PYTEST) -m "not slow"

# What must pass before a change lands. Of the tests marked long it runs one part in LONG_PARTS, another one after each commit.
LONG_PARTS ?= 4
SLICE ?= $(shell git rev-list --count HEAD 2>/dev/null || echo 0)/$(LONG_PARTS)
test: install lint package audit
	$(PYTEST) --slice $(SLICE)

# Everything, for a release or a long night; the slowest tests are named at the end.
full: install lint package audit
	$(PYTEST) --durations 20 --durations-min 5

# Packages that are known to be bad, and whether the lock belongs to pyproject.toml and constraints.txt; without the network.
audit: install
	$(BIN)/python tools/audit.py --installed
	$(BIN)/python tools/lock.py --check

# After a change to pyproject.toml or constraints.txt (needs the network).
lock:
	$(or $(wildcard $(BIN)/python),$(PYTHON)) tools/lock.py

# The fast tests with the lowest and the newest versions that pyproject.toml admits; the core in a fresh environment.
bounds: install
	$(BIN)/python tools/bounds.py lowest
	$(BIN)/python tools/bounds.py newest

core: install
	$(BIN)/python tools/core_install.py

release: install
	$(BIN)/python tools/release.py

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache
