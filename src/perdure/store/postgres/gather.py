"""Many questions as one statement: what is asked while the last one is under way is the next."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

_LARGEST: Final = 500

_Question: TypeAlias = tuple[Asked, asyncio.Future[Answer]]


class Gather(Generic[Asked, Answer]):
    """Gathers questions of one kind, which `ask` answers many at a time, in their order.

    An error that may come from one of them (`is_of_one`) has them asked one by one; any other is
    everybody's, each with a copy of its own: `copied` makes it.
    """

    def __init__(
        self,
        ask: Callable[[Sequence[Asked]], Awaitable[Sequence[Answer]]],
        copied: Callable[[Exception], Exception],
        is_of_one: Callable[[Exception], bool],
    ) -> None:
        self._ask = ask
        self._copied = copied
        self._is_of_one = is_of_one
        self._waiting: deque[_Question[Asked, Answer]] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for an answer."""
        return self._task is None

    async def answer(self, asked: Asked) -> Answer:
        """The answer to one; it is found after it was asked for, never before."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((asked, answer))
        if self._task is None:
            # A task of nobody's: whoever stops waiting takes nothing from the others.
            self._task = loop.create_task(self._run())
        return await answer

    async def close(self) -> None:
        """Answer what was asked."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._waiting:
                count = min(len(self._waiting), _LARGEST)
                taken = [self._waiting.popleft() for _ in range(count)]
                await self._settle([one for one in taken if not one[1].done()])
        finally:
            self._task = None

    async def _settle(self, taken: Sequence[_Question[Asked, Answer]]) -> None:
        if not taken:
            return
        try:
            answers = await self._ask([asked for asked, _ in taken])
        except Exception as error:  # noqa: BLE001 - it is told to whoever asked
            await self._failed(taken, error)
            return
        for (_, future), answer in zip(taken, answers, strict=True):
            if not future.done():
                future.set_result(answer)

    async def _failed(self, taken: Sequence[_Question[Asked, Answer]], error: Exception) -> None:
        if len(taken) > 1 and self._is_of_one(error):
            for question in taken:
                await self._settle([question])
            return
        for _, future in taken:
            if not future.done():
                future.set_exception(self._copied(error))
