"""Stores of a configuration."""

from typing import Annotated, Literal, Self

from pydantic import PrivateAttr, ValidationInfo, model_validator

from perdure.config.blocks import Block, NamedBlock
from perdure.config.paths import ConfigFolder
from perdure.config.problems import InvalidValue, quoted_list
from perdure.config.values import Choice, FolderPath, Hidden, RedisUrl, Text, folder_of

DEFAULT_DATABASE = "perdure.db"


class SqlConfig(Block):
    """Database of a store."""

    driver: Annotated[Literal["sqlite", "postgres"], Choice("driver")]
    database: Hidden[Text]  # the URL of a database server may contain a password

    def url(self, folder: ConfigFolder) -> str:
        """Return its URL. InvalidValue if the database does not fit the driver."""
        if self.driver == "postgres":
            if not self.database.startswith(("postgresql://", "postgres://")):
                raise InvalidValue("the database of driver postgres must be postgresql://…")
            return self.database
        if self.database == ":memory:":
            hint = "use backend: memory"
            raise InvalidValue("the database of driver sqlite must be a file", hint)
        if "://" in self.database:
            raise InvalidValue("the database of driver sqlite must be a path, not a URL")
        return f"sqlite:///{folder.resolve(self.database)}"


class FilesConfig(Block):
    """Folder of a store."""

    path: FolderPath


class StoreConfig(NamedBlock):
    """Store of the sessions."""

    backend: Annotated[Literal["sql", "memory", "files"], Choice("backend")]
    sql: SqlConfig | None = None
    files: FilesConfig | None = None
    index: Hidden[RedisUrl | None] = None  # a Redis index in front of it
    _url: str = PrivateAttr("")

    @classmethod
    def default(cls, folder: ConfigFolder) -> Self:
        """Return the store beside the configuration, if that names none."""
        database = str(folder.resolve(DEFAULT_DATABASE))
        return cls(backend="sql", sql=SqlConfig(driver="sqlite", database=database))

    @property
    def url(self) -> str:
        """URL as `Runtime(store=)` takes it, with absolute paths."""
        return self._url

    @property
    def is_durable(self) -> bool:
        """True if its sessions outlive the process."""
        return self.backend != "memory"

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> Self:
        blocks = [name for name in ("sql", "files") if getattr(self, name) is not None]
        if extra := [name for name in blocks if name != self.backend]:
            raise InvalidValue(f"backend {self.backend} does not take {quoted_list(extra)}")
        if self.sql is not None:
            self._url = self.sql.url(folder_of(info))
        elif self.files is not None:
            self._url = f"files:{self.files.path}"
        elif self.backend == "memory":
            self._url = "memory:"
        else:
            keys = "driver, database" if self.backend == "sql" else "path"
            raise InvalidValue(f"backend {self.backend} needs {self.backend}: {{{keys}}}")
        return self
