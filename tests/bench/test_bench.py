"""Tests of the code of the benchmarks; `make bench` runs the benchmarks themselves."""

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
    bench_tasks,
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
from perdure.store.base import Record
from perdure.testing.endpoint import fake_endpoint

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.parametrize("name", sorted(path.stem for path in BENCH.glob("bench_*.py")))
def test_every_benchmark_can_be_imported_and_run(name: str) -> None:
    module = import_module(f"bench.{name}")
    assert callable(getattr(module, "measure", None) or module.main)


def test_every_contender_has_a_program_and_pinned_versions() -> None:
    for contender in ALL:
        source = BENCH / "peers" / f"{contender.module}_peer.py"
        compile(source.read_text(), str(source), "exec")
        if contender.env:
            assert contender.version.split()[1][0].isdigit()


def test_every_environment_is_pinned_without_a_download_address() -> None:
    for env in envs.PACKAGES:
        lines = (BENCH / "peers" / f"constraints-{env}.txt").read_text().splitlines()
        assert lines
        assert all("==" in line and "/" not in line for line in lines)


@pytest.mark.parametrize(
    "opener", [perdure_peer.open_peer, floor_peer.open_peer], ids=["ours", "floor"]
)
def test_cycles_are_counted_and_timed(opener: common.Opener, tmp_path: Path) -> None:
    job = common.Job("cycles", str(tmp_path), sessions=2, cycles=4)
    result = asyncio.run(common._measure(opener, job, tmp_path))
    assert (result["cycles"], result["errors"], result["durability"]) == (4, [], "wal, FULL")


@pytest.mark.parametrize("format_", model_loops.NAMES)
@pytest.mark.parametrize("client", model_loops.LOOPS)
def test_turns_of_real_models_are_counted_and_timed(
    client: str, format_: str, tmp_path: Path
) -> None:
    with fake_endpoint(model_loops.script()) as endpoint:
        job = {"client": client, "format": format_, "url": endpoint.url, "folder": str(tmp_path)}
        costs = asyncio.run(model_loops.measure({**job, "sessions": 1}))
        assert endpoint.refused == []
        assert len(endpoint.requests) == 2 * len(model_loops.script())
    assert costs["cpu_ms"] > 0
    assert costs["commits"] == (2 if client == "perdure" else 0)


def test_a_repeated_turn_continues_after_the_real_ones() -> None:
    real = Record(
        "assistant", b'{"turn":2,"taskID":"task_01M7GKNYRM8GQND11Y88GHR6D4","requestHead":5}'
    )
    assert bench_resume.renumber(real, 7).data == (
        b'{"turn":7,"taskID":"task_01M7GKNYRM8GQND11Y88000007","requestHead":25}'
    )


def test_a_session_continues_from_a_built_history(tmp_path: Path) -> None:
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
    assert bench_cycles.count_fsync_calls(summary) == 403
    assert bench_cycles.count_fsync_calls("") == 0


def test_losses_and_repetitions_of_a_kill_are_counted() -> None:
    clean = {"point": "turn 1", "before": ["turn 0", "charged"], "after": ["turn 1", "done"]}
    repeated = {**clean, "after": ["found nothing", "turn 0", "charged", "turn 1", "done"]}
    assert not +bench_crash.count_harm(clean)
    assert +bench_crash.count_harm(repeated) == {"effect": 1, "turn": 1, "message": 1}
    assert +bench_crash.count_at_risk(clean) == {"effect": 1, "turn": 1, "message": 1}


def test_a_page_has_its_facts_its_tables_and_its_pictures(tmp_path: Path) -> None:
    table = report.Table(["", "cycles/s"], [["perdure", report.number(1234.5)], ["other", "-"]])
    picture = chart("Cycles & more", "per second", ["1", "64"], [Bars("perdure", [3.0, None])])
    page = report.write_page(
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
    first = [report.Section(name, ["Old."], run_label="Monday") for name in ("Cycles", "Models")]
    report.write_page(first, ["a machine"], tmp_path)
    anew = report.Section("Cycles", ["### How", "New."], run_label="Tuesday")
    page = report.write_page([anew, report.Section("Stores", ["New."])], ["a machine"], tmp_path)
    assert page.read_text().split("\n\n")[2:] == [
        *("- a machine", "## Cycles", "*Tuesday*", "### How", "New."),
        *("## Models", "*Monday*", "Old.", "## Stores", "New.\n"),
    ]


def test_numbers_have_the_digits_that_are_worth_reading() -> None:
    texts = [report.number(value) for value in (None, 0.512, 41.94, 14_496.2)]
    assert texts == ["-", "0.51", "41.9", "14,496"]


@pytest.mark.parametrize("mode", ["saved", "elsewhere", "in_place"])
def test_pauses_are_counted_and_timed(mode: str, tmp_path: Path) -> None:
    """S4.60: p50 and p99 of a pause that is saved, resumed elsewhere, or in place."""
    times = anyio.run(getattr(bench_hitl, f"_measure_{mode}"), tmp_path / "h.db", 1_000, 3)
    assert 0 < times.p50 <= times.p99


def test_the_bytes_of_pauses_are_counted(tmp_path: Path) -> None:
    """S4.61"""
    assert 0 < anyio.run(bench_hitl._measure_log_growth, tmp_path / "h.db") < 100_000


def test_cycles_on_postgres_are_counted_and_timed(postgres_url: str, tmp_path: Path) -> None:
    for opener in (perdure_postgres_peer.open_peer, floor_postgres_peer.open_peer):
        job = common.Job("cycles", str(tmp_path), postgres_url, sessions=2, cycles=4)
        result = asyncio.run(common._measure(opener, job, tmp_path))
        assert (result["cycles"], result["errors"], result["durability"]) == (4, [], "on, on")


def test_parked_sessions_are_made_by_the_server_and_change_no_plan(postgres_url: str) -> None:
    anyio.run(postgres_parked.park, postgres_url, 1, 1_000)
    few = anyio.run(postgres_parked.plans, postgres_url)
    anyio.run(postgres_parked.park, postgres_url, 1_001, 5_000)
    assert anyio.run(postgres_parked.plans, postgres_url) == few

    async def waiting() -> int:
        async with Runtime(postgres_url) as rt:
            return (await rt._resources.store.census(["pending"])).entries["pending", "open"]

    assert anyio.run(waiting) == 5_001


def test_the_gap_after_a_killed_worker_is_measured(postgres_url: str) -> None:
    assert 0 < postgres_take_over.gap_s(postgres_url) < postgres_take_over.LIMIT_S


def test_tasks_are_measured_beside_the_figures_of_the_documented_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3.73, S3.74, S3.75, S3.76, S3.77, C30"""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(bench_tasks, "ROUNDS", 1)
    (table,) = [part for part in bench_tasks.measure(quick=True).parts if hasattr(part, "rows")]
    figures = {row[0].split(":")[0].split(",")[0]: row[-1] for row in table.rows}
    assert {row[0].split(":")[0] for row in table.rows} >= {"lock, in process", "lock, durable"}
    assert figures["registry"] == "< 20 ms"
    assert figures["state save"] == "< 10 ms"
    assert figures["log append"] == "< 1 ms"
    assert [row[-1] for row in table.rows if "second" in row[0]] == ["about 50 ms"]
    assert table.rows[0][-1] == "742K ops/s"
    assert all("times" in row[3] or "of its rate" in row[3] for row in table.rows)
