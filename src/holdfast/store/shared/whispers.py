"""Who overhears what is whispered on a store, in this process."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger("holdfast")

Overheard = Callable[[str, bytes], None]  # topic, data


class Listeners:
    """Those who listen at this moment; nothing is kept for who comes later."""

    def __init__(self) -> None:
        self._all: list[Overheard] = []

    def tell(self, topic: str, data: bytes) -> None:
        """Hand on what was whispered; one who fails harms neither the others nor the speaker."""
        for heard in tuple(self._all):
            try:
                heard(topic, data)
            except Exception:
                logger.exception("a whisper about %s could not be taken", topic)

    @contextmanager
    def listening(self, heard: Overheard) -> Iterator[None]:
        """Be handed everything that is whispered meanwhile."""
        self._all.append(heard)
        try:
            yield
        finally:
            self._all.remove(heard)
