"""The API's description as one page: no script, nothing from elsewhere."""

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

from fastapi import Response

_HEAD: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>perdure: HTTP</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
section { border-top: 1px solid #8886; padding: .5rem 0 }
h3 { font: 600 1rem ui-monospace, monospace; margin: .5rem 0 }
pre { background: #8882; padding: .5rem; overflow: auto }
dt { font-family: ui-monospace, monospace } dd { margin: 0 0 .3rem 1.5rem }
:root { color-scheme: light dark }
</style></head><body>
<h1>perdure</h1>
<p>JSON over HTTP. Tokens go as <code>Authorization: Bearer TOKEN</code>. Every failure is
<code>{"error", "code", "hint", "details"}</code>.
For programs: <a href="openapi.json">OpenAPI</a>.</p>
"""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"


def page(description: Mapping[str, Any]) -> Response:
    """The page of a description."""
    body = _HEAD + "\n".join(_sections(description)) + "</body></html>"
    headers = {"Content-Security-Policy": _POLICY}
    return Response(body, headers=headers, media_type="text/html; charset=utf-8")


def _sections(description: Mapping[str, Any]) -> Iterator[str]:
    tag = None
    operations = [
        (operation.get("tags", [""])[0], path, method, operation)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    ]
    for group, path, method, operation in sorted(operations, key=lambda one: one[:3]):
        if group != tag:
            yield f"<h2>{escape(group)}</h2>"
            tag = group
        yield _operation(f"{method.upper()} {path}", operation)


def _operation(name: str, operation: Mapping[str, Any]) -> str:
    open_to_all = "" if "security" in operation else "<p><em>Needs no token.</em></p>"
    told = escape(operation.get("description", ""))
    return (
        f"<section><h3>{escape(name)}</h3><p>{told}</p>{open_to_all}"
        f"{_parameters(operation.get('parameters', []))}{_body(operation)}"
        f"{_answers(operation['responses'])}</section>"
    )


def _parameters(given: list[Mapping[str, Any]]) -> str:
    if not given:
        return ""
    lines = [
        f"<dt>{escape(one['name'])} <small>({escape(one['in'])})</small></dt>"
        f"<dd>{escape(one.get('description', ''))}</dd>"
        for one in given
    ]
    return f"<dl>{''.join(lines)}</dl>"


def _body(operation: Mapping[str, Any]) -> str:
    if "requestBody" not in operation:
        return ""
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    return f"<details><summary>Body</summary>{_schema(schema)}</details>"


def _answers(responses: Mapping[str, Any]) -> str:
    lines = []
    for status, one in sorted(responses.items()):
        content = [*one.get("content", {}).values(), {}]
        schema = content[0].get("schema", {})
        shown = "" if "$ref" in schema or not schema else _schema(schema)
        lines.append(f"<dt>{escape(status)}</dt><dd>{escape(one['description'])}{shown}</dd>")
    return f"<details><summary>Answers</summary><dl>{''.join(lines)}</dl></details>"


def _schema(schema: Any) -> str:
    return f"<pre>{escape(json.dumps(schema, indent=2, ensure_ascii=False))}</pre>"
