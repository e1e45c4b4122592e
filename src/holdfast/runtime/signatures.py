"""What a function takes: its parameters with resolved type hints, and which of them we inject."""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from holdfast.errors import ConfigError
from holdfast.runtime.values import Context, File, PendingCall

_VARIADIC: Final = inspect.Parameter.VAR_POSITIONAL
_KEYWORDS: Final = inspect.Parameter.VAR_KEYWORD
_NAMES: Final = {"Context": Context, "PendingCall": PendingCall, "File": File}


@dataclass(frozen=True, slots=True)
class Taken:
    """One parameter of a function."""

    name: str
    hint: Any
    default: Any  # inspect.Parameter.empty if there is none
    how: Literal["argument", "extra", "context", "pending"]
    positional: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """What a function takes.

    `fixed` are given already, by a partial; `needs_self`: it is a method without its object.
    """

    taken: tuple[Taken, ...]
    fixed: frozenset[str] = frozenset()
    needs_self: bool = False

    @property
    def reserved(self) -> frozenset[str]:
        """Names that a model may not give, not even as one of `**extra`."""
        return self.fixed | {one.name for one in self.taken if one.how != "argument"} | {"self"}

    def of(self, how: str) -> tuple[Taken, ...]:
        """The parameters of one sort."""
        return tuple(taken for taken in self.taken if taken.how == how)


def function_of(call: Callable[..., Any]) -> Any:
    """The function under partials, bound methods, callable objects and `functools.wraps`."""
    if isinstance(call, functools.partial):
        return function_of(call.func)
    if inspect.ismethod(call):
        return function_of(call.__func__)
    if inspect.isfunction(call) or inspect.isbuiltin(call) or inspect.isclass(call):
        return inspect.unwrap(call)
    return function_of(type(call).__call__) if _is_object(call) else inspect.unwrap(call)


def signature_of(call: Callable[..., Any], name: str, local: Mapping[str, Any]) -> Signature:
    """The parameters of a function; ConfigError if a model could not call it."""
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigError(f"tool {name!r}: its parameters cannot be read: {error}") from error
    needs_self = bool(parameters) and _is_self(parameters[0])
    fixed = call.keywords if isinstance(call, functools.partial) else {}
    wanted = [one for one in parameters[needs_self:] if one.name not in fixed]
    if variadic := next((one for one in wanted if one.kind is _VARIADIC), None):
        raise ConfigError(
            f"tool {name!r}: *{variadic.name} has no name for the model; take a list instead"
        )
    hints = _hints(call, wanted, name, local)
    taken = tuple(_taken(one, hints.get(one.name, Any)) for one in wanted)
    return Signature(taken, frozenset(fixed), needs_self)


def deps_type_of(signature: Signature) -> Any:
    """The X of `Context[X]`; None where no parameter states one."""
    for taken in signature.of("context"):
        for part in _alternatives(taken.hint):
            stated = typing.get_args(part)
            if stated and not isinstance(stated[0], typing.TypeVar):
                return None if stated[0] is Any else stated[0]
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
    """Resolved type hints of these parameters; what the function returns is not looked at."""
    stated = {one.name: one.annotation for one in parameters if one.annotation is not one.empty}
    holder = types.SimpleNamespace(__annotations__=stated)
    scope = getattr(function_of(call), "__globals__", {})
    try:
        return typing.get_type_hints(holder, scope, include_extras=True)
    except NameError:
        # Names of the function around the tool, or imported for type checkers only.
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


def _taken(parameter: inspect.Parameter, hint: Any) -> Taken:
    return Taken(
        name=parameter.name,
        hint=hint,
        default=parameter.default,
        how="extra" if parameter.kind is _KEYWORDS else _how(hint),
        positional=parameter.kind is inspect.Parameter.POSITIONAL_ONLY,
    )


def _how(hint: Any) -> Literal["argument", "context", "pending"]:
    for part in _alternatives(hint):
        kind = typing.get_origin(part) or part
        if kind is Context:
            return "context"
        if kind is PendingCall:
            return "pending"
    return "argument"


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """The members of a union, without what Annotated adds; a plain hint is its only member."""
    if typing.get_origin(hint) is typing.Annotated:
        return _alternatives(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)
