"""Group commit on PostgreSQL: what queued up while the last batch was under way is the next one.

Several batches may be under way at once, on connections of their own, but never two that name the
same stream: so the commits of a stream keep the order in which they were asked for, and none waits
inside the database for another one of this process.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from perdure.errors import StoreError
from perdure.store.base import Unavailable, Unknown
from perdure.store.judge import Commit
from perdure.store.postgres.batch import Batches, Outcome, Overtaken
from perdure.store.postgres.connection import Connector, Pool, PooledConnection
from perdure.store.postgres.errors import (
    LOCKED,
    OF_A_ROW,
    UNDONE,
    is_database_error,
    may_go_again,
    sqlstate,
)
from perdure.store.postgres.sql import statement

AT_ONCE = 2
_LARGEST_BATCH = 500
_LARGEST_BYTES = 8 * 2**20  # of data in one batch, unless a single commit has more
_TRIES = 5

Job = tuple[Commit, asyncio.Future[dict[str, int]]]
Ended = dict[str, int] | Exception


class Writer:
    """Takes commits from the tasks of one event loop, and answers once they are durable."""

    def __init__(self, dial: Connector, now: Callable[[], int], told: Callable[[], None]) -> None:
        self._dial = dial
        self._now = now
        self._told = told  # called after every batch that changed something
        self._lines = Pool(dial, AT_ONCE)
        self._batches = Batches(dial)
        self._jobs: deque[Job] = deque()
        self._under_way: set[str] = set()  # streams
        self._writing: set[asyncio.Task[None]] = set()
        self._busy = (
            0  # of those, the ones that will look for more: a task ends later than its work
        )

    def submit(self, commit: Commit) -> asyncio.Future[dict[str, int]]:
        """The new heads, to be had once they are durable; an error is raised."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[dict[str, int]] = loop.create_future()
        self._jobs.append((commit, answer))
        self._start()
        return answer

    async def close(self) -> None:
        """Finish what is queued."""
        while self._writing:
            await asyncio.wait(self._writing)
        await self._lines.close()

    def _start(self) -> None:
        if self._busy < AT_ONCE:
            self._busy += 1
            # A task of nobody's: whoever stops waiting for a commit does not withdraw it.
            task = asyncio.get_running_loop().create_task(self._write())
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    async def _write(self) -> None:
        try:
            await self._write_all()
        finally:
            self._busy -= 1

    async def _write_all(self) -> None:
        while batch := self._take():
            streams = _streams(commit for commit, _ in batch)
            self._under_way |= streams
            try:
                ended = await self._outcomes([commit for commit, _ in batch])
            finally:
                self._under_way -= streams
            _settle(batch, ended)
            if any(isinstance(one, dict) for one in ended):
                self._told()

    def _take(self) -> list[Job]:
        """The next batch: what waits, except behind what is under way."""
        batch: list[Job] = []
        left: list[Job] = []
        blocked = set(self._under_way)
        room = _LARGEST_BYTES
        while self._jobs and len(batch) < _LARGEST_BATCH:
            job = self._jobs.popleft()
            streams = [write.stream for write in job[0].writes]
            if not blocked.isdisjoint(streams):
                left.append(job)
                blocked.update(streams)
                continue
            room -= _bytes(job[0])
            if room < 0 and batch:
                left.append(job)
                break
            batch.append(job)
        self._jobs.extendleft(reversed(left))
        return batch

    # --- one batch ---

    async def _outcomes(self, commits: Sequence[Commit]) -> list[Ended]:
        try:
            return await self._in_one(commits)
        except Exception as error:  # noqa: BLE001 - no commit may end this task
            return await self._after_failure(commits, error)

    async def _after_failure(self, commits: Sequence[Commit], error: Exception) -> list[Ended]:
        """A commit that cannot be written must not take the others with it."""
        told = self._explained(error)
        is_theirs = sqlstate(error) in OF_A_ROW or not isinstance(told, Unavailable | Unknown)
        if len(commits) == 1 or not is_theirs:
            return [self._explained(error) for _ in commits]
        return [(await self._outcomes([commit]))[0] for commit in commits]

    async def _in_one(self, commits: Sequence[Commit]) -> list[Ended]:
        """The outcomes of one transaction, tried again where that can help."""
        for left in reversed(range(_TRIES)):
            try:
                async with self._lines.line() as line:
                    return [*await self._attempt(line, commits)]
            except Overtaken:
                continue
            except Exception as error:
                # A connection may have ended while nobody used it: nothing was written with it.
                again = sqlstate(error) in UNDONE or may_go_again(error)
                again = again or (sqlstate(error) == LOCKED and await self._ended_stopped())
                if not (again and left):
                    raise
        raise Unavailable("others keep writing the same entries", hint="try again")

    async def _ended_stopped(self) -> bool:
        """Whether a client that stands still with locks of rows was found, and ended."""
        try:
            async with self._lines.line() as line:
                return bool(await line.fetch(statement("end_stopped")))
        except Exception:  # noqa: BLE001 - a server that does not let us: others keep the row
            return False

    async def _attempt(self, line: PooledConnection, commits: Sequence[Commit]) -> list[Outcome]:
        try:
            return await self._batches.write(line, commits, self._now())
        except Unknown:
            raise
        except Exception as error:
            await line.undo(error)
            raise

    def _explained(self, error: Exception) -> Exception:
        if isinstance(error, StoreError) or is_database_error(error):
            return self._dial.explained(error)
        return error


def _streams(commits: Iterable[Commit]) -> set[str]:
    return {write.stream for commit in commits for write in commit.writes}


def _bytes(commit: Commit) -> int:
    """The data that a commit carries; the rest of it is small."""
    size = 0
    for write in commit.writes:
        for record in write.records:
            size += len(record.data)
    for put in commit.puts:
        if isinstance(put.data, bytes):
            size += len(put.data)
    return size


def _settle(batch: Sequence[Job], ended: Sequence[Ended]) -> None:
    for (_, answer), one in zip(batch, ended, strict=True):
        if answer.done():  # its task was cancelled; the commit was written all the same
            continue
        if isinstance(one, Exception):
            answer.set_exception(one)
        else:
            answer.set_result(one)
