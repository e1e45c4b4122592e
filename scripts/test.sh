#!/bin/sh
# Runs every test. `make test` calls it after the linters, and `.ci/run` too: it needs the exit code of
# pytest, and make has one of its own.
set -eu
cd "$(dirname "$0")/.."

# One more than there are cores: many tests wait for a lease to expire or a process to start.
at_once=${TESTS_AT_ONCE:-$(($(getconf _NPROCESSORS_ONLN) + 1))}
# The tests start Python hundreds of times, so compiled modules are kept.
unset PYTHONDONTWRITEBYTECODE
exec .venv/bin/pytest -q -n "$at_once" --dist worksteal
