"""What a drive has begun and not heard of yet: a request to the model, calls of tools.

Each runs in a task of its own. One that was called off may go on, and tells nobody.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import anyio
from msgspec import Struct

from perdure.core.conversation.compaction import Cut
from perdure.core.conversation.messages import Answer
from perdure.core.driver.verdicts import Verdict
from perdure.core.log import events
from perdure.errors import PerdureError


class ToolReturned(Struct, frozen=True):
    """A tool came back, well or not."""

    call_id: str
    content: events.Content
    is_error: bool = False


class StartReturned(Struct, frozen=True):
    """The start of a deferred tool came back."""

    call_id: str
    news: events.Progress


class Answered(Struct, frozen=True):
    """A model answered a request made at this head."""

    turn: int
    request_head: int
    answer: Answer
    verdicts: tuple[Verdict, ...]
    redact: Mapping[str, tuple[str, ...]] = {}  # by call


class ModelFailed(Struct, frozen=True):
    """A model did not answer."""

    turn: int
    request_head: int
    error: PerdureError
    cut: Cut | None = None  # of the summary that it was asked for


class Summarised(Struct, frozen=True):
    """A model summarised what was said before a cut."""

    turn: int
    request_head: int
    cut: Cut
    answer: Answer


Outcome = ToolReturned | StartReturned | Answered | ModelFailed | Summarised


Doing = Coroutine[Any, Any, Outcome]
Start = Callable[[], Doing]

_ENDS: Final = (asyncio.CancelledError, KeyboardInterrupt, SystemExit)  # of the task, or of us all


class InFlight:
    """Everything that one drive has in the air."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self.outcomes: list[Outcome] = []
        self.calls: dict[str, anyio.CancelScope] = {}
        self.asking: asyncio.Task[None] | None = None
        self._asked = 0
        self._tasks: set[asyncio.Task[None]] = set()  # also those called off, or ended
        self._fell: BaseException | None = None
        self._tell = tell

    def ask(self, start: Start) -> None:
        """Begin a request to the model."""
        self._asked += 1
        self.asking = self._begin(self._ask(self._asked, start))

    def run(self, call_id: str, start: Start) -> None:
        """Begin a call. In a scope of its own, a tool can shield what must not be torn apart."""
        scope = self.calls[call_id] = anyio.CancelScope()
        self._begin(self._run(call_id, scope, start))

    def stop(self) -> None:
        """Call everything off; what cannot be stopped is not waited for."""
        for scope in self.calls.values():
            scope.cancel()
        self.calls.clear()
        self.stop_asking()

    def stop_asking(self) -> None:
        """Call the request to the model off."""
        asking, self.asking = self.asking, None
        if asking is not None:
            asking.cancel()

    def check(self) -> None:
        """Raise what took a task along that nobody had called off."""
        if self._fell is not None:
            raise self._fell

    async def gone(self, within_s: float | None = None) -> None:
        """Until the last of it has ended, whoever cancels us meanwhile; or for so long."""
        while running := [task for task in self._tasks if not task.done()]:
            try:
                await asyncio.wait(running, timeout=within_s)
            except asyncio.CancelledError:
                self.stop()
            else:
                if within_s is not None:
                    return

    def _begin(self, doing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(doing)
        self._tasks.add(task)
        return task

    # Each task tells of its own end: a callback would come a round of the event loop later.

    async def _ask(self, number: int, start: Start) -> None:
        outcome: Outcome | None = None
        fell: BaseException | None = None
        try:
            outcome = await start()
        except _ENDS as error:
            fell = error
            raise
        except BaseException as error:  # noqa: BLE001 - `check` raises it in the drive
            fell = error
        finally:
            if self.asking is not None and number == self._asked:
                self.asking = None
                self._landed(outcome, fell)

    async def _run(self, call_id: str, scope: anyio.CancelScope, start: Start) -> None:
        outcome: Outcome | None = None
        fell: BaseException | None = None
        try:
            with scope:
                outcome = await start()
        except _ENDS as error:
            fell = error
            raise
        except BaseException as error:  # noqa: BLE001 - `check` raises it in the drive
            fell = error
        finally:
            if self.calls.get(call_id) is scope:  # else it was called off
                del self.calls[call_id]
                self._landed(outcome, fell)

    def _landed(self, outcome: Outcome | None, fell: BaseException | None) -> None:
        if outcome is not None:
            self.outcomes.append(outcome)
        elif fell is None or isinstance(fell, asyncio.CancelledError):
            self._fell = PerdureError("the drive was cut off", code="INTERNAL")
        else:
            self._fell = fell
        self._tell()
