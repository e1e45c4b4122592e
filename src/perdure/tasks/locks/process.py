"""The process that holds locks: its name in the store, kept alive by a heartbeat."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from perdure import host
from perdure.core.session.queues import lock_holder_name
from perdure.errors import StoreError
from perdure.holders import Renewals, live_holders
from perdure.ids import secret_id
from perdure.store.base import Lost, Store

logger = logging.getLogger("perdure")

Work = Callable[[], Coroutine[Any, Any, None]]
RunBeside = Callable[[Work], object]


class LockProcess:
    """Holder name of a runtime's locks; the store frees them when the process has died."""

    def __init__(self, store: Store, lease_ms: int, run_beside: RunBeside) -> None:
        self._store = store
        self._lease_ms = lease_ms
        self._renewals = Renewals(store, lease_ms)
        self.run_beside = run_beside
        self._name = ""
        self._has_heartbeat = False
        self._joining = asyncio.Lock()

    def open(self) -> None:
        """Allow locks, also after a close."""
        self._has_heartbeat = False
        self._joining = asyncio.Lock()  # a new one: a lock belongs to one event loop

    async def name(self) -> str:
        """Return the name, which exists in the store."""
        if self._name:
            return self._name
        async with self._joining:
            if not self._name:
                name = lock_holder_name(f"{host.process_name()}-{secret_id('k')[2:12]}")
                await self._renewals.join(name)
                self._name = name
            if not self._has_heartbeat:
                self._has_heartbeat = True
                self.run_beside(self._heartbeat)
            return self._name

    async def _heartbeat(self) -> None:
        with self._renewals.in_thread():
            while True:
                await asyncio.sleep(self._lease_ms / 3000)
                if self._name:
                    await self._renew(self._name)

    async def _renew(self, name: str) -> None:
        try:
            await self._renewals.renew(name)
        except Lost:
            logger.warning("%s lost its locks; other processes may acquire them", name)
            self._name = ""
            self._renewals.end()
        except StoreError as error:
            logger.warning("the heartbeat of the locks failed: %s", error.message)

    async def is_alive(self) -> Callable[[str], bool]:
        """Return a function that says whether the process with a name is alive now."""
        return (await live_holders(self._store)).__contains__

    async def close(self) -> None:
        """Free every lock that is still held."""
        name, self._name = self._name, ""
        self._renewals.end()
        if name:
            try:
                await self._store.renew(name, 0)
            except StoreError:
                logger.debug("the locks of %s had ended", name)
