"""Opening of a SQLite file: checks of its path, file system and schema, migrations, errors."""

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Final, Literal

from perdure.errors import Corrupt, SchemaNewer, StoreError
from perdure.store.base import Unavailable
from perdure.store.shared.file_lock import has_mark

MOUNTS: Final = Path("/proc/self/mounts")

# A write-ahead log needs shared memory, which processes on different machines do not have.
# fmt: off
_NETWORK: Final = frozenset({
    "nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "afs", "ceph", "glusterfs", "lustre",
    "beegfs", "gpfs", "pvfs2", "orangefs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph",
    "fuse.davfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.juicefs", "fuse.blobfuse",
    "fuse.blobfuse2",
})
# Folders of the host inside a virtual machine, where locks and shared memory often fail.
_DOUBTFUL: Final = frozenset({"9p", "virtiofs", "vboxsf", "fuse.vmhgfs-fuse", "fuse.grpcfuse"})
# fmt: on

FileSystemRating = Literal["local", "doubtful", "network"]


def file_system(path: Path, mounts: Path = MOUNTS) -> str | None:
    """Return the type of the file system under a path; None where the system does not report it."""
    try:
        table = mounts.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    real_path = os.path.realpath(path)
    best, file_system_type = -1, None
    for row in table.splitlines():
        _, point, kind, *_ = [*row.split(" "), "", "", ""]
        point = _plain(point)
        # The last of several mounts on one point hides the others.
        if len(point) >= best and _is_under(real_path, point):
            best, file_system_type = len(point), kind
    return file_system_type


def rate_file_system(kind: str | None) -> FileSystemRating:
    """Rate a file system of this type as a location for a database."""
    if kind in _NETWORK:
        return "network"
    return "doubtful" if kind in _DOUBTFUL else "local"


def check_file_system(path: Path, mounts: Path = MOUNTS) -> None:
    """Raise StoreError where a write-ahead log cannot work."""
    kind = file_system(path, mounts)
    if rate_file_system(kind) == "network":
        raise StoreError(
            f"{path} is on a network file system ({kind}), where SQLite's write-ahead log "
            "does not work",
            code="NETWORK_FILE_SYSTEM",
            hint="put the database on a local disk",
        )


def _plain(point: str) -> str:
    """Return a mount point as a path: the table has spaces and the like as octal numbers."""
    for mark, letter in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        point = point.replace(mark, letter)
    return point


def _is_under(path: str, point: str) -> bool:
    return bool(point) and (point in ("/", path) or path.startswith(f"{point}/"))


Connect = Callable[[str], sqlite3.Connection]

APPLICATION_ID = 0x686F6C64  # "hold": what makes a SQLite file ours
BUSY_S = 10.0  # wait for programs that write the file without our lock
WAL_LIMIT_BYTES = 16 * 1024 * 1024
_SMALLEST = 512  # bytes of the smallest database: its first page
PAGE_BYTES = 8192  # of new files: events of some hundred bytes leave less unused space

# NORMAL would lose acknowledged commits at power loss. Only the writer checkpoints the log, under
# the lock: concurrent checkpoints can corrupt the file in SQLite before 3.51.3.
_SETTINGS = (
    f"PRAGMA busy_timeout = {int(BUSY_S * 1000)}",
    "PRAGMA synchronous = FULL",
    "PRAGMA fullfsync = ON",
    "PRAGMA wal_autocheckpoint = 0",
    f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}",
)

_PERMISSIONS = "check the permissions of the file and its directory"

# By SQLite's primary result code: our error, its message, and its hint.
_MEANINGS: dict[int, tuple[type[StoreError], str, str]] = {
    3: (Unavailable, "access to {path} is denied", "check the permissions of the file"),
    5: (Unavailable, "another program keeps {path} locked", "end it, or try again later"),
    6: (Unavailable, "another program keeps {path} locked", "end it, or try again later"),
    8: (Unavailable, "{path} cannot be written", _PERMISSIONS),
    10: (Unavailable, "the disk under {path} failed", "check the disk, then try again"),
    11: (Corrupt, "{path} is damaged", "restore a backup, or try `sqlite3 FILE .recover`"),
    13: (Unavailable, "the disk under {path} is full", "free some space, then try again"),
    14: (Unavailable, "{path} cannot be opened", _PERMISSIONS),
    26: (Corrupt, "{path} is not a SQLite database", "name another file, or restore a backup"),
}


# Errors after which a COMMIT is certainly not in the write-ahead log: its last frame, which alone
# makes it valid, was not written in full. After a failed sync it may be there.
_UNDONE: Final = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR_WRITE,  # also a file system that is now read-only, or a file too large
    }
)


def python_connect(path: str) -> sqlite3.Connection:
    """Open a connection of Python's own SQLite, for use by one thread at a time."""
    return sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)


def apply_settings(connection: sqlite3.Connection, *, reader: bool = False) -> sqlite3.Connection:
    """Apply our settings to a connection and return it; a reader's cannot write."""
    for setting in _SETTINGS:
        connection.execute(setting)
    if reader:
        connection.execute("PRAGMA query_only = ON")
    return connection


def check_file(path: Path) -> None:
    """Raise StoreError if something other than a file is there: to open a pipe would wait."""
    if path.is_dir():
        raise StoreError(f"{path} is a directory", hint=f"name a file in it: {path}/perdure.db")
    if path.exists() and not path.is_file():
        raise StoreError(f"{path} is not a regular file", hint="name another file")


def check_path(path: Path) -> None:
    """Raise StoreError if the path cannot be a database file."""
    check_file(path)
    if not path.parent.is_dir():
        raise StoreError(
            f"there is no directory {path.parent}", hint=f"create it first: mkdir -p {path.parent}"
        )
    # SQLite opens such a file all the same, and would fail only at the first commit.
    if path.exists() and not os.access(path, os.W_OK):
        raise StoreError(f"{path} cannot be written", hint="check the permissions of the file")
    check_file_system(path)


def check_not_emptied(path: Path) -> None:
    """Raise Corrupt if the database is empty or missing although sessions were in it.

    SQLite would take the file for a new database, and delete its write-ahead log.
    """
    size, log_size = _size(path), _size(Path(f"{path}-wal"))
    has_log = log_size is not None and log_size > 0
    if size is None and has_log:
        text = f"{path} is missing, and its write-ahead log {path}-wal is there"
    elif size is not None and size < _SMALLEST and (has_log or has_mark(Path(f"{path}.lock"))):
        text = f"{path} is empty, and sessions were in it"
    else:
        return
    hint = f"restore a backup; to begin anew, delete {path}, {path}-wal and {path}.lock"
    raise Corrupt(text, hint=hint)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


@contextmanager
def open_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a connection that changes nothing, not even by the WAL checkpoint of its close."""
    check_file(path)
    check_not_emptied(path)
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None)
        with closing(connection):
            yield connection
    except Exception as error:
        if is_database_error(error):
            raise explain_error(error, path) from error
        raise


def check_database(connection: sqlite3.Connection, path: Path, *, new: bool) -> int:
    """Return the schema number of a database of ours; 0 for an empty file, if `new` is set.

    Raises StoreError for another program's database, SchemaNewer for one of a newer perdure.
    """
    application, version = (
        _number(connection, "application_id"),
        _number(connection, "user_version"),
    )
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    is_empty = application == 0 and version == 0 and tables == 0
    if application != APPLICATION_ID and not (new and is_empty):
        raise StoreError(
            f"{path} is not a perdure database",
            hint="it belongs to another program, or was replaced: name another file",
        )
    if version > len(migrations()):
        raise SchemaNewer(
            f"{path} has schema {version}; this perdure supports {len(migrations())}",
            hint="a newer perdure wrote it: upgrade with pip install -U perdure",
        )
    return version


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Apply the missing migrations in one transaction; the caller holds the write lock."""
    version = check_database(connection, path, new=True)
    if version == 0:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreError(f"{path} cannot have a write-ahead log", hint="put it on a local disk")
    steps = migrations()
    if version == len(steps):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in _missing_statements(connection, steps[version:]):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(steps)}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _missing_statements(connection: sqlite3.Connection, scripts: Sequence[str]) -> Iterator[str]:
    """Yield statements; without SQLite's JSON functions none that needs them at once."""
    try:
        connection.execute("SELECT json_valid('{}')").fetchone()
    except connection.Error:
        has_json = False
    else:
        has_json = True
    for script in scripts:
        for statement in _statements(script):
            # A view needs them only when it is read.
            if has_json or "json_" not in statement or "CREATE VIEW" in statement:
                yield statement


def migrations() -> list[str]:
    """Return all migrations, oldest first; the schema number is the count of those applied."""
    folder = files("perdure.store").joinpath("sql", "sqlite")
    steps = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
    return [step.read_text(encoding="utf-8") for step in steps]


# Python cannot decode the text of an error in which SQLite quotes a damaged schema.
UNREADABLE: Final = (sqlite3.DatabaseError, UnicodeDecodeError)


def is_database_error(error: Exception) -> bool:
    """Return whether SQLite raised the error; each SQLite module has its own `Error` (PEP 249)."""
    is_own = any(base.__name__ == "Error" for base in type(error).__mro__)
    return is_own or isinstance(error, UnicodeDecodeError)


def is_commit_undone(error: Exception) -> bool:
    """Return whether a COMMIT that failed with this error has certainly written nothing."""
    return getattr(error, "sqlite_errorcode", None) in _UNDONE


def explain_error(error: Exception, path: Path) -> StoreError:
    """Map a database error to our error tree, with a message of one line and a hint."""
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(error, UnicodeDecodeError):
        error = ValueError("malformed database schema")
    if isinstance(error, ValueError) or "decode to UTF-8" in str(error):
        code = sqlite3.SQLITE_CORRUPT
    if code is None or code & 0xFF not in _MEANINGS:
        return StoreError(f"SQLite refused on {path}: {error}")
    kind, text, hint = _MEANINGS[sqlite3.SQLITE_FULL if _is_full(code, path) else code & 0xFF]
    return kind(f"{text.format(path=path)} ({error})", hint=hint)


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])


def _is_full(code: int, path: Path) -> bool:
    """Return whether an I/O error is one of a full disk: the shared memory cannot grow."""
    try:
        return code & 0xFF == sqlite3.SQLITE_IOERR and shutil.disk_usage(path.parent).free == 0
    except OSError:
        return False


def _statements(script: str) -> Iterator[str]:
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement.strip()
            statement = ""
