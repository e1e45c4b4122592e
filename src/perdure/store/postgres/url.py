"""The URL of a PostgreSQL store: the address of the database, and options of the store."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from perdure.errors import ConfigError

SCHEMA: Final = "perdure"
_OURS: Final[tuple[str, ...]] = ("listen", "advisory", "schema")
_FILES: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
_SWITCH: Final = {"on": True, "off": False}
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,50}")
_HOSTS: Final = re.compile(r"(?:(?:\[[^]]*\]|[^][:,@]*)(?::\d*)?(?:,|$))*")


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """Address of a database, with the store's own options."""

    dsn: str = field(repr=False)  # without our own options; it may contain a password
    schema: str = SCHEMA
    listen: bool = True  # signals by NOTIFY; else by polling
    advisory: bool = True  # a dead worker is detected by its lock; else by its lease

    @property
    def where(self) -> str:
        """The host and name of the database, without user, password and options."""
        parts = urlsplit(self.dsn)
        host = parts.netloc.rpartition("@")[2]
        host = host or dict(parse_qsl(parts.query)).get("host") or "localhost"
        return f"{host}/{unquote(parts.path.lstrip('/'))}"

    def check_files(self) -> None:
        """Raise ConfigError if an option names a missing file."""
        for name, value in parse_qsl(urlsplit(self.dsn).query):
            if name in _FILES and not Path(value).expanduser().exists():
                raise ConfigError(
                    f"{name} in the store's URL is {value}, which does not exist",
                    hint="name a file that this user can read",
                )

    @property
    def is_pooled(self) -> bool:
        """Each transaction may run on another connection of the server."""
        return not (self.listen or self.advisory)


def parse_address(url: str) -> PostgresAddress:
    """Parse a URL. Raises ConfigError, whose text never contains the password."""
    parts = _parts(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    ours = {name: options.pop(name) for name in _OURS if name in options}
    schema = ours.get("schema", SCHEMA)
    if not _NAME.fullmatch(schema):
        raise ConfigError(
            f"schema={schema!r} is not a name of a schema",
            hint="use at most 51 lowercase letters, digits and underscores",
        )
    rest = urlencode(options, quote_via=quote)
    return PostgresAddress(
        urlunsplit(parts._replace(query=rest, fragment="")),
        schema,
        listen=_is_on(ours, "listen"),
        advisory=_is_on(ours, "advisory"),
    )


def _parts(url: str) -> SplitResult:
    """Split a URL, and reject one where a part of the password could end up elsewhere."""
    try:
        parts = urlsplit(url)
    except ValueError:  # its text may contain the password
        parts = None
    if parts is not None and parts.scheme not in {"postgresql", "postgres"}:
        raise ConfigError("the URL of a PostgreSQL store begins with postgresql://")
    is_clear = (
        parts is not None
        and _HOSTS.fullmatch(parts.netloc.rpartition("@")[2])
        and "@" not in parts.path + parts.query + parts.fragment
    )
    if parts is None or not is_clear:
        raise ConfigError(
            "the store's URL is not postgresql://user:password@host:port/database",
            hint="write @ : / ? # [ ] in its parts as %40 %3A %2F %3F %23 %5B %5D",
        )
    return parts


def _is_on(options: dict[str, str], name: str) -> bool:
    value = options.get(name, "on")
    if value not in _SWITCH:
        raise ConfigError(
            f"{name}={value} in the store's URL is neither on nor off",
            hint=f"write {name}=off, or leave it out for on",
        )
    return _SWITCH[value]
