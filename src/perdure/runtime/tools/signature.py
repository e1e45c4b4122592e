"""What a function takes: its parameters with resolved type hints, and which of them we inject."""

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from perdure.errors import ConfigError
from perdure.runtime.values import Context, File, PendingCall

_SECTION: Final = re.compile(
    r"(args|arguments|parameters|params|keyword args|other parameters|returns?|yields?|raises"
    r"|examples?|notes?|warnings?|attributes|see also|references|todo):?",
    re.IGNORECASE,
)
_PARAMETERS: Final = ("args", "arguments", "parameters", "params", "keyword args")
_FIELD: Final = re.compile(r":(?:param|parameter|arg|argument)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:(.*)")
_GOOGLE: Final = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY: Final = re.compile(r"\*{0,2}(\w+)\s*(?::.*)?")


@dataclass(frozen=True, slots=True)
class Doc:
    """The parts of a docstring that a model sees."""

    summary: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def parse_docstring(text: str | None) -> Doc:
    """Read a docstring in Google, NumPy or reST style; what it does not know it leaves out."""
    lines = (text or "").strip().splitlines()
    found = {**_fields(lines), **_sections(lines)}
    return Doc(_summary(lines), {name: told for name, told in found.items() if told})


def _summary(lines: Sequence[str]) -> str:
    kept: list[str] = []
    for index, line in enumerate(lines):
        if not line.strip() or line.lstrip().startswith(":") or _is_heading(lines, index):
            break
        kept.append(line.strip())
    return " ".join(kept)


def _is_heading(lines: Sequence[str], index: int) -> bool:
    """Whether a section begins: `Args:`, or `Parameters` over a line of dashes."""
    line = lines[index].strip()
    return bool(_SECTION.fullmatch(line)) and (line.endswith(":") or _is_ruled(lines, index))


def _is_ruled(lines: Sequence[str], index: int) -> bool:
    return index + 1 < len(lines) and bool(re.fullmatch(r"\s*-{3,}\s*", lines[index + 1]))


def _fields(lines: Sequence[str]) -> dict[str, str]:
    """`:param x: text`, with what is indented under it."""
    found: dict[str, str] = {}
    for index, line in enumerate(lines):
        if match := _FIELD.match(line.strip()):
            more = _indented(lines[index + 1 :], _indent(line))
            found[match[1]] = " ".join([match[2].strip(), *more]).strip()
    return found


def _sections(lines: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for index, line in enumerate(lines):
        if _is_heading(lines, index) and line.strip(" :").lower() in _PARAMETERS:
            ruled = _is_ruled(lines, index)
            body = _body(lines, index + 2 if ruled else index + 1)
            found.update(_entries(body, _NUMPY if ruled else _GOOGLE))
    return found


def _body(lines: Sequence[str], start: int) -> list[str]:
    """The lines of a section: up to the next heading, or to text left of its first line."""
    body: list[str] = []
    for index in range(start, len(lines)):
        line = lines[index]
        if _is_heading(lines, index):
            break
        if line.strip() and body and _indent(line) < _indent(body[0]):
            break
        if line.strip():
            body.append(line)
    return body


def _entries(body: Sequence[str], head: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    for index, line in enumerate(body):
        match = head.fullmatch(line.strip())
        if _indent(line) == _indent(body[0]) and match:
            first = match[2] if head is _GOOGLE else ""
            more = _indented(body[index + 1 :], _indent(line))
            yield match[1], " ".join([first, *more]).strip()


def _indented(lines: Sequence[str], margin: int) -> Iterator[str]:
    for line in lines:
        if not line.strip() or _indent(line) <= margin:
            return
        yield line.strip()


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


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
