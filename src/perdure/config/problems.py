"""What is wrong in a configuration: each mistake on its own line, with file, line and key."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from perdure.errors import ConfigError

INVALID: Final = ConfigError.code
NOT_BUILT_YET: Final = "NOT_BUILT_YET"

Key = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake. The text never shows the value of a secret."""

    line: int
    key: Key
    text: str
    hint: str | None = None
    code: str = INVALID


def show(key: Key) -> str:
    """A key as people write it: `agents.assistant.tools[1].use`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)
    return "".join(parts).removeprefix(".")


def error_of(file: str, problems: Sequence[Problem]) -> ConfigError:
    """All the mistakes as one error, in the order of the file; code and details of the first."""
    ordered = sorted(problems, key=lambda problem: problem.line)
    first = ordered[0]
    return ConfigError(
        "\n".join(_line(file, problem) for problem in ordered),
        code=first.code,
        hint=first.hint,
        details={
            **_details(file, first),
            "problems": [{**_details(file, one), "error": one.text} for one in ordered],
        },
    )


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """The end of a sentence that offers the word that was probably meant; empty if none is near."""
    near = get_close_matches(word.lower(), list(words), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def listed(words: Iterable[str], last: str = "or") -> str:
    """Words in quotes: `'a', 'b', or 'c'`."""
    quoted = [repr(word) for word in words]
    if len(quoted) < 3:
        return f" {last} ".join(quoted)
    return f"{', '.join(quoted[:-1])}, {last} {quoted[-1]}"


def _line(file: str, problem: Problem) -> str:
    where = f"{file}:{problem.line}: "
    return f"{where}{show(problem.key)}: {problem.text}" if problem.key else where + problem.text


def _details(file: str, problem: Problem) -> dict[str, object]:
    return {"file": file, "line": problem.line, "key": show(problem.key)}
