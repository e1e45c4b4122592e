"""Python environments for programs that cannot share ours, made as those of the benchmarks."""

import os

import pytest
from bench.envs import ensure_python
from tests.servers.fixtures import NOT_TESTED


def python_of(env: str, title: str) -> str:
    """Return the interpreter of an environment of `bench.envs`; skip loudly without it."""
    python = ensure_python(env)
    if python is None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{title} cannot be installed, and in CI nothing may be skipped", False)
        pytest.skip(f"{NOT_TESTED}{title}: its environment cannot be installed")
    return python
