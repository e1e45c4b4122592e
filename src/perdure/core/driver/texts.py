"""Texts that a driver writes into the log for the model."""

from typing import Final

TIMER_FIRED: Final = "The time has come."
CALLS_CUT_OFF: Final = (
    "Not run: your answer was cut off before it was complete. Ask for it again, in smaller pieces."
)
