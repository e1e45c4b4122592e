"""The PostgreSQL backend."""

from perdure.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
