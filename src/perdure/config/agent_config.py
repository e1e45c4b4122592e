"""`agent-config.json`: where the sessions of `perdure.sessions` are kept."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from perdure.config.problems import did_you_mean, listed
from perdure.errors import ConfigError

FILE: Final = "agent-config.json"
StorageType = Literal["none", "memory", "filesystem", "sqlite"]
_TYPES: Final = get_args(StorageType)
_PATHS: Final[Mapping[str, str]] = {"filesystem": ".agent-sessions", "sqlite": "perdure.db"}


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """The `storage` block; what it leaves out is as by default."""

    type: StorageType = "none"
    path: str = ""


def load_storage(file: Path) -> StorageConfig:
    """What a file says; without a file, or without the block, nothing is kept."""
    try:
        said = json.loads(file.read_bytes())
    except FileNotFoundError:
        return StorageConfig()
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    return storage_of(_object(said, str(file)), str(file))


def storage_of(said: Mapping[str, Any], file: str = FILE) -> StorageConfig:
    """The `storage` block of a configuration. ConfigError names the key."""
    storage = _object(said.get("storage", {}), f"{file}: storage")
    kind = storage.get("type", "none")
    if kind not in _TYPES:
        near = did_you_mean(kind, _TYPES) if isinstance(kind, str) else ""
        raise ConfigError(
            f"{file}: storage.type: must be {listed(_TYPES)}, not {kind!r}{near}",
            hint="without a storage block nothing is kept",
        )
    options = _object(storage.get("options", {}), f"{file}: storage.options")
    path = options.get("path", _PATHS.get(kind, ""))
    if not isinstance(path, str) or (kind in _PATHS and not path):
        raise ConfigError(f"{file}: storage.options.path: must be text")
    return StorageConfig(cast("StorageType", kind), path)


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: must be an object, not {value!r}")
    return value
