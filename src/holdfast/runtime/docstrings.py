"""What a docstring tells a model: its first paragraph, and a line for each parameter."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

_SECTION: Final = re.compile(
    r"(args|arguments|parameters|params|keyword args|other parameters|returns?|yields?|raises"
    r"|examples?|notes?|warnings?|attributes|see also|references|todo):?",
    re.IGNORECASE,
)
_PARAMETERS: Final = ("args", "arguments", "parameters", "params", "keyword args")
_FIELD: Final = re.compile(r":(?:param|parameter|arg|argument)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:(.*)")
_GOOGLE: Final = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY: Final = re.compile(r"\*{0,2}(\w+)\s*(?::.*)?")


@dataclass(frozen=True, slots=True)
class Doc:
    """The parts of a docstring that a model sees."""

    summary: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def parse_docstring(text: str | None) -> Doc:
    """Read a docstring in Google, NumPy or reST style; what it does not know it leaves out."""
    lines = (text or "").strip().splitlines()
    found = {**_fields(lines), **_sections(lines)}
    return Doc(_summary(lines), {name: told for name, told in found.items() if told})


def _summary(lines: Sequence[str]) -> str:
    kept: list[str] = []
    for index, line in enumerate(lines):
        if not line.strip() or line.lstrip().startswith(":") or _is_heading(lines, index):
            break
        kept.append(line.strip())
    return " ".join(kept)


def _is_heading(lines: Sequence[str], index: int) -> bool:
    """Whether a section begins: `Args:`, or `Parameters` over a line of dashes."""
    line = lines[index].strip()
    return bool(_SECTION.fullmatch(line)) and (line.endswith(":") or _is_ruled(lines, index))


def _is_ruled(lines: Sequence[str], index: int) -> bool:
    return index + 1 < len(lines) and bool(re.fullmatch(r"\s*-{3,}\s*", lines[index + 1]))


def _fields(lines: Sequence[str]) -> dict[str, str]:
    """`:param x: text`, with what is indented under it."""
    found: dict[str, str] = {}
    for index, line in enumerate(lines):
        if match := _FIELD.match(line.strip()):
            more = _indented(lines[index + 1 :], _indent(line))
            found[match[1]] = " ".join([match[2].strip(), *more]).strip()
    return found


def _sections(lines: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for index, line in enumerate(lines):
        if _is_heading(lines, index) and line.strip(" :").lower() in _PARAMETERS:
            ruled = _is_ruled(lines, index)
            body = _body(lines, index + 2 if ruled else index + 1)
            found.update(_entries(body, _NUMPY if ruled else _GOOGLE))
    return found


def _body(lines: Sequence[str], start: int) -> list[str]:
    """The lines of a section: up to the next heading, or to text left of its first line."""
    body: list[str] = []
    for index in range(start, len(lines)):
        line = lines[index]
        if _is_heading(lines, index):
            break
        if line.strip() and body and _indent(line) < _indent(body[0]):
            break
        if line.strip():
            body.append(line)
    return body


def _entries(body: Sequence[str], head: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    for index, line in enumerate(body):
        match = head.fullmatch(line.strip())
        if _indent(line) == _indent(body[0]) and match:
            first = match[2] if head is _GOOGLE else ""
            more = _indented(body[index + 1 :], _indent(line))
            yield match[1], " ".join([first, *more]).strip()


def _indented(lines: Sequence[str], margin: int) -> Iterator[str]:
    for line in lines:
        if not line.strip() or _indent(line) <= margin:
            return
        yield line.strip()


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
