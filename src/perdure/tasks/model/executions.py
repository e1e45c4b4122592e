"""Executions of commands in tasks: their records, their output and their names in a store.

A task has a slot, the entry that says which command runs in it now. An execution is started by
putting its id into the free slot, and ended by freeing it, each in the commit of its fact. So a
task never runs two commands, and a command whose process has died is found by its slot.
"""

from typing import Final, Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from perdure.errors import Corrupt

SLOT: Final = "task:slot"  # kind of the entry of a task's present command
EXECUTION: Final = "task:execution"  # kind of the entries of executions

EndReason = Literal[
    "exited", "timeout", "cancelled", "oom", "disk_limit", "interrupted", "not_started"
]
StopReason = Literal["cancelled", "interrupted"]


class CapturedOutput(Struct, frozen=True, omit_defaults=True):
    """Output of a command as its record keeps it: the first and last bytes of `size`."""

    head: bytes = b""
    tail: bytes = b""
    size: int = 0

    @property
    def omitted(self) -> int:
        """Number of bytes between head and tail that are not kept."""
        return self.size - len(self.head) - len(self.tail)

    @property
    def text(self) -> str:
        r"""The output as text; invalid bytes are visible as `\xNN`, and so is what is left out."""
        if not self.omitted:
            return visible_text(self.head + self.tail)
        note = f"\n[... {self.omitted:,} bytes left out ...]\n"
        return visible_text(self.head) + note + visible_text(self.tail)


def visible_text(data: bytes) -> str:
    r"""Return bytes as text, with invalid bytes as `\xNN`."""
    return data.decode("utf-8", "backslashreplace")


class ExecutionRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One execution of a command. It runs until it has a reason for its end. Instants are ms."""

    id: str
    command: str
    timeout_ms: int = field(name="timeoutMs")
    sandbox: str
    started_at: int = field(name="startedAt")
    by: str = ""
    reason: EndReason | None = None
    exit_code: int | None = field(default=None, name="exitCode")
    signal: int | None = None
    duration_ms: int | None = field(default=None, name="durationMs")
    stdout_bytes: int = field(default=0, name="stdoutBytes")
    stderr_bytes: int = field(default=0, name="stderrBytes")
    truncated: bool = False  # the record does not have all of the output
    problem: str | None = None  # why it did not start, or why its end is unknown
    guarantees: tuple[str, ...] = ()
    after: int = 0  # the record of its end is a later one than this

    @property
    def is_running(self) -> bool:
        """True if it has no end yet."""
        return self.reason is None

    @property
    def is_success(self) -> bool:
        """True for a normal exit with code 0, and for nothing else."""
        return self.reason == "exited" and self.exit_code == 0 and self.signal is None


class ExecutionFact(Struct, frozen=True, omit_defaults=True):
    """An execution as the record of its start or end has it."""

    record: ExecutionRecord
    stdout: CapturedOutput = CapturedOutput()
    stderr: CapturedOutput = CapturedOutput()


class CommandSlot(Struct, frozen=True, omit_defaults=True):
    """Data of a task's slot: the execution that runs, and why it must stop, if it must."""

    execution: str = ""
    stop: StopReason | None = None

    @property
    def is_free(self) -> bool:
        """True if no command runs."""
        return not self.execution

    @property
    def state(self) -> str:
        """State of the entry."""
        return "free" if self.is_free else "taken"


_slot_decoder = msgspec.json.Decoder(CommandSlot)
_record_decoder = msgspec.json.Decoder(ExecutionRecord)


def encode(value: CommandSlot | ExecutionRecord) -> bytes:
    """Return a value as the data of its entry."""
    return msgspec.json.encode(value)


def decode_slot(data: bytes) -> CommandSlot:
    """Return the slot of an entry. Raises Corrupt."""
    try:
        return _slot_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"the slot of a task cannot be read: {error}") from error


def decode_record(data: bytes) -> ExecutionRecord:
    """Return the execution of an entry. Raises Corrupt."""
    try:
        return _record_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"the entry of an execution cannot be read: {error}") from error


def interrupted(record: ExecutionRecord, now: int, problem: str) -> ExecutionRecord:
    """Return the end of an execution whose process stopped: it ran zero or one times."""
    duration = max(0, now - record.started_at)
    return replace(record, reason="interrupted", duration_ms=duration, problem=problem)


_DIGITS: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # of ids, in their order
_REVERSED: Final = str.maketrans(_DIGITS, _DIGITS[::-1])


def execution_key(stream: str, execution_id: str) -> str:
    """Return the key of an execution's entry: ids increase with time, and the keys decrease."""
    return f"{stream}|{execution_id.translate(_REVERSED)}"
