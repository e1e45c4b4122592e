"""What the errors of PostgreSQL, its driver and the way to it mean, in one line each."""

from typing import Final, NamedTuple

from perdure.errors import Corrupt, StoreError
from perdure.store.base import Unavailable

_LATER: Final = "it is tried again by itself; perdure doctor looks closer"
_REACH: Final = "check host and port in the URL, and that the server runs; workers try again"
_TLS: Final = "check sslmode and sslrootcert in the URL, and ssl and its certificate on the server"
_POOLED: Final = "add listen=off&advisory=off to the query of the store's URL"
_NO_TABLES: Final = "perdure db migrate makes them"
_DENIED: Final = "STORE_ACCESS_DENIED"
_MISSING: Final = "STORE_NOT_FOUND"
_POOLER: Final = "STORE_POOLED"


class _Meaning(NamedTuple):
    kind: type[StoreError]
    text: str
    hint: str
    code: str | None = None  # None: the kind's own


# By the beginning of its SQLSTATE, the longest that fits.
_MEANINGS: Final = {
    "08": _Meaning(Unavailable, "the connection to {where} broke", _LATER),
    "25006": _Meaning(
        Unavailable,
        "{where} takes no writes",
        "name the primary, not a standby, and a user who may write",
    ),
    "25P03": _Meaning(Unavailable, "a transaction on {where} stood still for too long", _LATER),
    "26000": _Meaning(StoreError, "{where} is a pooler", _POOLED, _POOLER),
    "28": _Meaning(
        StoreError, "{where} does not let us in", "check user and password in the URL", _DENIED
    ),
    "3D000": _Meaning(
        StoreError, "{where} does not exist", "create the database: createdb NAME", _MISSING
    ),
    "40": _Meaning(Unavailable, "{where} had to undo a transaction", _LATER),
    "42501": _Meaning(
        StoreError,
        "{where} does not allow it",
        "let the user own the schema, or grant it the schema, its tables and its sequences",
        _DENIED,
    ),
    "42704": _Meaning(
        StoreError,
        "{where} does not know an option of the URL",
        "leave it out: it is neither the driver's nor the server's",
        "CONFIG_INVALID",
    ),
    "42P01": _Meaning(StoreError, "{where} has no tables of perdure", _NO_TABLES, _MISSING),
    "42P05": _Meaning(StoreError, "{where} is a pooler", _POOLED, _POOLER),
    "53100": _Meaning(Unavailable, "the disk of {where} is full", "make room; nothing was written"),
    "53300": _Meaning(
        Unavailable, "{where} has no connection left", "raise max_connections, or pool"
    ),
    "53": _Meaning(Unavailable, "{where} lacks resources", _LATER),
    "55P03": _Meaning(Unavailable, "a row on {where} stayed locked for too long", _LATER),
    "57014": _Meaning(Unavailable, "{where} called a statement off", _LATER),
    "57": _Meaning(Unavailable, "{where} is stopping or starting", _LATER),
    "58": _Meaning(Unavailable, "{where} has trouble with its files", _LATER),
    "XX001": _Meaning(Corrupt, "{where} has damaged data", "restore a backup of the database"),
    "XX002": _Meaning(Corrupt, "{where} has a damaged index", "REINDEX it, or restore a backup"),
}

UNDONE: Final = ("40001", "40P01")  # the server chose us to give way: the same again may go through
LOCKED: Final = "55P03"  # a row stayed locked
OF_A_ROW: Final = (*UNDONE, LOCKED)
READ_ONLY: Final = "25006"  # the server does not lead; nothing was done
_ENDED: Final = ("25P03", READ_ONLY)
_OF_A_VALUE: Final = ("22", "54")


def is_database_error(error: BaseException) -> bool:
    """Whether the server, its driver or the way to it said so."""
    if isinstance(error, OSError | TimeoutError):
        return True
    return type(error).__module__.split(".")[0] == "asyncpg"


def is_broken(error: BaseException) -> bool:
    """Whether the connection ended, or leads to nobody who leads: another one may do better."""
    code = sqlstate(error)
    if code == "57014":  # one statement was called off
        return False
    return code[:2] in {"08", "57"} or code in _ENDED or (not code and is_database_error(error))


def may_go_again(error: BaseException) -> bool:
    """Whether the same on another connection may do better; not if we waited for long in vain."""
    return is_broken(error) and not isinstance(error, TimeoutError)


def is_of_one(error: Exception) -> bool:
    """Whether it may come from one of the many that a statement is about: a row, or a value."""
    cause = error.__cause__ if isinstance(error, StoreError) else error
    code = "" if cause is None else sqlstate(cause)
    return code in OF_A_ROW or code[:2] in _OF_A_VALUE


def sqlstate(error: BaseException) -> str:
    """The server's own code of an error; empty if it is none of the server's."""
    return str(getattr(error, "sqlstate", None) or "")


def is_misconfigured(error: Exception) -> bool:
    """Whether the driver makes no sense of what the URL says."""
    if isinstance(error, OSError) or sqlstate(error):  # a certificate's is a ValueError too
        return False
    return is_database_error(error) and isinstance(error, ValueError)


def explained(error: Exception, where: str) -> StoreError:
    """What an error means, in one line."""
    code, said = sqlstate(error), _first_line(error)
    if code == "08P01" and "startup parameter" in said:
        code = "26000"
    meaning = _MEANINGS.get(code) or _MEANINGS.get(code[:2])
    if meaning is not None:
        text = f"{meaning.text.format(where=where)} ({said})"
        return meaning.kind(text, hint=meaning.hint, code=meaning.code)
    if code:
        return StoreError(f"PostgreSQL refused on {where}: {said}")
    if is_database_error(error):
        hint = _TLS if "SSL" in said else _REACH
        return Unavailable(f"{where} cannot be reached: {said}", hint=hint)
    return StoreError(f"{where}: {said}")


def pooler(where: str) -> StoreError:
    """What is told of a pooler that keeps our settings to itself."""
    text = f"{where} is a pooler that does not pass on what a connection is set to"
    return StoreError(text, hint=_POOLED, code=_POOLER)


def _first_line(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    return (str(error) or type(error).__name__).splitlines()[0]
