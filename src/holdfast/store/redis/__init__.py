"""The optional Redis index in front of a store."""

from holdfast.store.redis.store import IndexedStore

__all__ = ["IndexedStore"]
