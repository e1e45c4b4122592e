"""Servers for other programs and for people, one package per protocol, all on the service."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.serve.http.errors import error_response

__all__ = ["error_response"]


def __getattr__(name: str) -> Any:
    """Find `error_response` when it is first used: it loads Starlette."""
    if name != "error_response":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("perdure.serve.http.errors").error_response
