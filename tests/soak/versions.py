"""A newer perdure, as far as the database sees it: one step of the schema more, and one less."""

from perdure.store.postgres.schema import Step, known_steps
from perdure.store.postgres.store import PostgresStore

OLD, NEWER = "", "newer"
NEWEST_OF_OLD = known_steps()[-1].number
EXPAND = Step(
    NEWEST_OF_OLD + 1,
    "9001_note",
    "ALTER TABLE stream ADD COLUMN note text; CREATE INDEX stream_note ON stream (note);",
)
CONTRACT = Step(
    NEWEST_OF_OLD + 2,
    "9002_no_index",
    f"-- oldest program: {NEWEST_OF_OLD + 1}\nDROP INDEX stream_note;",
)


def newer_store(url: str) -> PostgresStore:
    """The store as the newer one opens it."""
    return PostgresStore(url, steps=[*known_steps(), EXPAND])


async def contract(url: str) -> list[str]:
    """What `perdure db migrate` of the newest does."""
    return await PostgresStore(url, steps=[*known_steps(), EXPAND, CONTRACT]).migrate()
