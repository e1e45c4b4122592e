"""Host names: the texts that a resolver takes for one."""

import re
from typing import Final

# A resolver refuses empty labels and those of more than 63 letters, with an error of its own kind.
_NAME: Final = re.compile(r"(?=.{1,253}\Z)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")


def host_name_of(text: str) -> str:
    """Return a host name as a resolver gets it: lower case, in ASCII, without a last dot.

    Raises ValueError for a text that is not a host name.
    """
    name = text if text.isascii() else text.encode("idna").decode()  # UnicodeError is a ValueError
    name = name.lower().removesuffix(".")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{text!r} is not a host name")
    return name
