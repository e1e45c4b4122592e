"""The optional index of pending calls in Redis, in front of another store."""

from perdure.store.redis.store import IndexedStore

__all__ = ["IndexedStore"]
