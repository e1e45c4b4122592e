"""Reference of perdure.yaml, from the models that read it."""

from collections.abc import Iterator
from typing import Any

from scripts.docs.python import NOTE

from perdure.config import schema

INTRO = """\
[configuration.md](../configuration.md) explains the file; this page lists every key.
`perdure config schema` prints the same as a JSON schema for editors. `NAME` stands for
a name of your choice, `[]` for each item of a list."""


def page() -> str:
    """Every key with its type."""
    rows = [f"| `{key}` | {kind} |" for key, kind in _keys("", schema())]
    return (
        "\n".join(
            (NOTE, "", "# perdure.yaml", "", INTRO, "", "| key | value |", "|---|---|", *rows)
        )
        + "\n"
    )


def _keys(prefix: str, node: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for choice in _choices(node):
        for name, value in choice.get("properties", {}).items():
            key = f"{prefix}.{name}" if prefix else name
            yield key, _kind(value)
            yield from _keys(key, value)
        more = choice.get("additionalProperties")
        if isinstance(more, dict):
            if _kind(more) != "block":
                yield f"{prefix}.NAME", _kind(more)
            yield from _keys(f"{prefix}.NAME", more)
        items = choice.get("items")
        if isinstance(items, dict):
            yield from _keys(f"{prefix}[]", items)


def _choices(node: dict[str, Any]) -> list[dict[str, Any]]:
    return [c for choice in node["anyOf"] for c in _choices(choice)] if "anyOf" in node else [node]


def _kind(node: dict[str, Any]) -> str:
    kinds = list(dict.fromkeys(_one_kind(choice) for choice in _choices(node)))
    return " or ".join(kind for kind in kinds if kind)


def _one_kind(node: dict[str, Any]) -> str:
    if node.get("pattern") == r"\$\{":
        return ""
    if "enum" in node:
        return ", ".join(f"`{value}`" for value in node["enum"] if value is not None)
    kinds = node.get("type", "text")
    kinds = [kinds] if isinstance(kinds, str) else [kind for kind in kinds if kind != "null"]
    words = {"object": "block", "array": "list", "string": "text"}
    return " or ".join(words.get(kind, kind) for kind in kinds)
