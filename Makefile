# Needs python3 (3.11 or newer) and make; everything else is put into .venv, in pinned versions.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# One more than there are cores: many tests wait, for a lease to run out or for a process to start.
TESTS_AT_ONCE ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

# The tests start Python hundreds of times: what it compiled once it may keep.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint bench soak venv clean
.DEFAULT_GOAL := test

demo: $(READY)    # plays the demo by itself
	$(BIN)/perdure demo --auto

test: lint        # everything a change must pass
	$(BIN)/pytest -q -n $(TESTS_AT_ONCE) --dist worksteal

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(READY)   # ours and others, in turns, in environments of their own; writes docs/benchmarks.md
	$(BIN)/python -m bench

soak: $(READY)    # the tests that run for minutes; SOAK_MINUTES=60 for an hour, SOAK_SEED=… to repeat one
	$(BIN)/pytest -m soak -s

venv: $(READY)

$(READY): pyproject.toml constraints.txt scripts/bootstrap.sh
	scripts/bootstrap.sh $(PYTHON)
	@touch $@

clean:
	rm -rf .venv .bench build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
