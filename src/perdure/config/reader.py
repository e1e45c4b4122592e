"""Reader of YAML nodes by the table: plain values with their lines, and the problems."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import yaml

from perdure.config.kinds import Block, Either, Free, InvalidValue, Many, Named, Plain, Scalar, Spec
from perdure.config.problems import ConfigProblem, Key, quoted_list
from perdure.core.text import did_you_mean

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
class ParsedValue:
    """Value of a key, and its line."""

    line: int
    value: Any


class ConfigReader:
    """Reader of one configuration. Values with a problem are None: check `problems` first."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.entries: dict[Key, ParsedValue] = {}
        self.problems: list[ConfigProblem] = []
        self._environ = environ
        self._open: set[int] = set()

    def read(self, spec: Spec, node: yaml.Node, key: Key = (), line: int | None = None) -> Any:
        """Return the value of a node; problems in it are collected, not raised."""
        line = _line(node) if line is None else line
        try:
            with self._inside(node):
                value = self._read(spec, node, key)
        except InvalidValue as error:
            self.problems.append(ConfigProblem(line, key, error.text, error.hint))
            return None
        self.entries[key] = ParsedValue(line, value)
        return value

    @contextmanager
    def _inside(self, node: yaml.Node) -> Iterator[None]:
        if id(node) in self._open:
            raise InvalidValue("contains itself")
        if node.tag not in _TAGS:
            raise InvalidValue(
                "has a YAML tag, which is not supported", hint="remove the word that begins with !"
            )
        self._open.add(id(node))
        try:
            yield
        finally:
            self._open.discard(id(node))

    def _read(self, spec: Spec, node: yaml.Node, key: Key) -> Any:
        match spec:
            case Plain():
                return spec.parse(self._scalar(node))
            case Many():
                return self._many(spec, node, key)
            case Named():
                return self._named(spec, node, key)
            case Block():
                return self._block(spec, node, key)
            case Either():
                return self._either(spec, node, key)
            case Free():
                return self._free_block(node, key)

    def _scalar(self, node: yaml.Node) -> Scalar:
        if not isinstance(node, yaml.ScalarNode):
            raise InvalidValue(f"must be a single value, not {_kind(node)}")
        text: str = node.value
        if "${" not in text:
            return Scalar(text, text if _is_quoted(node) else plain_value(text))
        # Quoted or not: a number from the environment may serve as a number or as text.
        expanded = expand(text, self._environ)
        return Scalar(expanded, plain_value(expanded), is_expanded=True)

    def _many(self, spec: Many, node: yaml.Node, key: Key) -> list[Any]:
        if _is_empty(node):
            return []
        if not isinstance(node, yaml.SequenceNode):
            raise InvalidValue(f"must be a list, not {_kind(node)}")
        return [self.read(spec.item, item, (*key, index)) for index, item in enumerate(node.value)]

    def _named(self, spec: Named, node: yaml.Node, key: Key) -> dict[str, Any]:
        read = {}
        for name, value, line in self._pairs(node, key):
            if spec.names is not None and not spec.names.fullmatch(name):
                self.problems.append(ConfigProblem(line, (*key, name), "is not a name", spec.hint))
                continue
            read[name] = self.read(spec.item, value, (*key, name), line)
        return read

    def _block(self, spec: Block, node: yaml.Node, key: Key) -> dict[str, Any]:
        read = {}
        for name, value, line in self._pairs(node, key):
            if name in spec.keys:
                read[name] = self.read(spec.keys[name], value, (*key, name), line)
            else:
                self.problems.append(_unknown(spec, (*key, name), line))
        for name in spec.required:
            if name not in read:
                self.problems.append(ConfigProblem(_line(node), (*key, name), "is missing"))
        if len(exclusive := [name for name in spec.either if name in read]) > 1:
            text = f"has both {quoted_list(exclusive, 'and')}; only one is allowed"
            self.problems.append(ConfigProblem(_line(node), key, text))
        return read

    def _either(self, spec: Either, node: yaml.Node, key: Key) -> Any:
        if isinstance(node, yaml.SequenceNode) and spec.many is not None:
            return self._many(spec.many, node, key)
        if isinstance(node, yaml.MappingNode) and spec.block is not None:
            return self._block(spec.block, node, key)
        if not isinstance(node, yaml.MappingNode) or not spec.blocks:
            return self._read(spec.plain, node, key)
        names = {name.value for name, _ in node.value if isinstance(name, yaml.ScalarNode)}
        for name, block in spec.blocks.items():
            if name in names:
                return self._block(block, node, key)
        raise InvalidValue(f"needs one of the keys {quoted_list(spec.blocks)}")

    def _free_block(self, node: yaml.Node, key: Key) -> dict[str, Any]:
        return {
            name: self._free(value, (*key, name), line)
            for name, value, line in self._pairs(node, key)
        }

    def _free(self, node: yaml.Node, key: Key, line: int) -> Any:
        try:
            with self._inside(node):
                if isinstance(node, yaml.MappingNode):
                    return self._free_block(node, key)
                if isinstance(node, yaml.SequenceNode):
                    items = enumerate(node.value)
                    return [self._free(item, (*key, n), _line(item)) for n, item in items]
                scalar = self._scalar(node)
                return scalar.text if _is_quoted(node) else scalar.value
        except InvalidValue as error:
            self.problems.append(ConfigProblem(line, key, error.text, error.hint))

    def _pairs(self, node: yaml.Node, key: Key) -> Iterator[tuple[str, yaml.Node, int]]:
        """Yield the keys of a block with value and line, each once."""
        if _is_empty(node):
            return
        if not isinstance(node, yaml.MappingNode):
            raise InvalidValue(f"must be a block of keys, not {_kind(node)}")
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


def _unknown(spec: Block, key: Key, line: int) -> ConfigProblem:
    name = str(key[-1])
    if name == "<<":
        return ConfigProblem(line, key, "merge keys are not supported", "write the keys out")
    text = f"is not a known key{did_you_mean(name, spec.keys)}"
    return ConfigProblem(line, key, text, f"known keys: {', '.join(spec.keys)}")


def _line(node: yaml.Node) -> int:
    line: int = node.start_mark.line + 1
    return line


def _is_quoted(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and bool(node.style)


def _is_empty(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and not node.style and plain_value(node.value) is None


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a block of keys"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a single value"
