"""Signatures of tools: parameters with resolved type hints and docstrings, and injected ones."""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from perdure.errors import ConfigError
from perdure.runtime.values import Context
from perdure.views.calls import PendingCall
from perdure.views.values import File


@dataclass(frozen=True, slots=True)
class Doc:
    """The parts of a docstring that a model sees."""

    summary: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def parse_docstring(text: str | None) -> Doc:
    """Parse a docstring in Google, NumPy or reST style; other parts are ignored."""
    from docstring_parser import parse  # only tools need it

    docstring = parse(inspect.cleandoc(text or ""))
    summary, *_ = (docstring.description or "").split("\n\n")
    descriptions = {
        name.strip().lstrip("*"): " ".join(parameter.description.split())
        for parameter in docstring.params
        if parameter.description
        for name in parameter.arg_name.split(",")
    }
    return Doc(" ".join(summary.split()), descriptions)


_VARIADIC: Final = inspect.Parameter.VAR_POSITIONAL
_KEYWORDS: Final = inspect.Parameter.VAR_KEYWORD
_NAMES: Final = {"Context": Context, "PendingCall": PendingCall, "File": File}


@dataclass(frozen=True, slots=True)
class ToolParameter:
    """One parameter of a function."""

    name: str
    hint: Any
    default: Any  # inspect.Parameter.empty if there is none
    role: Literal["argument", "extra", "context", "pending"]
    positional: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """Parameters of a function.

    `fixed` are those that a partial has bound already.
    """

    parameters: tuple[ToolParameter, ...]
    fixed: frozenset[str] = frozenset()
    is_unbound_method: bool = False

    @property
    def reserved(self) -> frozenset[str]:
        """Names that a model may not pass, not even within `**extra`."""
        return (
            self.fixed
            | {item.name for item in self.parameters if item.role != "argument"}
            | {"self"}
        )

    @property
    def takes_call(self) -> bool:
        """True if the function gets its context or its pending call."""
        return any(item.role in ("context", "pending") for item in self.parameters)

    def with_role(self, role: str) -> tuple[ToolParameter, ...]:
        """Return the parameters of one role."""
        return tuple(item for item in self.parameters if item.role == role)


def inner_function(call: Callable[..., Any]) -> Any:
    """Return the function inside partials, bound methods, callable objects and wrappers."""
    if isinstance(call, functools.partial):
        return inner_function(call.func)
    if inspect.ismethod(call):
        return inner_function(call.__func__)
    if inspect.isfunction(call) or inspect.isbuiltin(call) or inspect.isclass(call):
        return inspect.unwrap(call)
    return inner_function(type(call).__call__) if _is_object(call) else inspect.unwrap(call)


def read_signature(call: Callable[..., Any], name: str, local: Mapping[str, Any]) -> Signature:
    """Return the parameters of a function. Raises ConfigError if a model could not call it."""
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigError(f"tool {name!r}: its parameters cannot be read: {error}") from error
    needs_self = bool(parameters) and _is_self(parameters[0])
    fixed = call.keywords if isinstance(call, functools.partial) else {}
    free = [item for item in parameters[needs_self:] if item.name not in fixed]
    if variadic := next((item for item in free if item.kind is _VARIADIC), None):
        raise ConfigError(
            f"tool {name!r}: *{variadic.name} has no name for the model; take a list instead"
        )
    hints = _hints(call, free, name, local)
    bound = tuple(_parameter(item, hints.get(item.name, Any)) for item in free)
    return Signature(bound, frozenset(fixed), needs_self)


def deps_type(signature: Signature) -> Any:
    """Return the X of `Context[X]`; None if no parameter states one."""
    for parameter in signature.with_role("context"):
        for part in _alternatives(parameter.hint):
            arguments = typing.get_args(part)
            if arguments and not isinstance(arguments[0], typing.TypeVar):
                return None if arguments[0] is Any else arguments[0]
    return None


def _is_object(call: Any) -> bool:
    return inspect.isfunction(getattr(type(call), "__call__", None))  # noqa: B004 - its function


def _is_self(parameter: inspect.Parameter) -> bool:
    return parameter.name == "self" and parameter.annotation is inspect.Parameter.empty


def _hints(
    call: Callable[..., Any],
    parameters: list[inspect.Parameter],
    name: str,
    local: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the resolved type hints of these parameters; the return type is not resolved."""
    annotations = {
        item.name: item.annotation for item in parameters if item.annotation is not item.empty
    }
    holder = types.SimpleNamespace(__annotations__=annotations)
    scope = getattr(inner_function(call), "__globals__", {})
    try:
        return typing.get_type_hints(holder, scope, include_extras=True)
    except NameError:
        # Names local to the enclosing function, or imported for type checkers only.
        wider = {**_NAMES, **scope, **local}
    except Exception as error:
        raise _unresolved(name, error) from error
    try:
        return typing.get_type_hints(holder, wider, include_extras=True)
    except Exception as error:
        raise _unresolved(name, error) from error


def _unresolved(name: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"tool {name!r}: its type hints cannot be resolved: {error}",
        hint="import the type where the tool is defined, not under TYPE_CHECKING",
    )


def _parameter(parameter: inspect.Parameter, hint: Any) -> ToolParameter:
    return ToolParameter(
        name=parameter.name,
        hint=hint,
        default=parameter.default,
        role="extra" if parameter.kind is _KEYWORDS else _role(hint),
        positional=parameter.kind is inspect.Parameter.POSITIONAL_ONLY,
    )


def _role(hint: Any) -> Literal["argument", "context", "pending"]:
    for part in _alternatives(hint):
        kind = typing.get_origin(part) or part
        if kind is Context:
            return "context"
        if kind is PendingCall:
            return "pending"
    return "argument"


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union, without Annotated; a plain hint is its only member."""
    if typing.get_origin(hint) is typing.Annotated:
        return _alternatives(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)
