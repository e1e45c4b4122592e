"""Wires store, agents and engine together; the only room that picks classes."""

from perdure.app.behind import is_open, leave_driving, reachable_at, service_of, tenant_of
from perdure.app.runtime import Runtime
from perdure.app.stores import around_store, open_store

__all__ = [
    "Runtime",
    "around_store",
    "is_open",
    "leave_driving",
    "open_store",
    "reachable_at",
    "service_of",
    "tenant_of",
]
