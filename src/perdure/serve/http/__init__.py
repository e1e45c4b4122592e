"""The HTTP API: the application, its middleware and the values that its routes share."""

from importlib import import_module
from typing import Any

__all__ = ["asgi"]


def __getattr__(name: str) -> Any:
    """Find `asgi` when it is first used: this public path is older than its module."""
    if name != "asgi":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("perdure.serve.assembly").asgi
