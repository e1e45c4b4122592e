"""How an agent waits for people: in place, or saved with nothing left in memory."""

from typing import Final, Literal

from perdure.config.kinds import Wrong
from perdure.config.settings import StoreConfig

Mode = Literal["auto", "blocking", "async"]
Waits = Literal["blocking", "async"]

NO_STORE: Final = "async HITL requires session_store to be configured"


def waits_of(mode: Mode, name: str | None, store: StoreConfig | None) -> Waits:
    """What a mode means for an agent that names this session store, or none; else Wrong.

    A store that is named and has problems of its own is None, and taken to be durable.
    """
    durable = name is not None and (store is None or store.is_durable)
    if mode == "async" and name is None:
        raise Wrong(
            NO_STORE, "add session_store: NAME to the agent, with NAME under session_stores"
        )
    if mode == "async" and not durable:
        raise Wrong(
            f"async HITL requires a durable session_store ({name!r} is memory)",
            "name a store with backend: sql",
        )
    return "async" if durable and mode != "blocking" else "blocking"
