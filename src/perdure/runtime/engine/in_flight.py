"""Effects of a drive that have no outcome yet: a model request, and tool calls.

Each runs in its own asyncio task. One that was cancelled may continue; its outcome is dropped.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import anyio
from msgspec import Struct

from perdure.core.conversation.compaction import Cut
from perdure.core.conversation.messages import Answer
from perdure.core.driver.verdicts import RequireApproval, Verdict, Wait
from perdure.core.log import events
from perdure.errors import PerdureError
from perdure.user_code import CONTAINED, contained_error


class ToolReturned(Struct, frozen=True):
    """A tool returned a result, or failed."""

    call_id: str
    content: events.Content
    is_error: bool = False
    mail: tuple[str, ...] = ()  # ids of the mail that it delivers


class ToolAsked(Struct, frozen=True):
    """A running tool asked a person or waits for a background agent, and stopped."""

    call_id: str
    verdict: RequireApproval | Wait


class StartReturned(Struct, frozen=True):
    """A deferred tool has started its external work."""

    call_id: str
    progress: events.Progress


class Answered(Struct, frozen=True):
    """A model responded to a request made at this head."""

    turn: int
    request_head: int
    answer: Answer
    verdicts: tuple[Verdict, ...]
    redact: Mapping[str, tuple[str, ...]] = {}  # by call


class ModelFailed(Struct, frozen=True):
    """A model request failed."""

    turn: int
    request_head: int
    error: PerdureError
    cut: Cut | None = None  # of the summary that was requested


class Summarized(Struct, frozen=True):
    """A model summarized the messages before a cut."""

    turn: int
    request_head: int
    cut: Cut
    answer: Answer


Outcome = ToolReturned | ToolAsked | StartReturned | Answered | ModelFailed | Summarized
FACT_OUTCOMES: Final = (
    ToolReturned,
    StartReturned,
)  # recorded at any head; the others are driver decisions
BATCH_CHARS: Final = 1_000_000  # of tool results that one commit records, beyond the first


class News:
    """Wake-up of a drive: an effect has ended, or another writer has written."""

    __slots__ = ("_future", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._future: asyncio.Future[None] | None = None  # while the drive waits

    def set(self) -> None:
        """Wake the drive, now or at its next wait."""
        self._is_set = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, within_s: float | None = None) -> None:
        """Wait for news since the last wait, or at most this long."""
        if not self._is_set:
            self._future = asyncio.get_running_loop().create_future()
            try:
                if within_s is None:
                    await self._future
                else:
                    await asyncio.wait((self._future,), timeout=within_s)
            finally:
                self._future = None
        self._is_set = False


EffectRun = Coroutine[Any, Any, Outcome]
StartEffect = Callable[[], EffectRun]


class InFlight:
    """Running effects of one drive, and the outcomes that are not recorded yet."""

    __slots__ = (
        "_async_calls",
        "_batch",
        "_request",
        "_request_count",
        "_running",
        "_tasks",
        "calls",
        "failure",
        "is_asking",
        "news",
        "outcomes",
    )

    def __init__(self) -> None:
        self.news = News()
        self.outcomes: list[Outcome] = []
        self._batch = 0  # how many of them the drive is recording
        self.calls: dict[str, anyio.CancelScope] = {}
        self._async_calls: set[str] = set()  # of them, those that a cancellation ends
        self.is_asking = False  # a model request runs
        self._request: asyncio.Task[None] | None = None
        self._request_count = 0
        self._tasks: set[asyncio.Task[None]] = set()  # also cancelled and ended ones
        self._running = 0  # of the tasks, those that have not ended; a cancelled one may not begin
        self.failure: BaseException | None = None  # of a task that the drive did not cancel

    def start_request(self, start: StartEffect) -> None:
        """Start a model request."""
        self._request_count += 1
        self.is_asking = True
        self._request = self._spawn(self._run_request(self._request_count, start))

    def start_call(self, call_id: str, start: StartEffect, *, is_async: bool = False) -> None:
        """Start a call, in an anyio cancel scope, so that a tool can shield a part of its work."""
        scope = self.calls[call_id] = anyio.CancelScope()
        if is_async:
            self._async_calls.add(call_id)
        self._spawn(self._run_call(call_id, scope, start))

    def next_outcomes(self) -> list[Outcome]:
        """Return the outcomes that the next commit records: one, or the facts that are there."""
        self._batch, chars = 0, 0
        for outcome in self.outcomes:
            if self._batch and not isinstance(outcome, FACT_OUTCOMES):
                break
            if isinstance(outcome, ToolReturned):
                chars += _size(outcome.content)
            if self._batch and chars > BATCH_CHARS:
                break
            self._batch += 1
            if not isinstance(outcome, FACT_OUTCOMES):
                break
        return self.outcomes[: self._batch]

    def drop_outcomes(self) -> None:
        """Forget the outcomes that were recorded."""
        del self.outcomes[: self._batch]
        self._batch = 0

    @property
    def has_more_outcomes(self) -> bool:
        """True if outcomes will remain after those that the drive is recording."""
        return len(self.outcomes) > self._batch

    def cancel_all(self) -> None:
        """Cancel everything; effects that cannot be cancelled are not waited for."""
        for scope in self.calls.values():
            scope.cancel()
        self.calls.clear()
        self.cancel_request()

    def cancel_async_calls(self) -> None:
        """Cancel the calls of async tools; each stays in flight until its tool has ended."""
        for call_id, scope in self.calls.items():
            if call_id in self._async_calls:
                scope.cancel()

    def cancel_request(self) -> None:
        """Cancel the model request."""
        if self.is_asking and self._request is not None:
            self.is_asking = False
            self._request.cancel()

    async def wait_ended(self, within_s: float | None = None) -> None:
        """Wait until all tasks have ended, even if we are cancelled; or at most this long."""
        while self._running and (running := [task for task in self._tasks if not task.done()]):
            try:
                await asyncio.wait(running, timeout=within_s)
            except asyncio.CancelledError:
                self.cancel_all()
            else:
                if within_s is not None:
                    return

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.Task(work)  # not by the loop's factory, which contains user code
        self._tasks.add(task)
        self._running += 1
        return task

    # Each task reports its own end: a done callback would run one round of the event loop later.

    async def _run_request(self, number: int, start: StartEffect) -> None:
        outcome: Outcome | None = None
        failure: BaseException | None = None
        try:
            outcome = await start()
        except Exception as error:  # noqa: BLE001 - the drive raises it
            failure = error
        except BaseException as error:  # the task is cancelled, or the process stops
            failure = error
            if (contained := contained_error(error)) is None:
                raise
            failure = contained
        finally:
            self._running -= 1
            if self.is_asking and number == self._request_count:
                self.is_asking = False
                self._finish(outcome, failure)

    async def _run_call(self, call_id: str, scope: anyio.CancelScope, start: StartEffect) -> None:
        outcome: Outcome | None = None
        failure: BaseException | None = None
        try:
            with scope, CONTAINED:
                outcome = await start()
        except Exception as error:  # noqa: BLE001 - the drive raises it
            failure = error
        except BaseException as error:  # the task is cancelled, or the process stops
            failure = error
            raise
        finally:
            self._running -= 1
            self._async_calls.discard(call_id)
            if self.calls.get(call_id) is scope:  # else it was cancelled
                del self.calls[call_id]
                if scope.cancelled_caught:
                    self.news.set()  # by `cancel_async_calls`: there is no outcome to record
                else:
                    self._finish(outcome, failure)

    def _finish(self, outcome: Outcome | None, failure: BaseException | None) -> None:
        if outcome is not None:
            self.outcomes.append(outcome)
        elif failure is None or isinstance(failure, asyncio.CancelledError):
            self.failure = PerdureError("the drive was cut off", code="INTERNAL")
        else:
            self.failure = failure
        self.news.set()


def _size(content: events.Content) -> int:
    return len(content) if isinstance(content, str) else sum(len(str(part)) for part in content)
