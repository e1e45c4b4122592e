"""What a configuration may say one day and cannot yet: refused, so that nothing is ignored."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final

from perdure.config.problems import NOT_BUILT_YET, Key, Problem
from perdure.config.reader import Entry

_BUDGET: Final = "this version counts turns and tokens"

# A key, with * for any name or position, and perhaps the value that is meant; and why not.
# Who builds one of these deletes its line.
NOT_BUILT: Final[Mapping[str, str]] = {
    "agents.*.tools.*=execute_command": "this version runs no commands",
    "agents.*.sub_agents": "this version runs no agents in the background",
    "agents.*.budget.seconds": _BUDGET,
    "agents.*.budget.children": _BUDGET,
}


def not_built(entries: Mapping[Key, Entry]) -> list[Problem]:
    """A problem for each value whose part is not there."""
    found = []
    for key, entry in entries.items():
        for pattern, why in NOT_BUILT.items():
            if _matches(pattern, key, entry.value):
                found.append(_refusal(pattern, why, key, entry))
    return found


def _matches(pattern: str, key: Key, value: object) -> bool:
    path, _, wanted = pattern.partition("=")
    parts = path.split(".")
    if len(parts) != len(key) or (wanted and not fnmatchcase(str(value), wanted)):
        return False
    return all(part in ("*", name) for part, name in zip(parts, key, strict=True))


def _refusal(pattern: str, why: str, key: Key, entry: Entry) -> Problem:
    _, _, wanted = pattern.partition("=")
    what = f"{wanted!r} is not built yet" if wanted else "is not built yet"
    return Problem(
        entry.line, key, f"{what}: {why}", "leave it out with this version", NOT_BUILT_YET
    )
