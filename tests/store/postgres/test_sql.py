"""What goes over to PostgreSQL as text, and comes back as it was."""

import asyncio

from perdure.store.base import Put, Record, Write
from perdure.store.postgres.sql import text_array
from perdure.store.postgres.store import PostgresStore

NAMES = ["plain", '"', "\\", '\\"', "{a,b}", "NULL", " ", "a\nb", "é😀", "\0", "\1", "','", '","']


def test_an_array_of_texts_is_written_as_the_server_reads_it() -> None:
    assert text_array([]) == "{}"
    assert text_array(["a", "", "b c"]) == '{"a","","b c"}'
    assert text_array(["a", None]) == '{"a",NULL}'
    assert text_array(['say "x"', "\\"]) == '{"say \\"x\\"","\\\\"}'


async def test_names_and_data_come_back_as_they_were(store: PostgresStore) -> None:
    """One batch: what is a mark in an array is a letter in a name, and data keep their bounds."""
    data = [bytes(range(256)) * n for n in range(len(NAMES))]  # the first is empty
    await asyncio.gather(
        *(
            store.commit(
                [Write(name, [Record(name, one), Record("more", b"")], create=name, head=0)],
                [Put(name, name, 0, name, name, None, one)],
            )
            for name, one in zip(NAMES, data, strict=True)
        )
    )
    for name, one in zip(NAMES, data, strict=True):
        read = await store.read(name)
        assert [(record.type, record.data) for record in read.records] == [
            (name, one),
            ("more", b""),
        ]
        entry = await store.get(name, name)
        assert entry is not None
        assert (entry.stream, entry.state, entry.data) == (name, name, one)
