"""Fixtures of the tests of the PostgreSQL backend."""

import pytest

from perdure.store.postgres.store import PostgresStore


@pytest.fixture
def store(postgres_store: PostgresStore) -> PostgresStore:
    """Open store on an empty database."""
    return postgres_store
