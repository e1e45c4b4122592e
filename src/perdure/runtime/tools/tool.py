"""Tools: a function that a model may call, with the rules for calling it.

`@tool` reads the schema from type hints and docstring; `Tool(...)` takes one from elsewhere.
"""

import hashlib
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import EllipsisType
from typing import (
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    ParamSpec,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
    overload,
)

from perdure.core.json_values import problems
from perdure.core.log.redaction import secret_arguments
from perdure.errors import ConfigError, Refused
from perdure.runtime.tools.arguments import invalid, json_text
from perdure.runtime.tools.binding import Binding, bind, name_of
from perdure.runtime.tools.signature import Signature, deps_type_of
from perdure.runtime.values import Context, Duration, Kind, parse_duration

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")

OnCrash = Literal["tell", "retry", "ask"]
Approval = bool | Callable[[Context], bool | Awaitable[bool]]

DEFERRED_TIMEOUT_MS: Final = 86_400_000
ASYNCHRONOUS: Final = (
    "This tool is asynchronous: it starts work elsewhere, and its result arrives later."
)
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Tool(Generic[P, R]):
    """What a model may call. Vary one with `dataclasses.replace`; call it as the function it is.

    Made directly, with a schema of your own in `parameters`, `run` takes the Context and reads
    `ctx.args`.
    """

    run: Callable[P, R]
    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)
    requires_approval: Approval = False
    approval_prompt: str | None = None
    approval_timeout: Duration | None = None
    deferred: bool = False
    timeout: Duration | EllipsisType | None = ...
    idempotent: bool = False
    on_crash: OnCrash | None = None
    validate_result: Callable[[str], bool] | None = None
    aliases: Sequence[str] = ()
    redact: Sequence[str] = ()
    kind: Kind | None = None  # of the wait that the runtime itself makes of a built-in
    _binding: Binding | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_names(self)
        _check_options(self)
        _set(self, aliases=tuple(self.aliases), description=_marked(self))
        _set(self, redact=tuple(self.redact))
        if self._binding is None:
            _set(self, parameters=_checked_schema(self))
        elif self._binding.function != self.run:  # replace(tool, run=…)
            _set(self, _binding=bind(self.run, self.name))
        _check_pending(self)
        _check_redact(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself: no validation, no approval, nothing recorded."""
        return self.run(*args, **kwargs)

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(
        self: "Tool[Concatenate[Any, Q], R]", instance: object, owner: type | None = None
    ) -> "Tool[Q, R]": ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Self: ...
    def __get__(self, instance: object, owner: type | None = None) -> "Tool[..., Any]":
        """A tool in a class body is a method: `shop.refund` is the tool of that shop."""
        if instance is None or self._binding is None or not self.needs_self:
            return self
        binding = self._binding.of_object(instance)
        return replace(self, run=binding.function, _binding=binding)

    @property
    def needs_self(self) -> bool:
        """Whether it is a method that has no object yet."""
        return self.signature is not None and self.signature.needs_self

    @property
    def signature(self) -> Signature | None:
        """What the function takes; None where `run` takes the Context."""
        return None if self._binding is None else self._binding.signature

    @property
    def timeout_ms(self) -> int | None:
        """Until the result is due (deferred), else how long it may run; None is for ever."""
        if isinstance(self.timeout, EllipsisType):
            return DEFERRED_TIMEOUT_MS if self.deferred else None
        return None if self.timeout is None else parse_duration(self.timeout) or None

    @property
    def approval_timeout_ms(self) -> int | None:
        """How long an approval may take; None is for ever."""
        limit = self.approval_timeout
        return None if limit is None else parse_duration(limit) or None

    @property
    def crash_policy(self) -> OnCrash:
        """What becomes of a call that a crash interrupted."""
        return self.on_crash or ("retry" if self.idempotent else "tell")

    @cached_property
    def hidden(self) -> frozenset[str]:
        """The arguments that are shown to nobody: named in `redact`, or typed as a secret."""
        return secret_arguments(self.parameters) | frozenset(self.redact)

    @property
    def deps_type(self) -> Any:
        """The X of its `Context[X]`; None where it states none."""
        return None if self.signature is None else deps_type_of(self.signature)

    @property
    def digest(self) -> str:
        """Changes when what the model sees of the tool changes, and only then."""
        seen = [self.name, self.description, self.parameters, self.deferred]
        text = json.dumps(seen, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def validate(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the function will understand them, still JSON: with defaults, coerced.

        Refused ARGS_INVALID names each wrong one, in a line that can be told to the model.
        """
        if self._binding is not None:
            return self._binding.arguments.plain(args)
        plain: dict[str, Any] = json.loads(json_text(args))
        if wrong := problems(plain, self.parameters):
            raise invalid(wrong)
        return plain

    def typed(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as typed values, by parameter name; as they are, where `run` reads them."""
        if self._binding is None:
            return self.validate(args)
        return self._binding.arguments.typed(args)


class ToolOptions(TypedDict, total=False):
    """The options of `tool`, for type checkers."""

    name: str | None
    description: str | None
    requires_approval: Approval
    approval_prompt: str | None
    approval_timeout: Duration | None
    deferred: bool
    timeout: Duration | EllipsisType | None
    idempotent: bool
    on_crash: OnCrash | None
    validate_result: Callable[[str], bool] | None
    aliases: Sequence[str]
    redact: Sequence[str]


@overload
def tool(function: Callable[P, R], /, **options: Unpack[ToolOptions]) -> Tool[P, R]: ...
@overload
def tool(
    function: None = None, /, **options: Unpack[ToolOptions]
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(  # noqa: PLR0913 - the options of a tool, each said once
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    requires_approval: Approval = False,
    approval_prompt: str | None = None,
    approval_timeout: Duration | None = None,
    deferred: bool = False,
    timeout: Duration | EllipsisType | None = ...,
    idempotent: bool = False,
    on_crash: OnCrash | None = None,
    validate_result: Callable[[str], bool] | None = None,
    aliases: Sequence[str] = (),
    redact: Sequence[str] = (),
) -> Any:
    """Make a tool of a function: its type hints and docstring are the schema.

    `requires_approval`: True, or a predicate on the Context, asked once; raising means: ask.
    `approval_prompt`: text with `{tool}` and `{input}`. `approval_timeout`: None is no deadline.
    `deferred`: the function only starts work elsewhere; its result is posted later.
    `timeout`: deferred, until the result is due, 24 h if not given, None never; else how long the
    function may run. `idempotent`: a repeat with the same `effect_id` does no harm.
    `on_crash`: None is retry if idempotent, else tell. `validate_result`: of deferred results;
    False or raising refuses one. `aliases`: former names; calls recorded under them still run.
    """
    options: dict[str, Any] = {
        "requires_approval": requires_approval,
        "approval_prompt": approval_prompt,
        "approval_timeout": approval_timeout,
        "deferred": deferred,
        "timeout": timeout,
        "idempotent": idempotent,
        "on_crash": on_crash,
        "validate_result": validate_result,
        "aliases": aliases,
        "redact": redact,
    }
    around = _locals_of_caller()

    def decorate(function: Callable[..., Any]) -> Tool[..., Any]:
        if isinstance(function, Tool):
            raise ConfigError(
                f"{function.name!r} is a tool already", hint="vary it with dataclasses.replace"
            )
        named = name or name_of(function)
        binding = bind(function, named, around)
        told = binding.description if description is None else description
        schema = binding.arguments.schema()
        return Tool(function, named, told, schema, **options, _binding=binding)

    return decorate if function is None else decorate(function)


def as_tool(item: Any) -> Tool[..., Any]:
    """A Tool as it is, a plain function as `@tool` would make it; ConfigError for anything else."""
    if isinstance(item, Tool):
        if item.needs_self:
            raise ConfigError(
                f"tool {item.name!r} is a method without its object",
                hint=f"give it as instance.{item.name}",
            )
        return item
    made: Tool[..., Any] = tool(item)
    return made


def _locals_of_caller() -> Mapping[str, Any]:
    """The names where `tool` is used: a type hint as text may mean one of them."""
    frame = inspect.currentframe()
    caller = frame and frame.f_back and frame.f_back.f_back
    if caller is None:
        return {}
    if "__qualname__" in caller.f_locals and caller.f_back:  # a class body, in something else
        return {**caller.f_back.f_locals, **caller.f_locals}
    return caller.f_locals


def _set(made: Tool[..., Any], **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(made, name, value)


def _marked(made: Tool[..., Any]) -> str:
    """The description, which says so if and only if the tool is deferred."""
    plain = made.description.replace(ASYNCHRONOUS, "").strip()
    return f"{plain} {ASYNCHRONOUS}".strip() if made.deferred else plain


def _check_names(made: Tool[..., Any]) -> None:
    for option in ("aliases", "redact"):
        if isinstance(getattr(made, option), str):
            raise ConfigError(f"tool {made.name!r}: {option} must be a list of names")
    for name in (made.name, *made.aliases):
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(
                f"{name!r} is not a name for a tool",
                hint="1 to 64 letters, digits, _ and - are",
            )


def _check_options(made: Tool[..., Any]) -> None:
    if made.on_crash not in (None, *get_args(OnCrash)):
        raise ConfigError(
            f"tool {made.name!r}: on_crash is {made.on_crash!r}, not tell, retry or ask"
        )
    if made.on_crash == "retry" and not made.idempotent:
        raise ConfigError(
            f"tool {made.name!r}: on_crash='retry' needs idempotent=True",
            hint="say idempotent=True only if a repeat with the same effect_id does no harm",
        )
    if inspect.iscoroutinefunction(made.validate_result):
        raise ConfigError(f"tool {made.name!r}: validate_result must be a plain function")
    if not isinstance(made.requires_approval, bool) and not callable(made.requires_approval):
        raise ConfigError(f"tool {made.name!r}: requires_approval must be a bool or a function")
    try:
        _ = made.timeout_ms, made.approval_timeout_ms
    except Refused as error:
        raise ConfigError(f"tool {made.name!r}: {error.message}", hint=error.hint) from error


def _checked_schema(made: Tool[..., Any]) -> dict[str, Any]:
    """A schema from elsewhere, made to say that it is an object."""
    schema = made.parameters
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise ConfigError(f"tool {made.name!r}: parameters must be the JSON schema of an object")
    return {"type": "object", "properties": {}, **schema}


def _check_redact(made: Tool[..., Any]) -> None:
    known = made.parameters.get("properties", {})
    strange = sorted(set(made.redact) - set(known))
    if strange and not made.parameters.get("additionalProperties"):
        raise ConfigError(
            f"tool {made.name!r}: redact names {strange[0]!r}, which is none of its arguments",
            hint=f"its arguments are {', '.join(known) or 'none'}",
        )


def _check_pending(made: Tool[..., Any]) -> None:
    if made.deferred or made.signature is None:
        return
    for taken in made.signature.of("pending"):
        if taken.default is not None:
            raise ConfigError(
                f"tool {made.name!r} is not deferred: {taken.name} needs the default None",
                hint="say deferred=True if its result comes later",
            )
