"""The way from a file to a Config: read, build, refuse what is not there yet."""

import os
from collections.abc import Mapping
from pathlib import Path

from perdure.config.build import build
from perdure.config.not_built import not_built
from perdure.config.problems import Problem, error_of
from perdure.config.reader import Reader
from perdure.config.settings import Config
from perdure.config.source import read_nodes
from perdure.config.table import TABLE


def load(path: str | os.PathLike[str]) -> Config:
    """The configuration in a YAML file, completely checked; nothing of the user's is imported.

    ConfigError names every mistake with file, line and key; NOT_BUILT_YET is the code where the
    only ones are parts that this version does not have.
    """
    config, missing = parse(Path(path), os.environ)
    if missing:
        raise error_of(str(path), missing)
    return config


def parse(path: Path, environ: Mapping[str, str]) -> tuple[Config, list[Problem]]:
    """The configuration, and what in it is not built yet. ConfigError for mistakes."""
    node = read_nodes(path)
    reader = Reader(environ)
    data = reader.read(TABLE, node)
    if reader.problems:
        raise error_of(str(path), reader.problems)
    config, notes = build(data, reader.entries, path)
    if config is None:
        raise error_of(str(path), notes.problems)
    return config, not_built(reader.entries)
