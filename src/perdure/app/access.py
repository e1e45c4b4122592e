"""Access to the parts of a Runtime for the other packages of perdure; not a public API."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from perdure.app.runtime import Runtime
from perdure.app.stores import store_id
from perdure.runtime.sessions.service import Service
from perdure.store.base import Store


def service_of(rt: Runtime) -> Service:
    """Return the service that entry points use."""
    return rt._service  # noqa: SLF001 - the one module that reads private fields of a Runtime


def tenant_of(rt: Runtime) -> str | None:
    """Return the tenant that a runtime is scoped to; None if it sees all."""
    return rt._caller.tenant  # noqa: SLF001


def is_open(rt: Runtime) -> bool:
    """Report whether a runtime is open."""
    return rt._stack is not None  # noqa: SLF001


def store_of(rt: Runtime) -> Store:
    """Return the store, for code that inspects, counts or copies all of it."""
    return rt._resources.store  # noqa: SLF001


def store_id_of(rt: Runtime) -> str:
    """Return the id of the store, which reveals nothing about it."""
    return store_id(store_of(rt))


def untracked(rt: Runtime) -> Runtime:
    """Return a runtime on the same store that refuses approvals: its sessions are not stored."""
    return rt._with_options(replace(rt._options, is_tracked=False))  # noqa: SLF001


@asynccontextmanager
async def open_without_worker(rt: Runtime) -> AsyncIterator[Runtime]:
    """Open a runtime whose sessions the caller drives, even if it was created with a worker."""
    await rt._open(worker=False)  # noqa: SLF001
    try:
        yield rt
    finally:
        await rt.__aexit__(None, None, None)
