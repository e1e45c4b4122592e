"""Checks of JSON values: against a JSON schema, and of Python values that must be JSON.

The schema check covers the keywords of tool schemas: types, required, properties,
additionalProperties, items, enum, const, bounds, local references and alternatives. It ignores
other keywords: the tool validates its arguments itself.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from typing import Any, Final, TypeGuard

from perdure.core.json_depth import MAX_DEPTH, TOO_DEEP
from perdure.core.text import did_you_mean

UNKNOWN_ARGUMENT: Final = "is not a known argument"

Schema = Mapping[str, Any] | bool

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (Mapping,),
    "array": (list, tuple),
    "string": (str,),
    "number": (int, float),
    "integer": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_DEPTH: Final = 64  # stops recursive references
_STEPS: Final = 20_000  # of one check: references that branch would take for ever
_MAX_PATH: Final = 40  # characters shown of the path of a value that is nested too deeply


def schema_problems(value: Any, schema: Schema) -> list[tuple[str, str]]:
    """Return what is wrong with a value, as (path, problem); the path of the value itself is ""."""
    root = schema if isinstance(schema, Mapping) else {}
    return list(_SchemaCheck(root).run(value, schema, "", 0))


def unknown_argument(name: str, names: Iterable[str]) -> str:
    """Return the problem of an argument that does not exist, with one of a similar name."""
    return f"{UNKNOWN_ARGUMENT}{did_you_mean(name, names)}"


def schema_defect(schema: Any, path: str = "", depth: int = 0) -> str | None:
    """Return the first reason why values cannot be checked against a schema; None if they can."""
    name = path or "it"
    if isinstance(schema, bool) or depth > _DEPTH:
        return None
    if not isinstance(schema, Mapping):
        return f"{name} must be an object"
    kinds = schema.get("type", ())
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list | tuple) or any(kind not in _TYPES for kind in kinds):
        return f"the type of {name} must be one of {', '.join(_TYPES)}"
    if defect := _list_defect(schema, name):
        return defect
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping):
        return f"properties of {name} must be an object"
    parts = {f"{path}.{key}".lstrip("."): part for key, part in properties.items()}
    parts |= {f"{path}[]": schema["items"]} if "items" in schema else {}
    for key in ("anyOf", "oneOf", "allOf"):
        parts |= {f"{name} {key}[{n}]": part for n, part in enumerate(schema.get(key, ()))}
    return _first(schema_defect(part, where, depth + 1) for where, part in parts.items())


def _list_defect(schema: Mapping[str, Any], name: str) -> str | None:
    for key in ("required", "enum", "anyOf", "oneOf", "allOf"):
        if not isinstance(schema.get(key, []), list | tuple):
            return f"{key} of {name} must be a list"
    if not all(isinstance(key, str) for key in schema.get("required", ())):
        return f"required of {name} must be a list of names"
    return None


class _SchemaCheck:
    """Check of one value; `root` is the schema that references point into."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._steps_left = _STEPS

    def run(self, value: Any, schema: Schema, path: str, depth: int) -> Iterator[tuple[str, str]]:
        self._steps_left -= 1
        if schema is False:
            yield path, "is not allowed"
        if not isinstance(schema, Mapping) or depth > _DEPTH or self._steps_left < 0:
            return
        for part in (*self._target(schema), *schema.get("allOf", ())):
            yield from self.run(value, part, path, depth + 1)
        if not self._has_match(value, schema, depth):
            yield path, "fits none of the alternatives"
        if mismatch := _mismatch(value, schema):
            yield path, mismatch
        else:
            yield from self._inside(value, schema, path, depth)

    def _inside(
        self, value: Any, schema: Mapping[str, Any], path: str, depth: int
    ) -> Iterator[tuple[str, str]]:
        if isinstance(value, Mapping):
            yield from self._object(value, schema, path, depth + 1)
        elif isinstance(value, (list, tuple)):
            for index, item in enumerate(value):
                yield from self.run(item, schema.get("items", True), f"{path}[{index}]", depth + 1)

    def _target(self, schema: Mapping[str, Any]) -> tuple[Schema, ...]:
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            return ()
        target: Any = self._root
        for key in reference.split("/")[1:]:
            name = key.replace("~1", "/").replace("~0", "~")
            target = target.get(name) if isinstance(target, Mapping) else None
        return (target,) if isinstance(target, (Mapping, bool)) else ()

    def _has_match(self, value: Any, schema: Mapping[str, Any], depth: int) -> bool:
        choices = schema.get("anyOf") or schema.get("oneOf")
        return not choices or any(
            next(self.run(value, choice, "", depth + 1), None) is None for choice in choices
        )

    def _object(
        self, value: Mapping[str, Any], schema: Mapping[str, Any], path: str, depth: int
    ) -> Iterator[tuple[str, str]]:
        prefix = f"{path}." if path else ""
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{prefix}{name}", "is missing"
        properties = schema.get("properties", {})
        additional = schema.get("additionalProperties", True)
        for name, item in value.items():
            if name in properties:
                yield from self.run(item, properties[name], f"{prefix}{name}", depth)
            elif additional is False and not schema.get("patternProperties"):
                yield f"{prefix}{name}", unknown_argument(name, properties)
            else:
                yield from self.run(item, additional, f"{prefix}{name}", depth)


def _mismatch(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a value itself, regardless of its items."""
    kinds = schema.get("type", ())
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    if kinds and not any(_is_type(value, kind) for kind in kinds):
        return f"must be {' or '.join(kinds)}"
    if "enum" in schema and not any(is_equal(value, choice) for choice in schema["enum"]):
        return f"must be one of {', '.join(map(repr, schema['enum']))}"
    if "const" in schema and not is_equal(value, schema["const"]):
        return f"must be {schema['const']!r}"
    return _out_of_bounds(value, schema)


def _is_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool) and kind != "boolean":
        return False
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(kind, (object,)))


def is_equal(value: Any, other: Any) -> bool:
    """Return True if two JSON values are equal; true is not 1, also inside lists and objects."""
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        return value.keys() == other.keys() and all(is_equal(value[k], other[k]) for k in value)
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(is_equal, value, other))
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _out_of_bounds(value: Any, schema: Mapping[str, Any]) -> str | None:
    if isinstance(value, str):
        return _size_problem(len(value), schema, ("minLength", "maxLength"), " characters")
    if isinstance(value, (list, tuple)):
        return _size_problem(len(value), schema, ("minItems", "maxItems"), " items")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    low, high = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if _is_number(low) and value <= low:
        return f"must be greater than {low}"
    if _is_number(high) and value >= high:
        return f"must be less than {high}"
    return _size_problem(value, schema, ("minimum", "maximum"), "")


def _size_problem(
    size: float, schema: Mapping[str, Any], keys: tuple[str, str], unit: str
) -> str | None:
    low, high = (schema.get(key) for key in keys)
    if _is_number(low) and size < low:
        return f"must be at least {low}{unit}"
    if _is_number(high) and size > high:
        return f"must be at most {high}{unit}"
    return None


def _is_number(bound: object) -> TypeGuard[float]:
    """Return True if it is a numeric bound; the draft-4 form `exclusiveMinimum: true` is not."""
    return isinstance(bound, (int, float)) and not isinstance(bound, bool)


def json_problem(value: Any, path: str, depth: int = 0) -> str | None:
    """Return the first problem, as in `a.b[0] has the type date, which is not JSON`, or None.

    Any list, tuple or mapping is accepted, as JSON encoders do.
    """
    if isinstance(value, Mapping | list | tuple):
        return _container_problem(value, path, depth)
    if isinstance(value, float) and not isfinite(value):
        return f"{path} is {value}, which is not JSON"
    if value is None or isinstance(value, str | int | float):
        return None
    return f"{path} has the type {type(value).__name__}, which is not JSON"


def _container_problem(value: Any, path: str, depth: int) -> str | None:
    if depth >= MAX_DEPTH:
        return f"{path[:_MAX_PATH]}… is {TOO_DEEP}"
    if not isinstance(value, Mapping):
        return _first(json_problem(item, f"{path}[{n}]", depth + 1) for n, item in enumerate(value))
    bad_key = next((key for key in value if not isinstance(key, str)), None)
    if bad_key is not None:
        return f"{path} has the key {bad_key!r}, which is not text"
    return _first(json_problem(item, f"{path}.{key}", depth + 1) for key, item in value.items())


def _first(problems: Iterator[str | None]) -> str | None:
    return next((problem for problem in problems if problem is not None), None)
