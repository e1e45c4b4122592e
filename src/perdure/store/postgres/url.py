"""What the URL of a PostgreSQL store says: where the database is, and what may be used of it."""

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
class Address:
    """A database, and the ways in which a store may use it."""

    dsn: str = field(repr=False)  # without what is ours; it may hold a password
    schema: str = SCHEMA
    listen: bool = True  # hints by NOTIFY; else by looking
    advisory: bool = True  # a worker's death is seen by its lock; else by its lease

    @property
    def where(self) -> str:
        """The database as it may be shown: no user, no password, no options."""
        parts = urlsplit(self.dsn)
        host = parts.netloc.rpartition("@")[2]
        host = host or dict(parse_qsl(parts.query)).get("host") or "localhost"
        return f"{host}/{unquote(parts.path.lstrip('/'))}"

    def check_files(self) -> None:
        """Raises ConfigError if it names a file that is not there."""
        for name, value in parse_qsl(urlsplit(self.dsn).query):
            if name in _FILES and not Path(value).expanduser().exists():
                raise ConfigError(
                    f"{name} in the store's URL is {value}, and there is no such file",
                    hint="name a file that this user can read",
                )

    @property
    def is_pooled(self) -> bool:
        """Whether each transaction may be on another connection of the server."""
        return not (self.listen or self.advisory)


def address_of(url: str) -> Address:
    """The address in a URL; ConfigError says what is wrong with it, without its password."""
    parts = _parts(url)
    said = dict(parse_qsl(parts.query, keep_blank_values=True))
    ours = {name: said.pop(name) for name in _OURS if name in said}
    schema = ours.get("schema", SCHEMA)
    if not _NAME.fullmatch(schema):
        raise ConfigError(
            f"schema={schema!r} is no name for a schema",
            hint="use small letters, digits and _, at most 51",
        )
    rest = urlencode(said, quote_via=quote)
    return Address(
        urlunsplit(parts._replace(query=rest, fragment="")),
        schema,
        listen=_switch(ours, "listen"),
        advisory=_switch(ours, "advisory"),
    )


def _parts(url: str) -> SplitResult:
    """The parts of a URL in which nothing of a password can be taken for something else."""
    try:
        parts = urlsplit(url)
    except ValueError:  # whose text may hold the password
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


def _switch(said: dict[str, str], name: str) -> bool:
    value = said.get(name, "on")
    if value not in _SWITCH:
        raise ConfigError(
            f"{name}={value} in the store's URL is neither on nor off",
            hint=f"write {name}=off, or leave it out for on",
        )
    return _SWITCH[value]
