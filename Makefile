# One entry per need: dev | check | test | bench | demo. Each sets up what it lacks.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: dev check test bench soak demo lock clean
dev: $(READY)

$(READY): locks/uv.txt locks/dev.txt pyproject.toml
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --require-hashes -r locks/uv.txt
	$(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes locks/dev.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	$(BIN)/python -m compileall -q src
	touch $@

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=src/cloche/launcher $(BIN)/mypy --config-file= --strict --explicit-package-bases src/cloche/launcher/*.py
	MYPYPATH=src/cloche/guest $(BIN)/mypy --config-file= --strict --explicit-package-bases src/cloche/guest/*.py
	$(BIN)/lint-imports --no-cache

# TESTS="tests/escape tests/unit/test_bundle.py": only those.
test: $(READY)
	$(BIN)/python -m pytest $(TESTS)

bench: $(READY)
	$(BIN)/python -m bench

# 50,000 mixed runs, some hostile: does anything grow? RUNS=5000 for fewer.
RUNS ?= 50000
soak: $(READY)
	$(BIN)/python -m bench.soak --runs $(RUNS)

demo: $(READY)
	$(BIN)/python -m demo

# Renews the locks: hashes only, no index or file addresses.
lock: $(READY)
	$(BIN)/uv pip compile pyproject.toml --extra all --extra dev --universal --python-version 3.11 \
	  --generate-hashes --no-header --no-annotate --upgrade --quiet -o locks/dev.txt

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
