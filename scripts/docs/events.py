"""Reference of the events of a session log, from the structs that are stored."""

import ast
import inspect
from collections.abc import Iterator

import msgspec
from scripts.docs.python import NOTE

from perdure.core.log import events
from perdure.core.log.codec import TYPES

INTRO = """\
A session is a log of these events: `{seq, type, timestamp, data}`. HTTP, the command
line and Python show them under the same names. New types and fields are added; none is
renamed. A field with `?` may be absent."""


def page() -> str:
    """Every event type with its fields."""
    return "\n\n".join((NOTE, "# Events", INTRO, *_types())) + "\n"


def _types() -> Iterator[str]:
    comments = _comments()
    for name, struct in sorted(TYPES.items()):
        yield f"## `{name}`"
        yield inspect.getdoc(struct) or ""
        fields = msgspec.structs.fields(struct)
        rows = [_row(field, comments.get((struct.__name__, field.name), "")) for field in fields]
        yield "\n".join(("| field | |", "|---|---|", *rows))


def _row(field: msgspec.structs.FieldInfo, comment: str) -> str:
    return f"| `{field.encode_name}{'' if field.required else '?'}` | {comment} |"


def _comments() -> dict[tuple[str, str], str]:
    """The type and end-of-line comment of each field, as the source has them."""
    source = inspect.getsource(events)
    lines = source.splitlines()
    comments: dict[tuple[str, str], str] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and item.end_lineno:
                    comment = lines[item.end_lineno - 1].partition("  # ")[2]
                    kind = ast.unparse(item.annotation).replace("|", "\\|")
                    text = (
                        f"`{kind}`".replace("\\|", "|")
                        if "|" not in kind
                        else f"<code>{kind}</code>"
                    )
                    comments[node.name, ast.unparse(item.target)] = f"{text} {comment}".strip()
    return comments
