"""Tools: a function that a model may call, with the options for calling it.

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
    ParamSpec,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
    overload,
)

from perdure.core.json_values import schema_problems
from perdure.core.log.redaction import secret_arguments
from perdure.core.pending.record import PendingResult
from perdure.core.text import did_you_mean
from perdure.errors import ConfigError, Refused
from perdure.runtime.tools.approval import Approval, ApprovalPredicate
from perdure.runtime.tools.arguments import invalid_arguments, json_text
from perdure.runtime.tools.binding import Binding, bind, tool_name
from perdure.runtime.tools.signature import Signature, deps_type
from perdure.views.literals import CallKind, OnCrash
from perdure.views.values import Duration, parse_duration

__all__ = ["Tool", "ToolOptions", "tool"]

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")

DEFERRED_TIMEOUT_MS: Final = 86_400_000
ASYNCHRONOUS: Final = (
    "This tool is asynchronous: it starts work elsewhere, and its result arrives later."
)
EXTERNAL: Final = (
    "This tool is asynchronous: its work is done elsewhere, and its result arrives later."
)
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Tool(Generic[P, R]):
    """A tool that a model may call. Vary it with `dataclasses.replace`; call it like the function.

    Constructed directly, with your own schema in `parameters`, `run` takes the Context and reads
    `ctx.args`. perdure never calls the `run` of an external tool.
    """

    run: Callable[P, R]
    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)
    requires_approval: bool | ApprovalPredicate | Approval = False
    approval_prompt: str | None = None
    deferred: bool = False
    external: bool = False  # also sets `deferred`
    timeout: Duration | EllipsisType | None = ...
    idempotent: bool = False
    on_crash: OnCrash | None = None
    validate_result: Callable[[PendingResult], bool | Awaitable[bool]] | None = None
    aliases: Sequence[str] = ()
    redact: Sequence[str] = ()
    kind: CallKind | None = None  # of the pending call that a built-in tool becomes
    _binding: Binding | None = field(default=None, repr=False, compare=False)
    # Of a built-in tool: raises Refused with a text of its own, before the schema is applied.
    _check: Callable[[Mapping[str, Any]], None] | None = field(
        default=None, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        _check_names(self)
        _set(self, deferred=self.deferred or self.external)
        _check_options(self)
        _set(self, aliases=tuple(self.aliases), description=_description(self))
        _set(self, redact=tuple(self.redact))
        if self._binding is None:
            _set(self, parameters=_checked_schema(self))
        elif self._binding.function != self.run:  # replace(tool, run=…)
            _set(self, _binding=bind(self.run, self.name))
        _check_pending(self)
        _check_external(self)
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
        """Return the tool bound to an object: `shop.refund` is the tool of that shop."""
        if instance is None or self._binding is None or not self.is_unbound_method:
            return self
        binding = self._binding.bind_instance(instance)
        return replace(self, run=binding.function, _binding=binding)

    @property
    def is_unbound_method(self) -> bool:
        """True if it is a method that is not bound to an object."""
        return self._binding is not None and self._binding.signature.is_unbound_method

    @property
    def timeout_ms(self) -> int | None:
        """Time until the result is due (deferred), else the running time; None is no limit."""
        if isinstance(self.timeout, EllipsisType):
            return DEFERRED_TIMEOUT_MS if self.deferred else None
        return None if self.timeout is None else parse_duration(self.timeout) or None

    @cached_property
    def approval(self) -> Approval:
        """When its calls require approval, and the conditions of a decision about them."""
        choice = self.requires_approval
        return choice if isinstance(choice, Approval) else Approval(choice)

    @property
    def crash_policy(self) -> OnCrash:
        """Treatment of a call that a crash interrupted."""
        return self.on_crash or ("retry" if self.idempotent else "tell")

    @cached_property
    def hidden_arguments(self) -> frozenset[str]:
        """Names of the secret arguments: listed in `redact`, or of a secret type."""
        return secret_arguments(self.parameters) | frozenset(self.redact)

    @property
    def deps_type(self) -> Any:
        """The X of its `Context[X]`; None if it states none."""
        return None if self._binding is None else deps_type(self._binding.signature)

    @property
    def digest(self) -> str:
        """Hash of what the model sees of the tool."""
        visible = [self.name, self.description, self.parameters, self.deferred]
        text = json.dumps(visible, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def validate(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as the function receives them, still JSON: coerced, with defaults.

        Raises Refused ARGS_INVALID, which names each invalid argument in a line for the model.
        """
        if self._binding is not None:
            return self._binding.arguments.json_values(args)
        plain: dict[str, Any] = json.loads(json_text(args))
        if self._check is not None:
            self._check(plain)
        if problems := schema_problems(plain, self.parameters):
            raise invalid_arguments(problems)
        return plain

    def typed_values(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return typed values by parameter name, or the plain arguments if `run` reads them."""
        if self._binding is None:
            return self.validate(args)
        return self._binding.arguments.typed_values(args)


class ToolOptions(TypedDict, total=False):
    """Options of `tool`; the other defaults are those of `Tool`."""

    name: str | None  # default: the name of the function
    description: str | None  # default: the docstring of the function
    requires_approval: bool | ApprovalPredicate | Approval
    approval_prompt: str | None
    deferred: bool
    external: bool
    timeout: Duration | EllipsisType | None
    idempotent: bool
    on_crash: OnCrash | None
    validate_result: Callable[[PendingResult], bool | Awaitable[bool]] | None
    aliases: Sequence[str]
    redact: Sequence[str]


@overload
def tool(function: Callable[P, R], /, **options: Unpack[ToolOptions]) -> Tool[P, R]: ...
@overload
def tool(
    function: None = None, /, **options: Unpack[ToolOptions]
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Unpack[ToolOptions]) -> Any:
    """Make a tool of a function: its type hints and docstring are the schema.

    `requires_approval`: True, a predicate on the Context, or an `Approval`, which also says who
    approves. `approval_prompt`: text with `{tool}`, `{input}` and `{input.NAME}`. `deferred`: the
    function only starts work elsewhere; its result is submitted later. `external`: like
    `deferred`, but there is nothing to start, and perdure never calls the function; a program or a
    person that reads the pending calls does the work and submits the result. It implies
    `deferred`. `timeout`: for a deferred tool, until the result is due, 24 h by default, None for
    no deadline; otherwise the running time. `idempotent`: a repeat with the same `effect_id` does
    no harm. `on_crash`: None is retry if idempotent, else tell. `validate_result`: for deferred
    results; False or raising refuses one. `aliases`: former names; calls recorded under them still
    run. `redact`: arguments that are shown nowhere.
    """
    for option in options:
        if option not in ToolOptions.__annotations__:
            similar = did_you_mean(option, ToolOptions.__annotations__)
            raise TypeError(f"tool() has no option {option!r}{similar}")
    of_tool: dict[str, Any] = {**options}
    name, description = of_tool.pop("name", None), of_tool.pop("description", None)
    local_names = _locals_of_caller()

    def decorate(function: Callable[..., Any]) -> Tool[..., Any]:
        if isinstance(function, Tool):
            raise ConfigError(
                f"{function.name!r} is already a tool", hint="vary it with dataclasses.replace"
            )
        own_name = name or tool_name(function)
        binding = bind(function, own_name, local_names)
        text = binding.description if description is None else description
        schema = binding.arguments.schema()
        return Tool(function, own_name, text, schema, **of_tool, _binding=binding)

    return decorate if function is None else decorate(function)


def signature_of(item: Tool[..., Any]) -> Signature | None:
    """Return the parameters of the function of a tool; None if `run` takes the Context."""
    binding = item._binding  # noqa: SLF001 - of a class of this module
    return None if binding is None else binding.signature


def as_tool(item: Any) -> Tool[..., Any]:
    """Return a Tool unchanged, a plain function as a Tool. Raises ConfigError for anything else."""
    if isinstance(item, Tool):
        if item.is_unbound_method:
            raise ConfigError(
                f"tool {item.name!r} is a method that is not bound to an object",
                hint=f"pass it as instance.{item.name}",
            )
        return item
    result: Tool[..., Any] = tool(item)
    return result


def _locals_of_caller() -> Mapping[str, Any]:
    """Return the local names where `tool` is used: a type hint as text may refer to them."""
    frame = inspect.currentframe()
    caller = frame and frame.f_back and frame.f_back.f_back
    if caller is None:
        return {}
    if "__qualname__" in caller.f_locals and caller.f_back:  # a class body within a function
        return {**caller.f_back.f_locals, **caller.f_locals}
    return caller.f_locals


def _set(target: Tool[..., Any], **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(target, name, value)


def _description(target: Tool[..., Any]) -> str:
    """Return the description, which mentions asynchronous work exactly if the tool is deferred."""
    plain = target.description.replace(ASYNCHRONOUS, "").replace(EXTERNAL, "").strip()
    if not target.deferred:
        return plain
    return f"{plain} {EXTERNAL if target.external else ASYNCHRONOUS}".strip()


def _check_names(target: Tool[..., Any]) -> None:
    for option in ("aliases", "redact"):
        if isinstance(getattr(target, option), str):
            raise ConfigError(f"tool {target.name!r}: {option} must be a list of names")
    for name in (target.name, *target.aliases):
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(
                f"{name!r} cannot be the name of a tool",
                hint="use letters, digits, '_' and '-', 64 at most",
            )


def _check_options(target: Tool[..., Any]) -> None:
    _check_start_options(target)
    if target.on_crash not in (None, *get_args(OnCrash)):
        raise ConfigError(
            f"tool {target.name!r}: on_crash is {target.on_crash!r}, not tell, retry or ask"
        )
    if target.on_crash == "retry" and not target.idempotent:
        raise ConfigError(
            f"tool {target.name!r}: on_crash='retry' needs idempotent=True",
            hint="set idempotent=True only if a repeat with the same effect_id does no harm",
        )
    if not isinstance(target.requires_approval, bool | Approval | Callable):
        raise ConfigError(
            f"tool {target.name!r}: requires_approval must be a bool, a function or an Approval"
        )
    try:
        _ = target.timeout_ms
    except Refused as error:
        raise ConfigError(f"tool {target.name!r}: {error.message}", hint=error.hint) from error


def _checked_schema(target: Tool[..., Any]) -> dict[str, Any]:
    """Return the user's schema, completed to the schema of an object."""
    schema = target.parameters
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise ConfigError(f"tool {target.name!r}: parameters must be the JSON schema of an object")
    return {"type": "object", "properties": {}, **schema}


def _check_redact(target: Tool[..., Any]) -> None:
    arguments = target.parameters.get("properties", {})
    unknown = sorted(set(target.redact) - set(arguments))
    if unknown and not target.parameters.get("additionalProperties"):
        raise ConfigError(
            f"tool {target.name!r}: redact names {unknown[0]!r}, which is not one of its arguments",
            hint=f"its arguments are {', '.join(arguments) or 'none'}",
        )


def _check_pending(target: Tool[..., Any]) -> None:
    signature = signature_of(target)
    if target.deferred or signature is None:
        return
    for parameter in signature.with_role("pending"):
        if parameter.default is not None:
            raise ConfigError(
                f"tool {target.name!r} is not deferred: {parameter.name} needs the default None",
                hint="set deferred=True if its result is submitted later",
            )


def _check_start_options(target: Tool[..., Any]) -> None:
    """Refuse options of a start that an external tool does not have."""
    for option in ("idempotent", "on_crash"):
        if target.external and getattr(target, option):
            raise ConfigError(
                f"tool {target.name!r} is external: {option} has no meaning, because perdure "
                "starts nothing",
                hint=f"remove {option}; if the function starts the work, set deferred=True instead "
                "of external=True",
            )


def _check_external(target: Tool[..., Any]) -> None:
    """Refuse parameters of an external tool that only a call of its function would fill."""
    signature = signature_of(target)
    if not target.external or signature is None:
        return
    for parameter in signature.parameters:
        if parameter.role in ("context", "pending"):
            raise ConfigError(
                f"tool {target.name!r} is external: {parameter.name} would never be passed, "
                "because perdure does not call the function",
                hint=f"remove {parameter.name}; if the function starts the work, set "
                "deferred=True instead of external=True",
            )
