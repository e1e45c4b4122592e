"""Problems of a configuration: each on its own line, with file, line and key."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from perdure.errors import ConfigError

INVALID: Final = ConfigError.code

Key = tuple[str | int, ...]


class InvalidValue(ValueError):
    """A value is not valid; the text is the part of the message that follows the key.

    With `key` or `line`, the problem is reported there and not where the value is.
    """

    def __init__(
        self, text: str, hint: str | None = None, key: Key = (), line: int | None = None
    ) -> None:
        super().__init__(text)
        self.text = text
        self.hint = hint
        self.key = key
        self.line = line


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """Single problem. The text never shows the value of a secret."""

    line: int
    key: Key
    text: str
    hint: str | None = None
    code: str = INVALID


def format_key(key: Key) -> str:
    """Return a key as users write it: `agents.assistant.tools[1].use`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)
    return "".join(parts).removeprefix(".")


def config_error(file: str, problems: Sequence[ConfigProblem]) -> ConfigError:
    """Return all problems as one error, in the order of the file; its code is the first one's."""
    ordered = sorted(problems, key=lambda problem: problem.line)
    first = ordered[0]
    return ConfigError(
        "\n".join(_line(file, problem) for problem in ordered),
        code=first.code,
        hint=first.hint,
        details={
            **_details(file, first),
            "problems": [{**_details(file, problem), "error": problem.text} for problem in ordered],
        },
    )


def quoted_list(words: Iterable[str], last: str = "or") -> str:
    """Return the words in quotes: `'a', 'b', or 'c'`."""
    quoted = [repr(word) for word in words]
    if len(quoted) < 3:
        return f" {last} ".join(quoted)
    return f"{', '.join(quoted[:-1])}, {last} {quoted[-1]}"


def _line(file: str, problem: ConfigProblem) -> str:
    key = f"{format_key(problem.key)}: " if problem.key else ""
    return f"{file}:{problem.line}: {key}{problem.text}"


def _details(file: str, problem: ConfigProblem) -> dict[str, object]:
    return {"file": file, "line": problem.line, "key": format_key(problem.key)}
