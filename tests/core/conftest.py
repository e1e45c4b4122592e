"""Hypothesis profile of the core tests: the same examples in every run."""

from hypothesis import settings

settings.register_profile("core", max_examples=60, deadline=None, derandomize=True)
settings.load_profile("core")
