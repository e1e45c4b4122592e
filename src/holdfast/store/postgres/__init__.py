"""The PostgreSQL backend."""

from holdfast.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
