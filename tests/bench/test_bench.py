"""The benchmarks can be run and their pages written; what they measure is `make bench`'s affair."""

import asyncio
import xml.etree.ElementTree as ET
from importlib import import_module
from pathlib import Path

import anyio
import pytest
from bench import (
    bench_crash,
    bench_cycles,
    bench_hitl,
    bench_resume,
    envs,
    machine,
    model_loops,
    postgres_parked,
    postgres_take_over,
    report,
)
from bench.contenders import ALL
from bench.peers import (
    common,
    floor_peer,
    floor_postgres_peer,
    perdure_peer,
    perdure_postgres_peer,
)
from bench.svg import Bars, chart

from perdure import Runtime
from perdure.app import service_of
from perdure.store.base import Record
from perdure.testing.endpoint import fake_endpoint

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.parametrize("name", sorted(path.stem for path in BENCH.glob("bench_*.py")))
def test_every_benchmark_can_be_imported_and_run(name: str) -> None:
    module = import_module(f"bench.{name}")
    assert callable(getattr(module, "measure", None) or module.main)


def test_every_contender_has_a_program_and_pinned_versions() -> None:
    for one in ALL:
        source = BENCH / "peers" / f"{one.module}_peer.py"
        compile(source.read_text(), str(source), "exec")
        if one.env:
            assert one.version.split()[1][0].isdigit()


def test_every_environment_is_pinned_without_a_place_to_load_from() -> None:
    for env in envs.PACKAGES:
        lines = (BENCH / "peers" / f"constraints-{env}.txt").read_text().splitlines()
        assert lines
        assert all("==" in line and "/" not in line for line in lines)


@pytest.mark.parametrize("opener", [perdure_peer.opened, floor_peer.opened], ids=["ours", "floor"])
def test_cycles_are_counted_and_timed(opener: common.Opener, tmp_path: Path) -> None:
    job = common.Job("cycles", str(tmp_path), sessions=2, cycles=4)
    found = asyncio.run(common._measured(opener, job, tmp_path))
    assert (found["cycles"], found["errors"], found["durability"]) == (4, [], "wal, FULL")


@pytest.mark.parametrize("spoken", model_loops.NAMES)
@pytest.mark.parametrize("who", model_loops.LOOPS)
def test_turns_of_real_models_are_counted_and_timed(who: str, spoken: str, tmp_path: Path) -> None:
    with fake_endpoint(model_loops.script()) as endpoint:
        job = {"who": who, "format": spoken, "url": endpoint.url, "folder": str(tmp_path)}
        found = asyncio.run(model_loops.measured({**job, "sessions": 1}))
        assert endpoint.refused == []
        assert len(endpoint.requests) == 2 * len(model_loops.script())
    assert found["cpu_ms"] > 0
    assert found["commits"] == (2 if who == "perdure" else 0)


def test_a_repeated_turn_goes_on_where_the_real_ones_end() -> None:
    real = Record(
        "assistant", b'{"turn":2,"taskID":"task_01M7GKNYRM8GQND11Y88GHR6D4","requestHead":5}'
    )
    assert bench_resume.again(real, 7).data == (
        b'{"turn":7,"taskID":"task_01M7GKNYRM8GQND11Y88000007","requestHead":25}'
    )


def test_a_built_history_is_one_that_a_session_goes_on_from(tmp_path: Path) -> None:
    anyio.run(bench_resume._build, tmp_path, 20)
    assert anyio.run(bench_resume._resume, tmp_path) > 0


def test_fsyncs_are_read_from_a_summary() -> None:
    summary = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 96.00    0.083000         207       400           fdatasync
  4.00    0.000300         100         3         1 fsync
------ ----------- ----------- --------- --------- ----------------
100.00    0.083300         206       403         1 total
"""
    assert bench_cycles.calls_in(summary) == 403
    assert bench_cycles.calls_in("") == 0


def test_what_a_kill_cost_is_told_from_what_was_seen() -> None:
    kept = {"point": "turn 1", "before": ["turn 0", "charged"], "after": ["turn 1", "done"]}
    again = {**kept, "after": ["found nothing", "turn 0", "charged", "turn 1", "done"]}
    assert not +bench_crash.harm_of(kept)
    assert +bench_crash.harm_of(again) == {"effect": 1, "turn": 1, "message": 1}
    assert +bench_crash.stake_of(kept) == {"effect": 1, "turn": 1, "message": 1}


def test_a_page_has_its_facts_its_tables_and_its_pictures(tmp_path: Path) -> None:
    table = report.Table(["", "cycles/s"], [["perdure", report.number(1234.5)], ["other", "-"]])
    picture = chart("Cycles & more", "per second", ["1", "64"], [Bars("perdure", [3.0, None])])
    page = report.write(
        [report.Section("Cycles", ["How.", table], {"cycles.svg": picture})],
        machine.facts(),
        tmp_path,
    )
    text = page.read_text()
    assert "| perdure |    1,234 |" in text
    assert "![Cycles](benchmarks/cycles.svg)" in text
    assert "SQLite" in text
    ET.fromstring((tmp_path / "benchmarks" / "cycles.svg").read_text())  # noqa: S314 - our own


def test_a_section_measured_anew_leaves_the_others_and_their_dates(tmp_path: Path) -> None:
    first = [report.Section(name, ["Old."], measured="Monday") for name in ("Cycles", "Models")]
    report.write(first, ["a machine"], tmp_path)
    anew = report.Section("Cycles", ["### How", "New."], measured="Tuesday")
    page = report.write([anew, report.Section("Stores", ["New."])], ["a machine"], tmp_path)
    assert page.read_text().split("\n\n")[2:] == [
        *("- a machine", "## Cycles", "*Tuesday*", "### How", "New."),
        *("## Models", "*Monday*", "Old.", "## Stores", "New.\n"),
    ]


def test_numbers_have_the_digits_that_are_worth_reading() -> None:
    shown = [report.number(value) for value in (None, 0.512, 41.94, 14_496.2)]
    assert shown == ["-", "0.51", "41.9", "14,496"]


@pytest.mark.parametrize("way", ["_saved", "_elsewhere", "_in_place"])
def test_pauses_are_counted_and_timed(way: str, tmp_path: Path) -> None:
    """S4.60: p50 and p99 of a pause that is saved, that goes on elsewhere, and that is in place."""
    took = anyio.run(getattr(bench_hitl, way), tmp_path / "h.db", 1_000, 3)
    assert 0 < took.p50 <= took.p99


def test_the_bytes_of_pauses_are_counted(tmp_path: Path) -> None:
    """S4.61"""
    assert 0 < anyio.run(bench_hitl._growth, tmp_path / "h.db") < 100_000


def test_cycles_on_postgres_are_counted_and_timed(postgres_url: str, tmp_path: Path) -> None:
    for opener in (perdure_postgres_peer.opened, floor_postgres_peer.opened):
        job = common.Job("cycles", str(tmp_path), postgres_url, sessions=2, cycles=4)
        found = asyncio.run(common._measured(opener, job, tmp_path))
        assert (found["cycles"], found["errors"], found["durability"]) == (4, [], "on, on")


def test_parked_sessions_are_made_by_the_server_and_change_no_plan(postgres_url: str) -> None:
    anyio.run(postgres_parked.park, postgres_url, 1, 1_000)
    few = anyio.run(postgres_parked.plans, postgres_url)
    anyio.run(postgres_parked.park, postgres_url, 1_001, 5_000)
    assert anyio.run(postgres_parked.plans, postgres_url) == few

    async def waiting() -> int:
        async with Runtime(postgres_url) as rt:
            return (await service_of(rt).desk.store.census(["pending"])).entries["pending", "open"]

    assert anyio.run(waiting) == 5_001


def test_the_time_without_a_killed_worker_is_taken(postgres_url: str) -> None:
    assert 0 < postgres_take_over.gap_s(postgres_url) < postgres_take_over.LIMIT_S
