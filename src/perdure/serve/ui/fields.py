"""Fields of a form: arguments of a call, by the schema of its tool, as text and back."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from perdure.serve.schemas import Schema, plain_schema

Widget = Literal["line", "text", "number", "choice", "json", "hidden"]

ARGUMENT: Final = "arg."  # before the names of fields that are arguments
WHOLE: Final = "json"  # the field with all arguments as JSON
LONG: Final = 60  # characters; longer values get several lines
_INTEGER: Final = re.compile(r"[+-]?\d{1,400}")


@dataclass(frozen=True, slots=True)
class Field:
    """One argument in a form: how it is edited, its stored text and its present text."""

    name: str
    widget: Widget
    was: str  # text of the stored value; empty if there is none
    value: str
    kind: str = "any"  # of its values: string, integer, number, boolean, any
    help: str = ""
    choices: tuple[tuple[str, str], ...] = ()  # text of a value, and what people read
    is_required: bool = False
    default: str = ""  # that the tool uses if there is no value
    problem: str = ""

    @property
    def shown(self) -> str:
        """The stored value as people read it."""
        return "•••••••" if self.widget == "hidden" else dict(self.choices).get(self.was, self.was)

    @property
    def is_changed(self) -> bool:
        """True if its text is not that of the stored value."""
        return self.value != self.was and self.widget != "hidden"


@dataclass(frozen=True, slots=True)
class Fields:
    """Form of a call: its fields, what they change, and all arguments as JSON."""

    fields: tuple[Field, ...]
    changes: Mapping[str, Any]
    whole: str = ""
    whole_was: str = ""
    whole_problem: str = ""

    @property
    def is_valid(self) -> bool:
        """True if every text is a value."""
        return not self.whole_problem and not any(field.problem for field in self.fields)

    def with_problems(self, problems: Mapping[str, str]) -> "Fields":
        """Return the form with problems at the fields they are about."""
        fields = tuple(
            replace(field, problem=problems.get(field.name, field.problem)) for field in self.fields
        )
        names = {field.name for field in fields}
        rest = "; ".join(
            f"{name}: {text}" if name else text
            for name, text in problems.items()
            if name.partition(".")[0] not in names
        )
        inner = {name.partition(".")[0]: (name, text) for name, text in problems.items()}
        fields = tuple(
            replace(field, problem=f"{inner[field.name][0]}: {inner[field.name][1]}")
            if field.name in inner and not field.problem
            else field
            for field in fields
        )
        return replace(self, fields=fields, whole_problem=rest or self.whole_problem)


def argument_fields(
    arguments: Mapping[str, Any], schema: Schema | None, hidden: frozenset[str]
) -> tuple[Field, ...]:
    """Return the fields of a call's arguments, and of those that its tool also takes."""
    properties: Mapping[str, Any] = (schema or {}).get("properties", {})
    required = (schema or {}).get("required", ())
    names = [*properties, *(name for name in arguments if name not in properties)]
    return tuple(
        _hidden(name)
        if name in hidden
        else _field(
            name,
            arguments.get(name),
            plain_schema(properties.get(name), schema or {}),
            is_set=name in arguments,
            is_required=name in required,
        )
        for name in names
    )


def _hidden(name: str) -> Field:
    return Field(name, "hidden", "", "", help="This value is secret and is not shown.")


def _field(name: str, value: Any, schema: Schema, *, is_set: bool, is_required: bool) -> Field:
    kind = schema.get("type") if isinstance(schema.get("type"), str) else _kind_of(value)
    if is_set and value is not None and _kind_of(value) != kind and kind != "number":
        kind = "any"  # the stored value does not fit the schema: show it exactly
    choices = _choices(schema, str(kind))
    if choices:
        widget: Widget = "choice"
        text = json.dumps(value, ensure_ascii=False) if is_set and value is not None else ""
        if is_set and value is not None and text not in dict(choices):
            choices = ((text, text), *choices)
    elif kind == "string":
        text = value if isinstance(value, str) else ""
        widget = "text" if len(text) > LONG or "\n" in text else "line"
    elif kind in ("integer", "number"):
        widget, text = "number", _json_text(value, is_set=is_set)
    else:
        kind, widget = "any", "json"
        text = _json_text(value, is_set=is_set)
    return Field(
        name,
        widget,
        text,
        text,
        kind=str(kind),
        help=str(schema.get("description", "")),
        choices=choices,
        is_required=is_required,
        default="" if schema.get("default") is None else str(schema["default"]),
    )


def _json_text(value: Any, *, is_set: bool) -> str:
    if not is_set or value is None:
        return ""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= LONG or not isinstance(value, dict | list):
        return text
    return json.dumps(value, ensure_ascii=False, indent=2)


def _kind_of(value: Any) -> str:
    kinds = ((bool, "boolean"), (str, "string"), (int, "integer"), (float, "number"))
    return next((kind for type_, kind in kinds if isinstance(value, type_)), "any")


def _choices(schema: Schema, kind: str) -> tuple[tuple[str, str], ...]:
    if kind == "boolean":
        return (("true", "yes"), ("false", "no"))
    values = schema.get("enum")
    if not isinstance(values, list):
        return ()
    return tuple(
        (json.dumps(value, ensure_ascii=False), value if isinstance(value, str) else str(value))
        for value in values
    )


# --- from a form ----------------------------------------------------------------------------------


def stored_fields(
    arguments: Mapping[str, Any], schema: Schema | None, hidden: frozenset[str]
) -> Fields:
    """Return the form of a call as it is stored."""
    fields = argument_fields(arguments, schema, hidden)
    shown = {name: value for name, value in arguments.items() if name not in hidden}
    whole = json.dumps(shown, ensure_ascii=False, indent=2)
    return Fields(fields, {}, whole, whole)


def submitted_fields(stored: Fields, text_of: Callable[[str], str | None]) -> Fields:
    """Return the form as a person submitted it, with the values that differ from the stored ones.

    A field that the form did not have keeps its stored value.
    """
    fields, changes = [], {}
    for field in stored.fields:
        text = text_of(ARGUMENT + field.name)
        field = field if text is None else replace(field, value=text)  # noqa: PLW2901
        if field.is_changed:
            value, problem = parse_value(field)
            field = replace(field, problem=problem)  # noqa: PLW2901
            if not problem:
                changes[field.name] = value
        fields.append(field)
    whole = text_of(WHOLE)
    form = replace(stored, fields=tuple(fields), changes=changes)
    if whole is None or whole == stored.whole_was:
        return form
    return _with_whole(form, whole)


def _with_whole(form: Fields, whole: str) -> Fields:
    """Return the form with all arguments as somebody edited them as JSON."""
    try:
        edited = json.loads(whole)
    except (ValueError, RecursionError) as error:
        return replace(form, whole=whole, whole_problem=f"This is not JSON: {error}")
    before = json.loads(form.whole_was)
    if not isinstance(edited, dict):
        return replace(form, whole=whole, whole_problem="Write an object: {…}")
    if missing := [name for name in before if name not in edited]:
        text = f"An argument cannot be removed: {', '.join(missing)}"
        return replace(form, whole=whole, whole_problem=text)
    differing = {
        name: value
        for name, value in edited.items()
        if name not in before or not _is_same(before[name], value)
    }
    return replace(form, whole=whole, changes={**form.changes, **differing})


def _is_same(first: Any, second: Any) -> bool:
    """Return whether two JSON values are the same: 1 and true, 1 and 1.0 are not."""
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


def parse_value(field: Field) -> tuple[Any, str]:
    """Return the value of a field's text and an empty text, or None and what is wrong with it."""
    text = field.value
    if field.widget in ("line", "text"):
        return text, ""
    if not text.strip():
        return (None, "This needs a value.") if field.is_required else (None, "")
    if field.kind == "integer":
        is_integer = _INTEGER.fullmatch(text.strip()) is not None
        return (int(text), "") if is_integer else (None, "This must be a whole number.")
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        message = "This must be a number." if field.kind == "number" else f"Not JSON: {error}"
        return None, message
    if field.kind == "number" and (isinstance(value, bool) or not isinstance(value, int | float)):
        return None, "This must be a number."
    return value, ""


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")
