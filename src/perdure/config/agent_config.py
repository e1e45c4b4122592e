"""`agent-config.json`: the storage of the sessions of `perdure.sessions`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from perdure.config.problems import quoted_list
from perdure.core.text import did_you_mean
from perdure.errors import ConfigError

FILE: Final = "agent-config.json"
StorageType = Literal["none", "memory", "filesystem", "sqlite", "postgres"]
_TYPES: Final = get_args(StorageType)
_URLS: Final = ("postgresql://", "postgres://")
_PATHS: Final[Mapping[str, str]] = {"filesystem": ".agent-sessions", "sqlite": "perdure.db"}


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """The `storage` block, with defaults for missing keys."""

    type: StorageType = "none"
    path: str = ""
    url: str = ""  # of a PostgreSQL database


def load_storage(file: Path) -> StorageConfig:
    """Read the storage configuration of a file; without the file or the block nothing is stored."""
    try:
        data = json.loads(file.read_bytes())
    except FileNotFoundError:
        return StorageConfig()
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    return parse_storage(_object(data, str(file)), str(file))


def parse_storage(data: Mapping[str, Any], file: str = FILE) -> StorageConfig:
    """Return the `storage` block of a configuration. ConfigError names the key."""
    storage = _object(data.get("storage", {}), f"{file}: storage")
    kind = storage.get("type", "none")
    if kind not in _TYPES:
        suggestion = did_you_mean(kind, _TYPES) if isinstance(kind, str) else ""
        raise ConfigError(
            f"{file}: storage.type: must be {quoted_list(_TYPES)}, not {kind!r}{suggestion}",
            hint="without a storage block nothing is stored",
        )
    options = _object(storage.get("options", {}), f"{file}: storage.options")
    path = options.get("path", _PATHS.get(kind, ""))
    if not isinstance(path, str) or (kind in _PATHS and not path):
        raise ConfigError(f"{file}: storage.options.path: must be text")
    url = _database_url(options, file) if kind == "postgres" else ""
    return StorageConfig(cast("StorageType", kind), path, url)


def _database_url(options: Mapping[str, Any], file: str) -> str:
    url = options.get("url")
    if not isinstance(url, str) or not url.startswith(_URLS):
        raise ConfigError(
            f"{file}: storage.options.url: must be the URL of a PostgreSQL database",
            hint='for example {"type": "postgres", "options": {"url": "postgresql://host/name"}}; '
            "the password may come from PGPASSWORD",
        )
    return url


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: must be an object, not {value!r}")
    return value
