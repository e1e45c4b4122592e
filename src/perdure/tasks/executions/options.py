"""Settings of commands in tasks, which only the operator sets: in YAML or `Runtime(tasks=)`."""

import pwd
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, get_args

from perdure.core.sizes import parse_size
from perdure.errors import ConfigError, Refused
from perdure.sandbox.allow_list import parse_entry
from perdure.sandbox.base import ExecLimits, NetworkSettings, RunAs
from perdure.sandbox.ro_paths import ReadOnlyPath, resolve_ro_paths
from perdure.views.durations import duration_ms
from perdure.views.task_bodies import LONGEST_TIMEOUT_MS

SandboxName = Literal["bwrap", "landlock", "none"]
MAX_TIMEOUT_MS: Final = 3_600_000  # unless limits.timeout is another one
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED: Final = ("PATH", "HOME", "LD_", "PERDURE_")
_LIMITS: Final = {  # as the configuration names them
    "processes": "processes",
    "open_files": "open_files",
    "file_size": "file_bytes",
    "tmp_size": "tmp_bytes",
    "disk": "disk_bytes",
    "memory": "memory_bytes",
    "cpus": "cpus",
    "address_space": "address_space_bytes",
}
_BYTES: Final = "_bytes"
_OPTIONAL: Final = {
    "disk_bytes",
    *(item.name for item in fields(ExecLimits) if item.default is None),
}
KEYS: Final = (
    *("sandbox", "run_as", "allow_weak", "require_sandbox"),
    *("network", "limits", "ro_paths", "env"),
)


@dataclass(frozen=True, slots=True)
class ExecutionOptions:
    """Settings of all commands of a runtime."""

    sandbox: SandboxName = "bwrap"
    run_as: RunAs | None = None
    allow_weak: bool = False
    require_sandbox: bool = False
    network: NetworkSettings = field(default_factory=NetworkSettings)
    limits: ExecLimits = field(default_factory=ExecLimits)
    max_timeout_ms: int = MAX_TIMEOUT_MS
    ro_paths: tuple[ReadOnlyPath, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)


def execution_options(value: Mapping[str, Any]) -> ExecutionOptions:
    """Return the settings that a mapping has. Raises ConfigError, with the path of the value."""
    limits = dict(_mapping(value.get("limits", {}), ("limits",)))
    timeout = limits.pop("timeout", None)
    options = ExecutionOptions(
        sandbox=_sandbox(value.get("sandbox", "bwrap")),
        run_as=None if value.get("run_as") is None else _run_as(value["run_as"]),
        allow_weak=_flag(value, "allow_weak"),
        require_sandbox=_flag(value, "require_sandbox"),
        network=_network(value.get("network", "off")),
        limits=_limits(limits),
        max_timeout_ms=MAX_TIMEOUT_MS if timeout is None else _timeout(timeout),
        ro_paths=_ro_paths(value.get("ro_paths", ())),
        env=_env(value.get("env", {})),
    )
    if options.sandbox == "landlock" and not options.allow_weak:
        raise _invalid(
            ("sandbox",),
            "landlock confines less than bwrap, and needs allow_weak: true",
            "see docs/sandbox.md for what it does not confine",
        )
    return options


def check_ro_paths(options: ExecutionOptions, closed: Collection[Path]) -> None:
    """Raise ConfigError if a read-only path shows a store or the folders of tasks to commands."""
    _ro_paths([path.target for path in options.ro_paths], closed)


def _invalid(path: Sequence[str | int], text: str, hint: str | None = None) -> ConfigError:
    """Return an error that names the value by its path below `tasks`."""
    name = "tasks." + ".".join(str(part) for part in path)
    details = {"path": ["tasks", *path], "problem": text}
    return ConfigError(f"{name}: {text}", hint=hint, details=details)


def _mapping(value: Any, path: Sequence[str | int]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _invalid(path, "must be a mapping")
    return value


def _flag(value: Mapping[str, Any], name: str) -> bool:
    flag = value.get(name, False)
    if not isinstance(flag, bool):
        raise _invalid((name,), "must be true or false")
    return flag


def _sandbox(value: Any) -> SandboxName:
    for name in get_args(SandboxName):
        if value == name:
            return name  # type: ignore[no-any-return]
    names = " or ".join(get_args(SandboxName))
    raise _invalid(("sandbox",), f"is {str(value)[:40]!a}, and must be {names}")


def _run_as(value: Any) -> RunAs:
    """Return an unprivileged user by name or number. Raises ConfigError."""
    try:
        user = pwd.getpwuid(value) if isinstance(value, int) else pwd.getpwnam(str(value))
    except (KeyError, OverflowError, ValueError):
        raise _invalid(
            ("run_as",),
            f"there is no user {str(value)[:40]!a} on this machine",
            "create one: useradd --system --no-create-home perdure-tasks",
        ) from None
    if user.pw_uid == 0:
        raise _invalid(("run_as",), "must not be root", "name an unprivileged user")
    return RunAs(user.pw_uid, user.pw_gid)


def _network(value: Any) -> NetworkSettings:
    if value in ("off", "host"):
        return NetworkSettings(value)
    if not isinstance(value, Mapping) or set(value) != {"allow"}:
        raise _invalid(("network",), "must be off, host, or {allow: [HOST, …]}")
    entries = value["allow"]
    if isinstance(entries, str) or not isinstance(entries, Sequence) or not entries:
        raise _invalid(("network", "allow"), "must be a list of hosts")
    for number, entry in enumerate(entries):
        _check_allowed(entry, ("network", "allow", number))
    return NetworkSettings("allow", tuple(str(entry).lower() for entry in entries))


def _check_allowed(entry: Any, path: Sequence[str | int]) -> None:
    try:
        parse_entry(entry)
    except (AttributeError, TypeError, ValueError) as error:
        text = str(error) if isinstance(error, ValueError) else "must be text"
        raise _invalid(path, text, "name hosts only: everything else stays closed") from None


def _limits(value: Mapping[str, Any]) -> ExecLimits:
    names = ", ".join((*_LIMITS, "timeout"))
    limits: dict[str, Any] = {}
    for name, limit in value.items():
        if name not in _LIMITS:
            raise _invalid(("limits",), f"unknown key {str(name)[:40]!a}", f"the keys are {names}")
        limits[_LIMITS[name]] = _limit(name, limit)
    return ExecLimits(**limits)


def _limit(name: str, value: Any) -> float | None:
    """Return one limit: a number above 0; of bytes, also text such as `1GiB`."""
    target = _LIMITS[name]
    if value is None and target in _OPTIONAL:
        return None
    try:
        limit = parse_size(value) if _is_size_text(target, value) else value
    except ValueError as error:
        raise _invalid(("limits", name), str(error)) from error
    is_number = isinstance(limit, int | float) and not isinstance(limit, bool) and limit > 0
    if not is_number or not (target == "cpus" or isinstance(limit, int)):
        sizes = ", or a size such as 1GiB" if target.endswith(_BYTES) else ""
        raise _invalid(("limits", name), f"must be a number above 0{sizes}")
    return limit


def _is_size_text(target: str, value: Any) -> bool:
    return isinstance(value, str) and target.endswith(_BYTES)


def _timeout(value: Any) -> int:
    try:
        limit = round(value.total_seconds() * 1000) if hasattr(value, "total_seconds") else None
        limit = duration_ms(value) if limit is None else limit
    except Refused as error:
        raise _invalid(("limits", "timeout"), "must be a duration", error.hint) from error
    if not 0 < limit <= LONGEST_TIMEOUT_MS:
        raise _invalid(("limits", "timeout"), "must be above 0 and less than a day")
    return limit


def _ro_paths(value: Any, closed: Collection[Path] = ()) -> tuple[ReadOnlyPath, ...]:
    """Return the paths, resolved once: a link that changes later has no effect."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _invalid(("ro_paths",), "must be a list of paths")
    paths: list[ReadOnlyPath] = []
    for number, item in enumerate(value):
        try:
            paths += resolve_ro_paths([item], closed)
        except (TypeError, ValueError) as error:
            raise _invalid(
                ("ro_paths", number),
                str(error),
                "name folders with programs, such as a virtual environment",
            ) from None
    return tuple(paths)


def _env(value: Any) -> Mapping[str, str]:
    for name, text in _mapping(value, ("env",)).items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise _invalid(("env",), f"{str(name)[:40]!a} is not the name of a variable")
        if name in _RESERVED or name.startswith(_RESERVED[2:]):
            raise _invalid(("env", name), "is set by perdure, and cannot be set here")
        if not isinstance(text, str) or "\0" in text:
            raise _invalid(("env", name), "must be text")
    return dict(value)
