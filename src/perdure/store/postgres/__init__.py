"""The PostgreSQL backend: one database that any number of processes and machines share."""

from perdure.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
