"""A function's arguments as a JSON schema, and JSON arguments as what the function takes."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import ErrorDetails, to_jsonable_python

from perdure.errors import ConfigError, Refused
from perdure.runtime.tools.arguments import invalid, json_text
from perdure.runtime.tools.signature import Doc, Signature, Taken

# Where the keys are names that somebody chose, and not words of JSON schema.
_NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_PLAIN_WORDS: Final = {"missing": "is missing", "extra_forbidden": "is not a known argument"}
_SCALARS: Final = (str, int, float, bool, type(None))  # what JSON gives back as it was
_VALUES: Final = frozenset({"default", "const", "enum", "examples", "required"})


class _QuietSchema(GenerateJsonSchema):
    """Leaves a default out where JSON cannot say it, and does not warn of it."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {  # noqa: RUF012 - as pydantic has it
        "skipped-choice",
        "non-serializable-default",
    }


@dataclass(frozen=True, slots=True)
class FunctionArguments:
    """The arguments of one function: its schema, and the way from JSON to typed values.

    `fields` maps the names in the model to those of the parameters: a parameter may be called
    `json` or `_x`, which a pydantic field may not.
    """

    model: type[BaseModel]
    fields: Mapping[str, Taken]
    reserved: frozenset[str] = frozenset()  # names that `**extra` may not take

    def schema(self) -> dict[str, Any]:
        """The JSON schema for the model provider."""
        made = self.model.model_json_schema(by_alias=True, schema_generator=_QuietSchema)
        made.setdefault("properties", {})
        return untitled(made)

    def typed(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The values that the function takes, by parameter name; Refused ARGS_INVALID."""
        return self._values(self._validated(args))

    def plain(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as JSON, as the function will understand them: coerced, with defaults.

        A value that would come back from JSON as another one is left as it was given.
        """
        values = self.typed(args)
        if values.keys() == args.keys() and all(_is_as_given(values[n], args[n]) for n in args):
            return dict(args)
        shown = {name: _jsonable(value, args.get(name, ...)) for name, value in values.items()}
        shown = {name: value for name, value in shown.items() if value is not ...}
        try:
            again = self.typed(shown)
        except Refused:
            return dict(args)
        same = {name for name in shown if _same(values[name], again.get(name))}
        kept = {name: value for name, value in shown.items() if name in same}
        return kept | {name: value for name, value in args.items() if name not in same}

    def _validated(self, args: Mapping[str, Any]) -> BaseModel:
        text = json_text(args)
        try:
            return self.model.model_validate_json(text)
        except ValidationError as error:
            raise invalid([_problem(one) for one in error.errors(include_url=False)]) from error
        except Exception as error:  # a validator of the user's own type
            raise invalid([("", f"{type(error).__name__}: {error}")]) from error

    def _values(self, model: BaseModel) -> dict[str, Any]:
        values = {taken.name: getattr(model, name) for name, taken in self.fields.items()}
        extra = model.model_extra or {}
        if taken := sorted(self.reserved & set(extra)):
            raise invalid([(name, _PLAIN_WORDS["extra_forbidden"]) for name in taken])
        return {**values, **extra}


def arguments_of(signature: Signature, doc: Doc, name: str) -> FunctionArguments:
    """Make the arguments of a function; ConfigError for a type that no JSON can be."""
    fields = {f"p{index}": taken for index, taken in enumerate(signature.of("argument"))}
    extra = next(iter(signature.of("extra")), None)
    definitions: dict[str, Any] = {key: _field(taken, doc) for key, taken in fields.items()}
    try:
        model = create_model(name, __base__=_base(extra), **definitions)
        made = FunctionArguments(model, fields, signature.reserved)
        made.schema()
    except (PydanticUserError, TypeError, ValueError, NameError) as error:
        first = str(error).splitlines()[0]
        raise ConfigError(f"tool {name!r}: no JSON schema for its parameters: {first}") from error
    return made


def untitled(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema without the titles that only repeat names."""
    kept = {key: value for key, value in schema.items() if key != "title"}
    return {key: _untitled_under(key, value) for key, value in kept.items()}


def _untitled_under(key: str, value: Any) -> Any:
    if key in _VALUES:
        return value
    if key in _NAMED and isinstance(value, Mapping):
        return {name: _untitled_under("", inner) for name, inner in value.items()}
    if isinstance(value, Mapping):
        return untitled(value)
    return [_untitled_under("", one) for one in value] if isinstance(value, list) else value


def _base(extra: Taken | None) -> type[BaseModel]:
    """Refuses unknown arguments, or takes those of `**extra`."""
    if extra is None:
        return type("Strict", (BaseModel,), {"model_config": ConfigDict(extra="forbid")})
    body = {
        "model_config": ConfigDict(extra="allow"),
        "__annotations__": {"__pydantic_extra__": dict[str, extra.hint]},  # type: ignore[name-defined]
        "__module__": __name__,
    }
    return type("Open", (BaseModel,), body)


def _field(taken: Taken, doc: Doc) -> tuple[Any, Any]:
    """A parameter as pydantic takes it; its own Field comes last and so wins over the docstring."""
    base, *own = _parts(taken.hint)
    if taken.default is None:  # `x: int = None` means what it says
        base = base | None
    told = doc.parameters.get(taken.name)
    extras = [*([Field(description=told)] if told else []), *own]
    default = taken.default
    if isinstance(default, FieldInfo):
        extras, default = [*extras, default], inspect.Parameter.empty
    hint = Annotated[base, *extras] if extras else base
    aliases = ("alias", "validation_alias", "serialization_alias")
    names: dict[str, Any] = dict.fromkeys(aliases, taken.name)
    made = Field(**names) if default is inspect.Parameter.empty else Field(default, **names)
    return hint, made


def _parts(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) is Annotated else (hint,)


def _problem(error: ErrorDetails) -> tuple[str, str]:
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error["loc"])
    why = _PLAIN_WORDS.get(error["type"]) or error["msg"]
    return path.removeprefix("."), why


def _jsonable(value: Any, given: Any) -> Any:
    try:
        return to_jsonable_python(value)
    except Exception:  # noqa: BLE001 - a serializer of the user's own type
        return given


def _is_as_given(value: Any, given: Any) -> bool:
    return type(value) in _SCALARS and type(value) is type(given) and value == given


def _same(value: Any, other: Any) -> bool:
    try:
        return type(value) is type(other) and bool(value == other)
    except Exception:  # noqa: BLE001 - a comparison of the user's own type
        return False
