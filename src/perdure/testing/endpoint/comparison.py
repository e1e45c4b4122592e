"""Comparison of a block that a client returns with the block that was sent."""

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

_FREE: Final = frozenset({"input"})  # arguments of a tool: key order and every digit count


def is_identical(posted: Any, sent: Any) -> bool:
    """Compare JSON values exactly: key order counts, and 1.0 is not 1."""
    return _dumps(posted) == _dumps(sent)


def is_same_block(posted: Any, sent: Any, *, optional: Collection[str] = ()) -> bool:
    """Compare two blocks as the provider does.

    The provider reads its own keys in any order, treats null as absent, and lets the client omit
    the `optional` ones; the arguments of a tool must be unchanged.
    """
    if not isinstance(posted, Mapping) or not isinstance(sent, Mapping):
        return is_identical(posted, sent)
    omitted = {key for key in optional if posted.get(key) is None}
    expected = {key: value for key, value in sent.items() if key not in omitted}
    return _dumps(_normalized(posted)) == _dumps(_normalized(expected))


def _normalized(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: value[key] if key in _FREE else _normalized(value[key])
            for key in sorted(value)
            if value[key] is not None
        }
    return [_normalized(item) for item in value] if isinstance(value, list) else value


def _dumps(value: Any) -> str:
    return json.dumps(value)
