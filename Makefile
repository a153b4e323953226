# Fresh clone: `make demo` or `make test`; each creates .venv and installs what it needs. While you work: `make fast`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One process a core, one thread each: faster than threads that wait for each other on a small machine.
WORKERS ?= 2
# With bytecode, or every process would rewrite and compile all tests before the first one runs.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.PHONY: demo fast test install lint package clean

$(BIN)/.installed: pyproject.toml constraints.txt packages/papm-models/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]" -e packages/papm-models
	touch $@

install: $(BIN)/.installed

demo: install
	$(BIN)/papm demo

lint: install
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
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

test: install lint package
	$(PYTEST)

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache
