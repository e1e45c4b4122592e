"""Edge to user code: what an exception of it becomes, and which of it runs now.

User code is every function that a user wrote: tools, predicates, instructions, validators and
models. Whatever it raises is the failure of that call and never ends the process, except for a
cancellation by the engine and a signal to the process.
"""

import asyncio
import functools
import opcode
import signal
import traceback
import types
from collections.abc import Coroutine, Generator, Iterator
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Final, Literal

from perdure.core.text import storable_text

MAX_ERROR_TEXT: Final = 100_000  # characters of an exception that are recorded
MAX_NAME: Final = 200  # characters of the name of an exception's class
_RAISE: Final = opcode.opmap["RAISE_VARARGS"]

Kind = Literal["tool", "approval predicate", "instructions", "model", "validator", "hook"]


class UserCodeError(Exception):
    """User code raised something that is not an Exception, such as SystemExit: its cause."""


class UserCode:
    """One call of user code, as a context manager around it.

    What it raises leaves the context as an Exception. While it runs, `running_code` names it.
    """

    __slots__ = ("_token", "kind", "name", "session_id", "tenant")

    def __init__(self, kind: Kind, name: str, tenant: str = "", session_id: str = "") -> None:
        self.kind = kind
        self.name = name
        self.tenant = tenant
        self.session_id = session_id
        self._token: Token[UserCode | None] | None = None

    def __enter__(self) -> None:
        self._token = running_code.set(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if self._token is not None:
            running_code.reset(self._token)
        if error is not None:
            _contain(error)


running_code: ContextVar[UserCode | None] = ContextVar("perdure_user_code", default=None)


class _Containment:
    """The same for user code that has a name already, or none."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if error is not None:
            _contain(error)


CONTAINED: Final = _Containment()


class ContainedCoroutine(Coroutine[Any, Any, Any]):
    """A coroutine that user code runs as an asyncio task of its own.

    The event loop ends the process for a SystemExit of any of its tasks.
    """

    __slots__ = ("_inner",)

    def __init__(self, inner: Coroutine[Any, Any, Any]) -> None:
        self._inner = inner

    def send(self, value: Any) -> Any:
        """Continue the coroutine."""
        with CONTAINED:
            return self._inner.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error in the coroutine."""
        with CONTAINED:
            return self._inner.throw(*error)

    def close(self) -> None:
        """End the coroutine."""
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._inner.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # what tracebacks of tasks read


def contain_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Contain the tasks that user code will start on this loop; a factory of others stays."""
    if loop.get_task_factory() is None:
        loop.set_task_factory(_contained_task)


def _contained_task(
    loop: asyncio.AbstractEventLoop, work: Any, **options: Any
) -> "asyncio.Task[Any]":
    is_user_code = running_code.get() is not None
    return asyncio.Task(ContainedCoroutine(work) if is_user_code else work, loop=loop, **options)


def contained_error(error: BaseException) -> UserCodeError | None:
    """Return the error in place of one that would end the process; None if that was asked for."""
    if isinstance(error, Exception) or is_own_cancellation(error) or _is_stop(error):
        return None
    contained = UserCodeError(error_line(error))
    contained.__cause__ = error
    return contained


def _contain(error: BaseException) -> None:
    if (contained := contained_error(error)) is not None:
        raise contained from error


def is_own_cancellation(error: BaseException) -> bool:
    """Return True if our own asyncio task is cancelled; False if user code raised the error."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # not in an event loop
        task = None
    is_cancelling = task is None or task.cancelling() > 0
    return is_cancelling and isinstance(error, asyncio.CancelledError)


def _is_stop(error: BaseException) -> bool:
    """Return True if a signal to the process raised the error, or the coroutine is closed."""
    if isinstance(error, GeneratorExit):
        return not _is_raised_by_code(error)
    handlers = _signal_handlers()
    interrupt: BaseException | None = error
    while interrupt is not None:
        if any(frame.f_code in handlers for frame in _frames(interrupt)):
            return True
        if isinstance(interrupt, KeyboardInterrupt) and not _is_raised_by_code(interrupt):
            return True
        interrupt = interrupt.__context__
    return False


def _is_raised_by_code(error: BaseException) -> bool:
    """Return True if a `raise` statement raised the error.

    The interpreter raises KeyboardInterrupt and GeneratorExit at other instructions.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_code[trace.tb_lasti] == _RAISE


def _frames(error: BaseException) -> Iterator[types.FrameType]:
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _signal_handlers() -> set[types.CodeType]:
    """Return the code of the functions that handle signals in this process now."""
    handlers = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while isinstance(handler, functools.partial):
            handler = handler.func
        code = getattr(handler, "__code__", None)
        if isinstance(code, types.CodeType):
            handlers.add(code)
    return handlers


def error_text(error: BaseException) -> str:
    """Return the text of an exception, bounded; also if its `str()` raises."""
    try:
        with CONTAINED:
            text = str(error)
    except Exception as failure:  # noqa: BLE001 - the user's __str__
        return f"(its text cannot be read: {type(failure).__name__[:MAX_NAME]})"
    return bounded_text(text)


def bounded_text(text: str) -> str:
    """Return the text of an error as it is recorded: storable, and of a bounded length."""
    if len(text) > MAX_ERROR_TEXT:
        text = f"{text[:MAX_ERROR_TEXT]}… ({len(text):,} characters; the rest is not recorded)"
    return storable_text(text)


def loggable(error: BaseException) -> BaseException | None:
    """Return an error to log with its traceback; None if that is too long for a log.

    The traceback also has the notes, causes and members of an error, each as long as it likes.
    """
    lines = traceback.format_exception(error)
    return error if sum(map(len, lines)) < MAX_ERROR_TEXT else None


def error_line(error: BaseException) -> str:
    """Return an error of user code as one line of text that can be stored.

    Of an exception group it is the first cause, since the text of a group says only how many
    there are.
    """
    if isinstance(error, UserCodeError) and error.__cause__ is not None:
        return error_line(error.__cause__)
    name = type(error).__name__[:MAX_NAME]
    if isinstance(error, BaseExceptionGroup):
        count = f"{len(error.exceptions)} exceptions, first: " if len(error.exceptions) > 1 else ""
        return bounded_text(f"{name}: {count}{error_line(error.exceptions[0])}")
    return storable_text(f"{name}: {error_text(error)}")
