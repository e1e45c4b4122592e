"""Public value of a lock."""

from datetime import datetime

from msgspec import Struct

from perdure.tasks.model.locks import LockMode
from perdure.views.base import instant


class LockInfo(Struct, frozen=True, gc=False):
    """A lock as its holder has it; `version` is its fencing token.

    `timeout` is in ms. `holders` are the owners of all present holders; `token` is empty in a
    status, since only the holder may know it.
    """

    resource: str
    owner: str
    acquired: float  # seconds since 1970
    timeout: float | None = None
    version: int = 0
    mode: LockMode = "exclusive"
    token: str = ""
    holders: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Name of this acquisition."""
        return self.token or f"v{self.version}"

    @property
    def acquired_at(self) -> datetime:
        """The instant of the acquisition."""
        return instant(round(self.acquired * 1000))
