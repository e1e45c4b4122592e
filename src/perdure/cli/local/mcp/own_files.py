"""The configuration and the store that belong to the person, not to the folder of a project."""

import os
from dataclasses import replace
from pathlib import Path

from perdure.cli.settings import CONFIG, Settings
from perdure.cli.user_folders import CONFIG_HOME, DATA_HOME, user_folder


def own_config() -> Path:
    """Return the place of the person's own configuration, which need not exist."""
    return user_folder(CONFIG_HOME) / CONFIG


def own_database() -> Path:
    """Return the place of the person's own database; only the person can enter its folder."""
    folder = user_folder(DATA_HOME)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder / "perdure.db"


def with_own_files(settings: Settings) -> Settings:
    """Return settings that name the person's own configuration, if it exists, and store.

    A configuration that names no store gets the same one as without a configuration, so that
    tasks are found again after somebody has written one. Raises ConfigError.
    """
    file = own_config()
    if not os.path.lexists(file):  # a link to nothing is an error of the configuration
        return replace(settings, store=f"sqlite:///{own_database()}")
    from perdure.config import load

    is_named = bool(load(file).store.name)
    store = None if is_named else f"sqlite:///{own_database()}"
    return replace(settings, config=str(file), store=store)


def project_file() -> Path:
    """Return the full path of the configuration of the current folder, which need not exist."""
    return Path(CONFIG).absolute()


def has_project() -> bool:
    """Report whether the current folder has a configuration, without reading it."""
    return os.path.lexists(CONFIG)
