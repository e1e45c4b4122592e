"""Schemas of arguments as forms need them: without references, and without an optional null."""

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]


def plain_schema(schema: Any, root: Schema) -> Schema:
    """Return what a schema says without a reference into `root`, and without null as a variant.

    A schema that is not an object (True, False), or whose references lead in a circle or nowhere,
    says nothing: {}.
    """
    return _plain(schema, root.get("$defs", {}), ())


def _plain(schema: Any, definitions: Any, names: tuple[str, ...]) -> Schema:
    if not isinstance(schema, Mapping):
        return {}
    reference = schema.get("$ref")
    if isinstance(reference, str):
        name = reference.rpartition("/")[2]
        is_known = isinstance(definitions, Mapping) and name not in names
        target = definitions.get(name) if is_known else None
        return {**_plain(target, definitions, (*names, name)), **_without(schema, "$ref")}
    variants = schema.get("anyOf")
    others = [item for item in variants if not _is_null(item)] if isinstance(variants, list) else []
    if len(others) == 1 and isinstance(others[0], Mapping):
        return {**_plain(others[0], definitions, names), **_without(schema, "anyOf")}
    return schema


def _without(schema: Schema, key: str) -> Schema:
    return {name: value for name, value in schema.items() if name != key}


def _is_null(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "null"
