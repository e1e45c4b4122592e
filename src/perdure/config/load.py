"""Loading of a configuration file: read YAML, build the Config, refuse unsupported parts."""

import os
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import yaml
import yaml.reader

from perdure.config.build import build
from perdure.config.problems import NOT_BUILT_YET, ConfigProblem, Key, config_error
from perdure.config.reader import ConfigReader, ParsedValue
from perdure.config.settings import Config
from perdure.config.table import TABLE
from perdure.errors import ConfigError

_TAB: Final = "found character '\\t'"


class _Loader(yaml.SafeLoader):
    """Loader that is used for nodes only."""


# Without resolvers `on` stays text; the reader gives plain text its type.
_Loader.yaml_implicit_resolvers = {}


def read_nodes(path: Path) -> yaml.Node:
    """Return the root node of a YAML file. ConfigError if it is unreadable, not YAML, or empty."""
    text = _text(path)
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _syntax_error(path, line, "has a character that YAML does not allow") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        raise _syntax_error(path, line, _description(error)) from error
    except RecursionError as error:
        raise _syntax_error(path, 1, "is nested too deeply") from error
    finally:
        if loader is not None:
            loader.dispose()
    if node is None:
        raise _syntax_error(path, 1, "the file is empty")
    return node


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path}: there is no such file",
            code="CONFIG_NOT_FOUND",
            hint="name the configuration with --config FILE",
            details={"file": str(path)},
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}", details={"file": str(path)}
        ) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise _syntax_error(path, line, "is not UTF-8") from error


def _description(error: yaml.MarkedYAMLError) -> str:
    problem = (error.problem or "is not YAML").replace("\n", " ")
    if _TAB in problem:
        return "a tab cannot indent YAML; use spaces"
    if error.context and error.context_mark:
        return f"{problem}, {error.context} that begins on line {error.context_mark.line + 1}"
    return problem


def _syntax_error(path: Path, line: int, text: str) -> ConfigError:
    return config_error(str(path), [ConfigProblem(line, (), text, code="CONFIG_SYNTAX")])


def load(path: str | os.PathLike[str]) -> Config:
    """Return the validated configuration of a YAML file, without importing the user's code.

    ConfigError names every problem with file, line and key; its code is NOT_BUILT_YET if the only
    problems are parts that this version does not support.
    """
    config, unsupported = parse(Path(path), os.environ)
    if unsupported:
        raise config_error(str(path), unsupported)
    return config


def parse(path: Path, environ: Mapping[str, str]) -> tuple[Config, list[ConfigProblem]]:
    """Return the configuration and its unsupported parts. ConfigError if it is invalid."""
    node = read_nodes(path)
    reader = ConfigReader(environ)
    data = reader.read(TABLE, node)
    if reader.problems:
        raise config_error(str(path), reader.problems)
    config, problems = build(data, reader.entries, path)
    if config is None:
        raise config_error(str(path), problems.all)
    return config, unsupported_parts(reader.entries)


# A key, with * for any name or position, optionally with a value, and the reason.
# Supporting a part means to delete its line.
NOT_BUILT: Final[Mapping[str, str]] = {
    "agents.*.tools.*=execute_command": "this version does not run commands",
}


def unsupported_parts(entries: Mapping[Key, ParsedValue]) -> list[ConfigProblem]:
    """Return a problem for each value that this version does not support."""
    problems = []
    for key, entry in entries.items():
        for pattern, reason in NOT_BUILT.items():
            if _is_match(pattern, key, entry.value):
                problems.append(_unsupported(pattern, reason, key, entry))
    return problems


def _is_match(pattern: str, key: Key, value: object) -> bool:
    path, _, expected = pattern.partition("=")
    parts = path.split(".")
    if len(parts) != len(key) or (expected and not fnmatchcase(str(value), expected)):
        return False
    return all(part in ("*", name) for part, name in zip(parts, key, strict=True))


def _unsupported(pattern: str, reason: str, key: Key, entry: ParsedValue) -> ConfigProblem:
    _, _, value = pattern.partition("=")
    subject = f"{value!r} is" if value else "is"
    return ConfigProblem(
        entry.line, key, f"{subject} not built yet: {reason}", "remove it", NOT_BUILT_YET
    )
