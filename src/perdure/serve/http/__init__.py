"""The HTTP API: the application, its middleware and the values that its routes share."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.serve.http.app import asgi

__all__ = ["asgi"]


def __getattr__(name: str) -> Any:
    """Import `asgi` when it is first used."""
    if name != "asgi":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from perdure.serve.http.app import asgi

    return asgi
