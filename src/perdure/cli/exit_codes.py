"""Exit codes of commands; those of errors are in `perdure.errors`."""

from typing import Final

FAILED: Final = 1
TIMED_OUT: Final = 6
WAITING: Final = 8
INTERRUPTED: Final = 130  # after Ctrl-C

_OF_STATES: Final = {"completed": 0, "failed": FAILED, "cancelled": FAILED}


def exit_code_of(state: str) -> int:
    """Return the exit code of a command that has followed a run to this state."""
    return _OF_STATES.get(state, WAITING)
