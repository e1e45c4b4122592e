"""Text from users and models: names, and characters that every store can keep."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")  # of agents, queues and servers
# Categories of Unicode: spaces, line and paragraph separators, control and format characters.
_INVISIBLE: Final = frozenset({"Zs", "Zl", "Zp", "Cc", "Cf"})
NO_OUTPUT: Final = "(no output)"  # the result of a call without a value
NAME_HINT: Final = "use letters, digits, '_', '-' and '.', 64 at most"


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return the end of a message that suggests a similar word; empty if there is none."""
    similar = get_close_matches(word.lower(), list(words), n=1, cutoff=0.6)
    return f"; did you mean {similar[0]!r}?" if similar else ""


def is_visible(text: str) -> bool:
    """Return whether a text has a character that people see: no space, control or format mark."""
    from unicodedata import category  # not loaded by --help

    return any(category(char) not in _INVISIBLE for char in text)


def storable_text(text: str) -> str:
    """Return the text with a mark for each lone surrogate, which no store can keep.

    A surrogate pair that arrived in two pieces is joined to one character.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return joined.encode("utf-8", "replace").decode()
    return text
