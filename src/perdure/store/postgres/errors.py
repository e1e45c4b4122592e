"""Meanings of the errors of PostgreSQL, its driver and the network, one line each."""

from typing import Final, NamedTuple

from perdure.errors import Corrupt, StoreError
from perdure.store.base import Unavailable

_LATER: Final = "workers try again on their own; perdure doctor checks the database"
_REACH: Final = "check host and port in the URL, and that the server runs; workers try again"
_TLS: Final = "check sslmode and sslrootcert in the URL, and ssl and its certificate on the server"
_POOLED: Final = "add listen=off&advisory=off to the query of the store's URL"
_NO_TABLES: Final = "create them: perdure db migrate"
_DENIED: Final = "STORE_ACCESS_DENIED"
_MISSING: Final = "STORE_NOT_FOUND"
_POOLER: Final = "STORE_POOLED"


class _Meaning(NamedTuple):
    kind: type[StoreError]
    text: str
    hint: str
    code: str | None = None  # None: that of the kind


# By the SQLSTATE of an error, or by its first two characters.
_MEANINGS: Final = {
    "08": _Meaning(Unavailable, "the connection to {where} broke", _LATER),
    "25006": _Meaning(
        Unavailable,
        "{where} does not accept writes",
        "name the primary, not a standby, and a user who may write",
    ),
    "25P03": _Meaning(Unavailable, "a transaction on {where} was idle for too long", _LATER),
    "26000": _Meaning(StoreError, "{where} is a pooler", _POOLED, _POOLER),
    "28": _Meaning(
        StoreError, "{where} refused the login", "check user and password in the URL", _DENIED
    ),
    "3D000": _Meaning(
        StoreError, "{where} does not exist", "create the database: createdb NAME", _MISSING
    ),
    "40": _Meaning(Unavailable, "{where} rolled back a transaction", _LATER),
    "42501": _Meaning(
        StoreError,
        "{where} denied a permission",
        "let the user own the schema, or grant it the schema, its tables and its sequences",
        _DENIED,
    ),
    "42704": _Meaning(
        StoreError,
        "{where} does not support an option of the URL",
        "remove it: neither the driver nor the server has such an option",
        "CONFIG_INVALID",
    ),
    "42P01": _Meaning(StoreError, "{where} has no tables of perdure", _NO_TABLES, _MISSING),
    "42P05": _Meaning(StoreError, "{where} is a pooler", _POOLED, _POOLER),
    "53100": _Meaning(
        Unavailable, "the disk of {where} is full", "free some space; nothing was written"
    ),
    "53300": _Meaning(
        Unavailable, "{where} has no connection left", "raise max_connections, or pool"
    ),
    "53": _Meaning(Unavailable, "{where} lacks resources", _LATER),
    "55P03": _Meaning(Unavailable, "a row on {where} stayed locked for too long", _LATER),
    "57014": _Meaning(Unavailable, "{where} cancelled a statement", _LATER),
    "57": _Meaning(Unavailable, "{where} is stopping or starting", _LATER),
    "58": _Meaning(Unavailable, "{where} failed to use its files", _LATER),
    "XX001": _Meaning(Corrupt, "{where} has damaged data", "restore a backup of the database"),
    "XX002": _Meaning(Corrupt, "{where} has a damaged index", "REINDEX it, or restore a backup"),
}

UNDONE: Final = ("40001", "40P01")  # rolled back because of a conflict: a retry may succeed
LOCKED: Final = "55P03"  # a row stayed locked until the timeout
ROW_STATES: Final = (*UNDONE, LOCKED)
READ_ONLY: Final = "25006"  # the server is a standby; nothing was done
_ENDED: Final = ("25P03", READ_ONLY)
_OF_A_VALUE: Final = ("22", "54")


def is_database_error(error: BaseException) -> bool:
    """Return whether the server, its driver or the network raised the error."""
    if isinstance(error, OSError | TimeoutError):
        return True
    return type(error).__module__.split(".")[0] == "asyncpg"


def is_broken(error: BaseException) -> bool:
    """Return whether the connection ended, or leads to a standby: another one may work."""
    code = sqlstate(error)
    if code == "57014":  # only a statement was cancelled
        return False
    return code[:2] in {"08", "57"} or code in _ENDED or (not code and is_database_error(error))


def is_retryable(error: BaseException) -> bool:
    """Return whether a retry on another connection may succeed; not after a timeout."""
    return is_broken(error) and not isinstance(error, TimeoutError)


def is_row_error(error: Exception) -> bool:
    """Return whether a single row or value of a statement may have caused the error."""
    cause = error.__cause__ if isinstance(error, StoreError) else error
    code = "" if cause is None else sqlstate(cause)
    return code in ROW_STATES or code[:2] in _OF_A_VALUE


def sqlstate(error: BaseException) -> str:
    """Return the server's code of an error; empty if the server did not raise it."""
    return str(getattr(error, "sqlstate", None) or "")


def is_misconfigured(error: Exception) -> bool:
    """Return whether the driver rejected the URL."""
    if isinstance(error, OSError) or sqlstate(error):  # a certificate's error is a ValueError too
        return False
    return is_database_error(error) and isinstance(error, ValueError)


def explain_error(error: Exception, where: str) -> StoreError:
    """Map an error to our error tree, with a message of one line and a hint."""
    code, text = sqlstate(error), _first_line(error)
    if code == "08P01" and "startup parameter" in text:
        code = "26000"
    meaning = _MEANINGS.get(code) or _MEANINGS.get(code[:2])
    if meaning is not None:
        message = f"{meaning.text.format(where=where)} ({text})"
        return meaning.kind(message, hint=meaning.hint, code=meaning.code)
    if code:
        return StoreError(f"PostgreSQL refused on {where}: {text}")
    if is_database_error(error):
        hint = _TLS if "SSL" in text else _REACH
        return Unavailable(f"{where} cannot be reached: {text}", hint=hint)
    return StoreError(f"{where}: {text}")


def pooler_error(where: str) -> StoreError:
    """Return the error for a pooler that does not pass on our settings."""
    text = f"{where} is a pooler that does not pass on the settings of a connection"
    return StoreError(text, hint=_POOLED, code=_POOLER)


def _first_line(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "no reply in time"
    return (str(error) or type(error).__name__).splitlines()[0]
