"""Binding of a function to what a model calls: a name, a description and arguments."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MethodType
from typing import TYPE_CHECKING, Any

from perdure.errors import ConfigError
from perdure.runtime.tools.signature import (
    Signature,
    inner_function,
    parse_docstring,
    read_signature,
)

if TYPE_CHECKING:
    from perdure.runtime.tools.schema import FunctionArguments  # loads pydantic


@dataclass(frozen=True, slots=True)
class Binding:
    """A function with what is needed to call it with JSON arguments."""

    function: Callable[..., Any]
    signature: Signature
    arguments: "FunctionArguments"
    description: str

    def bind_instance(self, instance: object) -> "Binding":
        """Return the binding of a method for one object."""
        signature = replace(self.signature, is_unbound_method=False)
        return replace(self, function=MethodType(self.function, instance), signature=signature)


def bind(
    function: Callable[..., Any], name: str, local_names: Mapping[str, Any] | None = None
) -> Binding:
    """Return the binding of a function. Raises ConfigError if a model could not call it.

    Its type hints may refer to `local_names` besides the names of its module.
    """
    from perdure.runtime.tools.schema import build_arguments  # loads pydantic

    if inspect.isclass(function) or not callable(function):
        raise ConfigError(f"{function!r} is not a function and cannot be a tool")
    inner = inner_function(function)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise ConfigError(f"tool {name!r} is a generator; return a list instead")
    doc = parse_docstring(_docstring(function))
    signature = read_signature(function, name, local_names or {})
    return Binding(function, signature, build_arguments(signature, doc, name), doc.summary)


def tool_name(function: Any) -> str:
    """Return the name under which a model calls a function. Raises ConfigError if it has none."""
    if isinstance(function, functools.partial):
        return tool_name(function.func)
    name: str = getattr(function, "__name__", type(function).__name__)
    if name == "<lambda>":
        raise ConfigError(
            "a lambda has no name that a model could call", hint="use def, or tool(…, name=…)"
        )
    return name


def _docstring(function: Any) -> str | None:
    """Return the docstring of the function, or of the class of a callable object."""
    if isinstance(function, functools.partial):
        return _docstring(function.func)
    if inspect.isroutine(function):
        return inspect.getdoc(inner_function(function))
    docstring = inner_function(function).__doc__
    return inspect.cleandoc(docstring) if docstring else inspect.getdoc(type(function))
