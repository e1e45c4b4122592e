"""Text from users and models: names, and characters that every store can keep."""

import re
from typing import Final

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")  # of agents, queues and servers
NO_OUTPUT: Final = "(no output)"  # the result of a call without a value
NAME_HINT: Final = "use letters, digits, '_', '-' and '.', 64 at most"


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
