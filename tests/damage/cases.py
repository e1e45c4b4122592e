"""A case of damage: a copy of a scene, the damage, a way out, and what the oracle says of it."""

import asyncio
import shutil
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Literal, Protocol

import asyncpg
from click.testing import CliRunner, Result
from tests.damage.scenes import Scene, Template, create, settle
from tests.servers.postgres import PostgresServer
from tests.support.damage import DUE, Damage

from perdure.cli.root import cli

Way = Literal["fix", "fix all", "import"]
WAYS: tuple[Way, ...] = ("fix", "fix all", "import")


def run(*words: str) -> Result:
    """Run a command in this process."""
    result = CliRunner().invoke(cli, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@dataclass(frozen=True, slots=True)
class Case:
    """One scene with one kind of damage and one way out."""

    scene: Scene
    damage: Damage
    way: Way

    def __str__(self) -> str:
        return f"{self.scene}, {self.damage.name}, {self.way}"


class Copies(Protocol):
    """Stores of one backend."""

    def copy(self, case: Case) -> tuple[str, Template] | None:
        """Return the URL of a damaged copy, and its template; None if it cannot have the damage."""
        ...


@dataclass(slots=True)
class SqliteFiles:
    """Files of the scenes, and their damaged copies."""

    folder: Path
    templates: dict[Scene, Template] = field(default_factory=dict)
    numbers: "count[int]" = field(default_factory=count)

    def template(self, scene: Scene) -> tuple[Path, Template]:
        """Return the file of a scene, which is created once."""
        path = self.folder / f"{scene}.db"
        if scene not in self.templates:
            self.templates[scene] = asyncio.run(create(scene, f"sqlite:///{path}"))
        return path, self.templates[scene]

    def copy(self, case: Case) -> tuple[str, Template] | None:
        path, template = self.template(case.scene)
        damaged = self.folder / f"case-{next(self.numbers)}.db"
        shutil.copy(path, damaged)
        before = damaged.read_bytes()
        try:
            case.damage.to_sqlite(damaged, template.session)
        except sqlite3.IntegrityError:  # this log cannot have such numbers
            return None
        if damaged.read_bytes() == before and not Path(f"{damaged}-wal").exists():
            return None
        return f"sqlite:///{damaged}", template


@dataclass(slots=True)
class Databases:
    """Databases of the scenes, and their damaged copies."""

    server: PostgresServer
    templates: dict[Scene, tuple[str, Template]] = field(default_factory=dict)
    numbers: "count[int]" = field(default_factory=count)

    def copy(self, case: Case) -> tuple[str, Template] | None:
        if case.scene not in self.templates:
            url = self.server.new_database()
            self.templates[case.scene] = (url, asyncio.run(create(case.scene, url)))
            name = url.rsplit("/", 1)[1]  # the lease of a killed process has expired
            self.server.psql("UPDATE perdure.holder SET until = 1", name)
        url, template = self.templates[case.scene]
        name = f"damaged_{next(self.numbers)}"
        self.server.psql(f"CREATE DATABASE {name} TEMPLATE {url.rsplit('/', 1)[1]}")
        copy = self.server.url(name)
        is_changed = asyncio.run(_damage_rows(copy, case.damage, template.session))
        return (copy, template) if is_changed else None


async def _damage_rows(url: str, damage: Damage, session: str) -> bool:
    connection = await asyncpg.connect(url)
    changed: list[bool] = []

    async def execute(statement: str) -> None:
        status = await connection.execute(statement)
        changed.append(not status.endswith(" 0"))

    try:
        await connection.execute("SET search_path TO perdure, public")
        await damage.to_postgres(execute, session)
    finally:
        await connection.close()
    return any(changed)


# --- the oracle -----------------------------------------------------------------------------------


def faults_of(case: Case, url: str, template: Template, folder: Path) -> list[str]:
    """Take the way out of a damaged store, let everything run to its end, and return the faults."""
    session, ledger = template.session, template.ledger.copy()
    checks = run("doctor", "--store", url), run("doctor", session, "--store", url)
    # Rows that belong to no session are a finding about the store.
    codes = {result.exit_code for result in checks[: 1 if case.damage.group == "strays" else 2]}
    faults: list[str] = []
    if 0 in codes and not is_harmless(case):
        faults.append(f"doctor is silent: exit codes {sorted(codes)}")
    if case.way == "import":
        url = _import(url, folder, faults)
    else:
        _fix(url, session if case.way == "fix" else None, faults)
    return faults + asyncio.run(settle(url, ledger))


def is_harmless(case: Case) -> bool:
    """Return True if nothing that counts is damaged: entries of settled calls are also pruned."""
    is_over = case.scene.name in ("completed", "decided", "cancelled", "submitted")
    has_nothing_to_do = case.scene.name == "cancelled" and case.damage in DUE
    is_pruned = is_over and "open call deleted" in case.damage.name
    return case.damage.way_out == "none" or is_pruned or has_nothing_to_do


def _fix(url: str, session: str | None, faults: list[str]) -> None:
    words = [] if session is None else [session]
    run("doctor", *words, "--fix", "--yes", "--store", url)
    if run("doctor", "--store", url).exit_code == 7:  # it was not the only one
        run("doctor", "--fix", "--yes", "--store", url)
    result = run("doctor", "--store", url)
    if result.exit_code == 7:
        faults.append(f"the fix leaves damage: {result.output}")


def _import(url: str, folder: Path, faults: list[str]) -> str:
    file, new = folder / "sessions.jsonl", f"sqlite:///{folder / 'new.db'}"
    exported = run("sessions", "export", "--all", "--secrets", "--store", url)
    file.write_bytes(exported.stdout_bytes)
    imported = run("sessions", "import", str(file), "--store", new)
    if imported.exit_code and exported.stdout_bytes:
        faults.append(f"the export cannot be imported: {imported.output}")
    return new


# --- the table ------------------------------------------------------------------------------------


def cases(kinds: Sequence[Damage], scene: Scene, way: Way) -> list[Case]:
    """Return the cases of a scene and a way out; damaged pages are only exported."""
    chosen = [kind for kind in kinds if kind.way_out != "copy" or way == "import"]
    return [Case(scene, kind, way) for kind in chosen]


def run_cases(store: Copies, chosen: Sequence[Case], folder: Path) -> tuple[int, list[str]]:
    """Run cases, and return how many there were and what went wrong."""
    number, faults = 0, list[str]()
    for case in chosen:
        copied = store.copy(case)
        if copied is None:
            continue
        number += 1
        place = folder / str(number)
        place.mkdir()
        try:
            found = faults_of(case, *copied, place)
        except Exception as error:  # noqa: BLE001 - a traceback is a fault as any other
            found = [f"{type(error).__name__}: {error}"]
        faults += [f"{case}: {fault}" for fault in found]
    return number, faults
