"""JSON schema of the configuration, generated from its table, for editors that complete YAML."""

from collections.abc import Iterator
from typing import Any, Final

from perdure.config.kinds import Block, Either, Free, Many, Named, Plain, Spec
from perdure.config.table import TABLE

_VARIABLE: Final = {"type": "string", "pattern": r"\$\{"}


def schema() -> dict[str, Any]:
    """Return the JSON schema (2020-12) of `perdure.yaml`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "perdure.yaml",
        **_schema(TABLE),
    }


def _schema(spec: Spec) -> dict[str, Any]:
    match spec:
        case Plain():
            return _plain(spec)
        case Many():
            return {"type": ["array", "null"], "items": _schema(spec.item)}
        case Named():
            names = {} if spec.names is None else {"propertyNames": _names(spec)}
            return {"type": ["object", "null"], "additionalProperties": _schema(spec.item), **names}
        case Block():
            return _block(spec)
        case Either():
            return {"anyOf": [_schema(alternative) for alternative in _alternatives(spec)]}
        case Free():
            return {"type": ["object", "null"]}


def _plain(spec: Plain) -> dict[str, Any]:
    """Return the schema of a single value: text may contain a variable, other types may be one."""
    kind = spec.schema.get("type", ())
    takes_any_text = "string" in kind and "pattern" not in spec.schema
    return dict(spec.schema) if takes_any_text else {"anyOf": [dict(spec.schema), _VARIABLE]}


def _names(spec: Named) -> dict[str, Any]:
    return {} if spec.names is None else {"pattern": f"^{spec.names.pattern}$"}


def _block(spec: Block) -> dict[str, Any]:
    schema: dict[str, Any] = {
        "type": "object" if spec.required else ["object", "null"],
        "properties": {name: _schema(inner) for name, inner in spec.keys.items()},
        "additionalProperties": False,
    }
    if spec.required:
        schema["required"] = list(spec.required)
    if spec.either:
        schema["not"] = {"required": list(spec.either)}
    return schema


def _alternatives(spec: Either) -> Iterator[Spec]:
    """Yield the alternatives; each block requires the key that selects it."""
    yield spec.plain
    if spec.many is not None:
        yield spec.many
    if spec.block is not None:
        yield spec.block
    for name, block in spec.blocks.items():
        yield Block(block.keys, (name, *block.required), block.either)
