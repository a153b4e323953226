# Fresh clone: `make demo` or `make test`; each creates .venv and installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One process a core, one thread each: faster than threads that wait for each other on a small machine.
WORKERS ?= 2

.PHONY: demo test install lint package clean

$(BIN)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

install: $(BIN)/.installed

demo: install
	$(BIN)/papm demo

lint: install
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy

# The wheel and the sdist are built, and the wheel is imported and run from a folder of its own.
package: install
	rm -rf dist build/wheel
	$(BIN)/python -m build --no-isolation --outdir dist . > /dev/null
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target build/wheel dist/*.whl
	cd build && PYTHONPATH=wheel ../$(BIN)/python -c "import papm, sys; assert 'wheel' in papm.__file__; print('wheel of papm', papm.__version__, 'imports')"
	cd build && PYTHONPATH=wheel ../$(BIN)/python -m papm doctor > /dev/null

test: install lint package
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache
