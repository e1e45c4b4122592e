"""The store that the options of a command name, to be inspected without opening it."""

from perdure.app import store_of
from perdure.app.stores import without_index
from perdure.cli.backend.open import load_runtime
from perdure.cli.settings import Settings
from perdure.errors import ConfigError, Refused
from perdure.store.base import Store
from perdure.store.files.folder import check_folder
from perdure.store.files.store import mirror_of
from perdure.store.inspect import StoreInspector
from perdure.store.postgres import inspect as postgres_inspect
from perdure.store.sqlite import inspect as sqlite_inspect


def inspection(settings: Settings) -> tuple[StoreInspector, int]:
    """Return an inspector of the store that the options name, and the present instant.

    The store is not opened.
    """
    store = load_store(settings)
    inspector = postgres_inspect.postgres_inspector(store)
    if inspector is not None:
        return inspector, inspector.clock()
    return sqlite_inspection(settings)


def load_store(settings: Settings) -> Store:
    """Return the store, not open yet."""
    return without_index(store_of(load_runtime(settings, "existing")))


def sqlite_inspection(settings: Settings) -> tuple[sqlite_inspect.SqliteInspector, int]:
    store = load_store(settings)
    path = sqlite_inspect.sqlite_path(store)
    if path is None:
        raise Refused(
            "this command needs a SQLite database, and the store is of another kind",
            code="NOT_SQLITE",
            hint="name one with --store sqlite:///perdure.db; for PostgreSQL use pg_dump",
        )
    mirror = mirror_of(store)
    if mirror is not None:
        check_folder(mirror.base)
    if not path.exists():
        raise ConfigError(
            f"there is no database {str(path)!r}",
            code="STORE_NOT_FOUND",
            hint="check the path; perdure run and perdure worker create the database",
        )
    return sqlite_inspect.SqliteInspector(path), store.now()
