"""A small check of JSON values against a JSON schema, for tools whose schema came from elsewhere.

It knows what tool schemas use: types, required, properties, additionalProperties, items, enum,
const, bounds, local references and alternatives. What it does not know it lets pass: the tool
itself still judges.
"""

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, Final, TypeGuard

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
_DEPTH: Final = 64  # a reference to itself ends here


def problems(value: Any, schema: Schema) -> list[tuple[str, str]]:
    """What is wrong with a value, as (path, why); the path of the whole is ""."""
    root = schema if isinstance(schema, Mapping) else {}
    return list(_Check(root).run(value, schema, "", 0))


class _Check:
    """One walk; `root` is where references point into."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def run(self, value: Any, schema: Schema, path: str, depth: int) -> Iterator[tuple[str, str]]:
        if schema is False:
            yield path, "is not allowed"
        if not isinstance(schema, Mapping) or depth > _DEPTH:
            return
        for part in (*self._target(schema), *schema.get("allOf", ())):
            yield from self.run(value, part, path, depth + 1)
        if not self._fits_one(value, schema, depth):
            yield path, "fits none of the alternatives"
        if why := _mismatch(value, schema):
            yield path, why
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
        found: Any = self._root
        for key in reference.split("/")[1:]:
            step = key.replace("~1", "/").replace("~0", "~")
            found = found.get(step) if isinstance(found, Mapping) else None
        return (found,) if isinstance(found, (Mapping, bool)) else ()

    def _fits_one(self, value: Any, schema: Mapping[str, Any], depth: int) -> bool:
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
        known = schema.get("properties", {})
        others = schema.get("additionalProperties", True)
        for name, item in value.items():
            if name in known:
                yield from self.run(item, known[name], f"{prefix}{name}", depth)
            elif others is False and not schema.get("patternProperties"):
                yield f"{prefix}{name}", "is not a known argument"
            else:
                yield from self.run(item, others, f"{prefix}{name}", depth)


def _mismatch(value: Any, schema: Mapping[str, Any]) -> str | None:
    """What a value breaks by itself, without looking into it."""
    kinds = schema.get("type", ())
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    if kinds and not any(_is(value, kind) for kind in kinds):
        return f"must be {' or '.join(kinds)}"
    if "enum" in schema and not any(_same(value, choice) for choice in schema["enum"]):
        return f"must be one of {', '.join(map(repr, schema['enum']))}"
    if "const" in schema and not _same(value, schema["const"]):
        return f"must be {schema['const']!r}"
    return _out_of_bounds(value, schema)


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool) and kind != "boolean":
        return False
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(kind, (object,)))


def _same(value: Any, other: Any) -> bool:
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _out_of_bounds(value: Any, schema: Mapping[str, Any]) -> str | None:
    if isinstance(value, str):
        return _measured(len(value), schema, ("minLength", "maxLength"), " characters")
    if isinstance(value, (list, tuple)):
        return _measured(len(value), schema, ("minItems", "maxItems"), " items")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    low, high = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if _number(low) and value <= low:
        return f"must be greater than {low}"
    if _number(high) and value >= high:
        return f"must be less than {high}"
    return _measured(value, schema, ("minimum", "maximum"), "")


def _measured(
    size: float, schema: Mapping[str, Any], keys: tuple[str, str], unit: str
) -> str | None:
    low, high = (schema.get(key) for key in keys)
    if _number(low) and size < low:
        return f"must be at least {low}{unit}"
    if _number(high) and size > high:
        return f"must be at most {high}{unit}"
    return None


def _number(bound: object) -> TypeGuard[float]:
    """Whether it is a bound; the draft-4 spelling `exclusiveMinimum: true` is not."""
    return isinstance(bound, (int, float)) and not isinstance(bound, bool)


def no_json(value: Any, where: str) -> str | None:
    """What is wrong with it, and where, as in `a.b[0] is a date, which is no JSON`; None: nothing.

    Lists and mappings of any kind will do, as they do for every encoder.
    """
    if isinstance(value, Mapping):
        strange = next((key for key in value if not isinstance(key, str)), None)
        if strange is not None:
            return f"{where} has the key {strange!r}, which is no text"
        return _first(no_json(one, f"{where}.{key}") for key, one in value.items())
    if isinstance(value, list | tuple):
        return _first(no_json(one, f"{where}[{n}]") for n, one in enumerate(value))
    if isinstance(value, float) and not isfinite(value):
        return f"{where} is {value}, which is no JSON"
    if value is None or isinstance(value, str | int | float):
        return None
    return f"{where} is a {type(value).__name__}, which is no JSON"


def _first(found: Any) -> str | None:
    return next((one for one in found if one is not None), None)
