"""The optional Redis index in front of a store."""

from perdure.store.redis.store import IndexedStore

__all__ = ["IndexedStore"]
