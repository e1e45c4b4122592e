"""What an index of pending calls says of them in the words that others read."""

from collections.abc import Sequence

from holdfast.core.pending import record as pending
from holdfast.core.session import naming as index
from holdfast.errors import Corrupt
from holdfast.store.base import Entry


class PendingNames:
    """Sessions by their ids, statuses as the record of a call has them."""

    def session(self, stream: str) -> str:
        """The session that a stream is of; two tenants may have one of the same name."""
        names = index.names_in(stream)
        return stream if names is None else names[1]

    def status(self, entry: Entry) -> str:
        """The status in the record; of one that cannot be read, the state of its entry."""
        try:
            return str(pending.decode(entry.data).status)
        except Corrupt:
            return entry.state

    def statuses(self, state: str) -> Sequence[str]:
        """An open call waits, or is being processed."""
        return ("open", "waiting", "processing") if state == "open" else (state,)
