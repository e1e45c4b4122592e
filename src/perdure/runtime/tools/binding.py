"""From a function to what a model may call: its name, its description, its arguments."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any

from perdure.errors import ConfigError
from perdure.runtime.tools.arguments import Arguments
from perdure.runtime.tools.signature import Signature, function_of, parse_docstring, signature_of


@dataclass(frozen=True, slots=True)
class Binding:
    """How JSON arguments become a call of one function."""

    function: Callable[..., Any]
    signature: Signature
    arguments: Arguments
    description: str

    def of_object(self, instance: object) -> "Binding":
        """The same, for a method that now has its object."""
        signature = replace(self.signature, needs_self=False)
        return replace(self, function=MethodType(self.function, instance), signature=signature)


def bind(
    function: Callable[..., Any], name: str, around: Mapping[str, Any] | None = None
) -> Binding:
    """Read what a function takes; ConfigError if a model could not call it.

    `around` are names that its type hints may mean besides those of its module.
    """
    from perdure.runtime.tools.schema import arguments_of  # loads pydantic

    if inspect.isclass(function) or not callable(function):
        raise ConfigError(f"{function!r} is not a function and cannot be a tool")
    under = function_of(function)
    if inspect.isgeneratorfunction(under) or inspect.isasyncgenfunction(under):
        raise ConfigError(f"tool {name!r} is a generator; return a list instead")
    doc = parse_docstring(_doc_of(function))
    signature = signature_of(function, name, around or {})
    return Binding(function, signature, arguments_of(signature, doc, name), doc.summary)


def name_of(function: Any) -> str:
    """The name under which a model calls a function; ConfigError where it has none."""
    if isinstance(function, functools.partial):
        return name_of(function.func)
    name: str = getattr(function, "__name__", type(function).__name__)
    if name == "<lambda>":
        raise ConfigError(
            "a lambda has no name that a model could call", hint="use def, or tool(…, name=…)"
        )
    return name


def _doc_of(function: Any) -> str | None:
    """The docstring of the function, or that of the class of a callable object."""
    if isinstance(function, functools.partial):
        return _doc_of(function.func)
    if inspect.isroutine(function):
        return inspect.getdoc(function_of(function))
    own = function_of(function).__doc__
    return inspect.cleandoc(own) if own else inspect.getdoc(type(function))
