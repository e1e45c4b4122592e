"""Wires store, agents and engine together; the only room that picks classes."""

from holdfast.app.runtime import Runtime
from holdfast.app.stores import around_store, open_store

__all__ = ["Runtime", "around_store", "open_store"]
