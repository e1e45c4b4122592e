"""Commits about background agents that have lost an entry end in an error, not in a loop."""

import pytest

from perdure.errors import Corrupt
from perdure.runtime.inbox.children import MOST_REFUSALS, Refusals
from perdure.store.base import Entry, VersionMoved


def entry(version: int) -> Entry:
    return Entry("task", "k", "s//p", version, "running", None, b"{}")


def test_commits_that_are_refused_again_and_again_for_the_same_version_end_in_an_error() -> None:
    """G9"""
    refusals, error = Refusals(), VersionMoved("another entry")
    for version in range(3 * MOST_REFUSALS):  # others are faster: it is tried again
        refusals.count(entry(version), error)
    for _ in range(MOST_REFUSALS - 1):
        refusals.count(entry(7), error)
    with pytest.raises(Corrupt, match="is missing"):
        refusals.count(entry(7), error)
