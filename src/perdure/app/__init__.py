"""The Runtime, which assembles store, agents and engine; the only package that picks classes."""

from perdure.app.access import (
    is_open,
    open_without_worker,
    service_of,
    store_id_of,
    store_of,
    tenant_of,
    untracked,
)
from perdure.app.options import serving_at
from perdure.app.runtime import Runtime
from perdure.app.stores import around_store, open_store, store_id

__all__ = [
    "Runtime",
    "around_store",
    "is_open",
    "open_store",
    "open_without_worker",
    "service_of",
    "serving_at",
    "store_id",
    "store_id_of",
    "store_of",
    "tenant_of",
    "untracked",
]
