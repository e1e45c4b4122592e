"""A newer perdure from the database's view: one more schema step, and one fewer."""

from perdure.store.postgres.schema import SchemaStep, known_steps
from perdure.store.postgres.store import PostgresStore

OLD, NEWER = "", "newer"
NEWEST_OF_OLD = known_steps()[-1].number
EXPAND = SchemaStep(
    NEWEST_OF_OLD + 1,
    "9001_note",
    "ALTER TABLE stream ADD COLUMN note text; CREATE INDEX stream_note ON stream (note);",
)
CONTRACT = SchemaStep(
    NEWEST_OF_OLD + 2,
    "9002_no_index",
    f"-- oldest program: {NEWEST_OF_OLD + 1}\nDROP INDEX stream_note;",
)


def newer_store(url: str) -> PostgresStore:
    """Return the store as the newer version opens it."""
    return PostgresStore(url, steps=[*known_steps(), EXPAND])


async def contract(url: str) -> list[str]:
    """Run the contracting step of `perdure db migrate` of the newest version."""
    return await PostgresStore(url, steps=[*known_steps(), EXPAND, CONTRACT]).migrate()
