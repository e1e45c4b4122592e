# Needs python3 (3.11 or newer) and make. Everything else is installed into .venv, in pinned versions.
PYTHON ?= python3
BIN := .venv/bin
# The package with its own dependencies; and also the development tools and the servers that tests use.
INSTALLED := .venv/.installed
READY := .venv/.ready

# The tests start Python hundreds of times, so compiled modules are kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint docs bench conformance clients soak simulate venv clean
.DEFAULT_GOAL := test

demo: $(INSTALLED)   # plays the demo without waiting for Enter
	$(BIN)/perdure demo --auto

test: lint           # everything that a change must pass; TESTS_AT_ONCE=1 for one test at a time
	scripts/test.sh

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m scripts.docs --check

docs: $(READY)       # writes docs/reference/ and docs/promises.md
	$(BIN)/python -m scripts.docs

bench: $(READY)      # measures perdure and others in turns, in separate environments; writes docs/benchmarks.md
	$(BIN)/python -m bench

conformance: $(READY) # the MCP conformance suite, which npm installs at the first run, and the HTTP API against its description
	$(BIN)/pytest -q -m "not soak and not clients" tests/serve/mcp/test_conformance.py tests/serve/http/test_openapi.py

clients: $(READY)    # Claude Code, opencode and Codex against our MCP server; npm installs them (1 GB) at the first run
	$(BIN)/pytest -q -m clients tests/serve/mcp/test_clients.py

soak: $(READY)       # tests that run for minutes; SOAK_MINUTES=60 for an hour, SOAK_SEED=… to repeat a run
	$(BIN)/pytest -m soak -s

simulate: $(READY)   # the simulated fleet: SEEDS=20000 FIRST=1000 for a long run, SEED=17 for every step of one
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000) --first $(or $(FIRST),0))

venv: $(READY)

$(INSTALLED): pyproject.toml constraints.txt scripts/bootstrap.sh
	scripts/bootstrap.sh $(PYTHON) package
	@touch $@

$(READY): pyproject.toml constraints.txt scripts/bootstrap.sh
	scripts/bootstrap.sh $(PYTHON) dev
	@touch $(INSTALLED) $@

clean:
	rm -rf .venv .bench build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
