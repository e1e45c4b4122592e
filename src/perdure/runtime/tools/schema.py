"""JSON schema of a function's arguments, and validation of JSON arguments to typed values."""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import ErrorDetails, to_jsonable_python

from perdure.core.json_values import UNKNOWN_ARGUMENT, unknown_argument
from perdure.errors import ConfigError, Refused
from perdure.runtime.tools.arguments import invalid_arguments, json_text
from perdure.runtime.tools.signature import Doc, Signature, ToolParameter
from perdure.user_code import CONTAINED, error_line

# Keywords whose keys are names that the user chose, not keywords of JSON schema.
_NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_PLAIN_WORDS: Final = {"missing": "is missing", "extra_forbidden": UNKNOWN_ARGUMENT}
_SCALARS: Final = (str, int, float, bool, type(None))  # JSON returns these unchanged
_PLAIN: Final = (str, int, bool)  # JSON has the same values; a float may not be finite
_BITS: Final = 64
_VALUES: Final = frozenset({"default", "const", "enum", "examples", "required"})


class _QuietSchema(GenerateJsonSchema):
    """Generator that omits defaults that JSON cannot represent, without a warning."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {  # noqa: RUF012 - as pydantic has it
        "skipped-choice",
        "non-serializable-default",
    }


@dataclass(frozen=True, slots=True)
class FunctionArguments:
    """Arguments of one function: their schema, and their conversion from JSON to typed values.

    `fields` maps field names of the model to parameters: a parameter may be named `json` or `_x`,
    a pydantic field may not.
    """

    model: type[BaseModel]
    fields: Mapping[str, ToolParameter]
    reserved: frozenset[str] = frozenset()  # names that `**extra` does not accept
    # Types of the arguments, if each is a plain one: what has them already needs no validation.
    plain_types: Mapping[str, type] | None = None

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema for the model provider."""
        schema = self.model.model_json_schema(by_alias=True, schema_generator=_QuietSchema)
        schema.setdefault("properties", {})
        return strip_titles(schema)

    def typed_values(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return typed values by parameter name. Raises Refused ARGS_INVALID."""
        return dict(args) if self._are_plain(args) else self._values(self._validate(args))

    def json_values(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as JSON, as the function receives them: coerced, with defaults.

        A value that JSON would change is kept as the caller passed it.
        """
        if self._are_plain(args):
            return dict(args)
        values = self._values(self._validate(args))
        if values.keys() == args.keys() and all(_is_unchanged(values[n], args[n]) for n in args):
            return dict(args)
        dumped = {name: _jsonable(value, args.get(name, ...)) for name, value in values.items()}
        dumped = {name: value for name, value in dumped.items() if value is not ...}
        try:
            reloaded = self.typed_values(dumped)
        except Refused:
            return dict(args)
        stable = {name for name in dumped if _is_equal(values[name], reloaded.get(name))}
        result = {name: value for name, value in dumped.items() if name in stable}
        return result | {name: value for name, value in args.items() if name not in stable}

    def _are_plain(self, args: Mapping[str, Any]) -> bool:
        """Return whether the arguments are complete and of exactly their types."""
        types = self.plain_types
        if types is None or type(args) is not dict or args.keys() != types.keys():
            return False
        for name, value in args.items():
            if type(value) is not types[name]:
                return False
            # Other text may not be valid Unicode, and a longer integer not be JSON.
            plain: Any = value
            if not (plain.isascii() if types[name] is str else plain.bit_length() < _BITS):
                return False
        return True

    def _validate(self, args: Mapping[str, Any]) -> BaseModel:
        text = json_text(args)
        try:
            with CONTAINED:
                return self.model.model_validate_json(text)
        except ValidationError as error:
            names = [field.name for field in self.fields.values()]
            raise invalid_arguments(
                [_problem(detail, names) for detail in error.errors(include_url=False)]
            ) from error
        except Exception as error:  # a validator of the user's own type
            raise invalid_arguments([("", error_line(error))]) from error

    def _values(self, model: BaseModel) -> dict[str, Any]:
        values = {field.name: getattr(model, name) for name, field in self.fields.items()}
        extra = model.model_extra or {}
        if reserved := sorted(self.reserved & set(extra)):
            raise invalid_arguments([(name, _PLAIN_WORDS["extra_forbidden"]) for name in reserved])
        return {**values, **extra}


def build_arguments(signature: Signature, doc: Doc, name: str) -> FunctionArguments:
    """Return the arguments of a function. Raises ConfigError for a type that is not JSON."""
    fields = {
        f"p{index}": parameter for index, parameter in enumerate(signature.with_role("argument"))
    }
    extra = next(iter(signature.with_role("extra")), None)
    definitions: dict[str, Any] = {key: _field(parameter, doc) for key, parameter in fields.items()}
    try:
        model = create_model(name, __base__=_base(extra), **definitions)
        plain = None if extra is not None else _plain_types(fields.values())
        arguments = FunctionArguments(model, fields, signature.reserved, plain)
        arguments.schema()
    except (PydanticUserError, TypeError, ValueError, NameError) as error:
        first = str(error).splitlines()[0]
        raise ConfigError(f"tool {name!r}: no JSON schema for its parameters: {first}") from error
    return arguments


def _plain_types(parameters: Iterable[ToolParameter]) -> dict[str, type] | None:
    """Return the types of parameters; None if one of them has more than a plain type."""
    types: dict[str, type] = {}
    for parameter in parameters:
        if parameter.hint not in _PLAIN or isinstance(parameter.default, FieldInfo):
            return None
        types[parameter.name] = parameter.hint
    return types


def strip_titles(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema without titles, which only repeat names."""
    kept = {key: value for key, value in schema.items() if key != "title"}
    return {key: _strip_under(key, value) for key, value in kept.items()}


def _strip_under(key: str, value: Any) -> Any:
    if key in _VALUES:
        return value
    if key in _NAMED and isinstance(value, Mapping):
        return {name: _strip_under("", inner) for name, inner in value.items()}
    if isinstance(value, Mapping):
        return strip_titles(value)
    return [_strip_under("", item) for item in value] if isinstance(value, list) else value


def _base(extra: ToolParameter | None) -> type[BaseModel]:
    """Return the base model, which refuses unknown arguments or accepts those of `**extra`."""
    if extra is None:
        return type("Strict", (BaseModel,), {"model_config": ConfigDict(extra="forbid")})
    body = {
        "model_config": ConfigDict(extra="allow"),
        "__annotations__": {"__pydantic_extra__": dict[str, extra.hint]},  # type: ignore[name-defined]
        "__module__": __name__,
    }
    return type("Open", (BaseModel,), body)


def _field(parameter: ToolParameter, doc: Doc) -> tuple[Any, Any]:
    """Return a parameter as a pydantic field; its own Field overrides the docstring."""
    base, *own = _parts(parameter.hint)
    if parameter.default is None:  # `x: int = None` accepts None
        base = base | None
    description = doc.parameters.get(parameter.name)
    extras = [*([Field(description=description)] if description else []), *own]
    default = parameter.default
    if isinstance(default, FieldInfo):
        extras, default = [*extras, default], inspect.Parameter.empty
    hint = Annotated[base, *extras] if extras else base
    aliases = ("alias", "validation_alias", "serialization_alias")
    names: dict[str, Any] = dict.fromkeys(aliases, parameter.name)
    field = Field(**names) if default is inspect.Parameter.empty else Field(default, **names)
    return hint, field


def _parts(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) is Annotated else (hint,)


def _problem(error: ErrorDetails, names: Iterable[str]) -> tuple[str, str]:
    """Return the path and the problem of an argument; `names` are those of the function."""
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error["loc"])
    name, problem = path.removeprefix("."), _PLAIN_WORDS.get(error["type"]) or error["msg"]
    if problem == UNKNOWN_ARGUMENT and len(error["loc"]) == 1:
        problem = unknown_argument(name, names)
    return name, problem


def _jsonable(value: Any, original: Any) -> Any:
    try:
        with CONTAINED:
            return to_jsonable_python(value)
    except Exception:  # noqa: BLE001 - a serializer of the user's own type
        return original


def _is_unchanged(value: Any, original: Any) -> bool:
    return type(value) in _SCALARS and type(value) is type(original) and value == original


def _is_equal(value: Any, other: Any) -> bool:
    try:
        with CONTAINED:
            return type(value) is type(other) and bool(value == other)
    except Exception:  # noqa: BLE001 - a comparison of the user's own type
        return False
