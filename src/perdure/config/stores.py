"""Which stores there are, and the one that this process uses."""

from collections.abc import Mapping
from typing import Any

from perdure.config.kinds import Wrong
from perdure.config.paths import Folder
from perdure.config.problems import did_you_mean, listed
from perdure.config.settings import StoreConfig

DEFAULT_DATABASE = "perdure.db"


def store_of(name: str, said: Mapping[str, Any], folder: Folder) -> StoreConfig:
    """An entry of `session_stores`; Wrong if its keys do not go together."""
    backend = said["backend"]
    if extra := [block for block in ("sql", "files") if block in said and block != backend]:
        raise Wrong(f"backend {backend} takes no {listed(extra)}")
    if backend == "memory":
        return StoreConfig(name=name, backend=backend, url="memory:", index=said.get("index"))
    if backend not in said:
        keys = "driver, database" if backend == "sql" else "path"
        raise Wrong(f"backend {backend} needs {backend}: {{{keys}}}")
    if backend == "files":
        url = f"files:{folder.place(said['files']['path'])}"
    else:
        url = _sql_url(said["sql"], folder)
    return StoreConfig(name=name, backend=backend, url=url, index=said.get("index"))


def _sql_url(sql: Mapping[str, str], folder: Folder) -> str:
    database = sql["database"]
    if sql["driver"] == "postgres":
        if not database.startswith(("postgresql://", "postgres://")):
            raise Wrong("the database of driver postgres must be postgresql://…")
        return database
    if database == ":memory:":
        raise Wrong("the database of driver sqlite must be a file", "use backend: memory")
    if "://" in database:
        raise Wrong("the database of driver sqlite must be a path, not a URL")
    return f"sqlite:///{folder.place(database)}"


def named_store(name: str, stores: Mapping[str, StoreConfig | None]) -> StoreConfig | None:
    """The store that an agent names; None if it has problems of its own, Wrong if there is none."""
    if name not in stores:
        near = did_you_mean(name, stores)
        known = ", ".join(stores) or "none"
        raise Wrong(f"there is no session store {name!r}{near}", f"session_stores: {known}")
    return stores[name]


def one_store(mine: StoreConfig, others: Mapping[str, StoreConfig]) -> None:
    """Wrong if an agent before this one uses another store: a process has one."""
    for agent, other in others.items():
        if other.url != mine.url:
            raise Wrong(
                f"is another store than {other.name!r} of agent {agent!r}, and a process has one",
                "let all agents name the same store, or make two configurations",
            )


def same_store(sql: Mapping[str, str], store: StoreConfig, folder: Folder) -> None:
    """Wrong if the tasks of an agent were to live elsewhere than its sessions."""
    if _sql_url(sql, folder) != store.url:
        raise Wrong(
            "is another database than that of the session store, where tasks are kept too",
            "leave it out, or make it the session store: a process has one",
        )


def default_store(stores: Mapping[str, StoreConfig], folder: Folder) -> StoreConfig:
    """The store where no agent names one: the only durable one, else a file beside the YAML."""
    durable = {store.url: store for store in stores.values() if store.is_durable}
    if len(durable) > 1:
        raise Wrong(
            "has several durable stores, and no agent says which one is used",
            "name one with session_store in an agent, or leave the others out",
        )
    if durable:
        return next(iter(durable.values()))
    place = folder.place(DEFAULT_DATABASE)
    return StoreConfig(name="", backend="sql", url=f"sqlite:///{place}")
