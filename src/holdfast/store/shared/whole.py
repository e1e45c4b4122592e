"""What a stream's records must be together, for the stores that read them from a database."""

from collections.abc import Sequence

from holdfast.errors import Corrupt
from holdfast.store.base import Record


def check_whole(records: Sequence[Record], stream: str, after: int, last: int) -> None:
    """Corrupt if one of the records after `after` up to `last` is missing."""
    if len(records) >= last - after:
        return
    there = {record.seq for record in records}
    for seq in range(after + 1, last + 1):
        if seq not in there:
            raise Corrupt(
                f"record {seq} of {stream} is missing", hint="restore a backup of the database"
            )
