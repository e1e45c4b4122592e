"""The words by which a person decides about a call; nothing else is ever taken for a decision."""

from typing import Final, Literal

Word = Literal["approve", "deny"]

WORDS: Final[dict[str, Word]] = {
    "approve": "approve",
    "yes": "approve",
    "y": "approve",
    "deny": "deny",
    "no": "deny",
    "n": "deny",
}


def decision_in(text: str) -> Word | None:
    """The decision that the whole text is, in any case, with blanks around it; else None.

    A text that only contains such a word ("do not approve") says something, but decides nothing.
    """
    return WORDS.get(text.strip().casefold())
