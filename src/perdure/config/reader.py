"""Reader of YAML nodes: blocks, lists and single values, each with its key and line."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from perdure.config.problems import ConfigProblem, InvalidValue, Key

# `${VAR}` and `${VAR:-default}` in a value; `$${` is a literal `${`.
_VARIABLE: Final = re.compile(r"\$\$\{|\$\{([^}]*)\}|\$\{")
_INSIDE: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Return the text with its variables expanded. InvalidValue names a variable that is not set.

    As in a shell, the default also replaces a variable that is set but empty.
    """
    return _VARIABLE.sub(lambda match: _value(match, environ), text)


def _value(match: re.Match[str], environ: Mapping[str, str]) -> str:
    if match[0] == "$${":
        return "${"
    inside = _INSIDE.fullmatch(match[1] or "")
    if inside is None:
        raise InvalidValue(
            "has a ${ that is not ${VAR} or ${VAR:-default}",
            hint="write $${ for a literal ${",
        )
    name, default = inside[1], inside[2]
    value = environ.get(name)
    if default is not None:
        return value or default
    if value is None:
        raise InvalidValue(
            f"the environment variable {name} is not set",
            hint=f"set it, or write ${{{name}:-default}}",
        )
    return value


_CORE: Final = "tag:yaml.org,2002:"
_TAGS: Final = frozenset({f"{_CORE}str", f"{_CORE}seq", f"{_CORE}map"})
_INT: Final = re.compile(r"[-+]?[0-9]+")
_FLOAT: Final = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?")
_WORDS: Final[Mapping[str, bool | None]] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}


@dataclass(frozen=True, slots=True)
class Scalar:
    """Single value of the file: its text, and its YAML value."""

    text: str
    value: str | float | bool | None
    is_expanded: bool = False  # from the environment: never shown in messages
    is_quoted: bool = False
    key: Key = ()
    line: int = 0

    @property
    def is_empty(self) -> bool:
        """True if nothing, or a word for nothing, is written."""
        return self.value is None and not self.is_expanded


class YamlBlock(dict[str, Any]):
    """Block of keys; `line` is the line of the first one."""

    def __init__(self, key: Key, line: int) -> None:
        super().__init__()
        self.key = key
        self.line = line


class ConfigReader:
    """Reader of one file. `lines` has the line of each key.

    A value that cannot be read is an InvalidValue in the result, so that it counts only where the
    configuration has such a key.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.lines: dict[Key, int] = {}
        self.problems: list[ConfigProblem] = []
        self._environ = environ
        self._open: set[int] = set()

    def read(self, node: yaml.Node, key: Key = (), line: int | None = None) -> Any:
        """Return the value of a node: a YamlBlock, a list, a Scalar or an InvalidValue."""
        self.lines[key] = _line(node) if line is None else line
        if id(node) in self._open:
            return InvalidValue("contains itself", key=key)
        if node.tag not in _TAGS:
            hint = "remove the word that begins with !"
            return InvalidValue("has a YAML tag, which is not supported", hint, key)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._block(node, key)
            if isinstance(node, yaml.SequenceNode):
                return [self.read(item, (*key, n)) for n, item in enumerate(node.value)]
            return self._scalar(node, key)
        except InvalidValue as error:
            return InvalidValue(error.text, error.hint, key)
        finally:
            self._open.discard(id(node))

    def _scalar(self, node: yaml.Node, key: Key) -> Scalar:
        text: str = node.value
        is_quoted = bool(getattr(node, "style", None))
        if "${" not in text:
            value = text if is_quoted else plain_value(text)
            return Scalar(text, value, is_quoted=is_quoted, key=key, line=_line(node))
        # Quoted or not: a number from the environment may serve as a number or as text.
        expanded = expand(text, self._environ)
        return Scalar(expanded, plain_value(expanded), True, is_quoted, key, _line(node))

    def _block(self, node: yaml.MappingNode, key: Key) -> YamlBlock:
        block = YamlBlock(key, _line(node))
        for name, value, line in self._pairs(node, key):
            block[name] = self.read(value, (*key, name), line)
        return block

    def _pairs(self, node: yaml.MappingNode, key: Key) -> Iterator[tuple[str, yaml.Node, int]]:
        """Yield the keys of a block with value and line, each once."""
        lines: dict[str, int] = {}
        for name, value in node.value:
            line = _line(name)
            if not isinstance(name, yaml.ScalarNode) or not name.value:
                self.problems.append(ConfigProblem(line, key, "has a key that is not text"))
            elif name.value in lines:
                text = f"is defined twice, first on line {lines[name.value]}"
                self.problems.append(ConfigProblem(line, (*key, name.value), text))
            else:
                lines[name.value] = line
                yield name.value, value, line


def plain_value(text: str) -> str | float | bool | None:
    """Return the value of unquoted text: only true and false are booleans, and 010 is ten."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text) if len(text) < 40 else text
    return float(text) if _FLOAT.fullmatch(text) else text


def _line(node: yaml.Node) -> int:
    line: int = node.start_mark.line + 1
    return line
