"""Many requests as one statement: those submitted while one runs form the next statement."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

Request = TypeVar("Request")
Response = TypeVar("Response")

_LARGEST: Final = 500

_Job: TypeAlias = tuple[Request, asyncio.Future[Response]]


class Batcher(Generic[Request, Response]):
    """Collects requests of one kind and calls `run` with many at a time; results are in order.

    After an error that one of the requests may have caused (`is_request_error`) they run one by
    one. Any other error goes to all callers, to each a copy made by `copy_error`.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Request]], Awaitable[Sequence[Response]]],
        copy_error: Callable[[Exception], Exception],
        is_request_error: Callable[[Exception], bool],
    ) -> None:
        self._run_batch = run
        self._copy_error = copy_error
        self._is_request_error = is_request_error
        self._jobs: deque[_Job[Request, Response]] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """No request is queued or running."""
        return self._task is None

    async def submit(self, request: Request) -> Response:
        """Return the response to a request, from a statement that starts after this call."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Response] = loop.create_future()
        self._jobs.append((request, future))
        if self._task is None:
            # It outlives its caller: a cancelled caller must not cancel the requests of others.
            self._task = loop.create_task(self._run())
        return await future

    async def close(self) -> None:
        """Finish the queued requests."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._jobs:
                count = min(len(self._jobs), _LARGEST)
                batch = [self._jobs.popleft() for _ in range(count)]
                await self._settle([job for job in batch if not job[1].done()])
        finally:
            self._task = None

    async def _settle(self, batch: Sequence[_Job[Request, Response]]) -> None:
        if not batch:
            return
        try:
            responses = await self._run_batch([request for request, _ in batch])
        except Exception as error:  # noqa: BLE001 - each caller gets it
            await self._fail(batch, error)
            return
        for (_, future), response in zip(batch, responses, strict=True):
            if not future.done():
                future.set_result(response)

    async def _fail(self, batch: Sequence[_Job[Request, Response]], error: Exception) -> None:
        if len(batch) > 1 and self._is_request_error(error):
            for job in batch:
                await self._settle([job])
            return
        for _, future in batch:
            if not future.done():
                future.set_exception(self._copy_error(error))
