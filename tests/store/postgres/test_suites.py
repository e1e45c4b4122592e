"""What is shown of SQLite is shown of PostgreSQL too: the same tests, by their names."""

import re
import subprocess
import sys

from tests.contract.conftest import BACKENDS
from tests.support.paths import ROOT

SUITES = ("tests/contract", "tests/crash", "tests/proof")

# Tests of these suites that run on one of the two only, or on neither, and why.
ALONE = {
    "test_contract.py::test_every_capability_has_cases": "of the suite itself",
    "test_contract.py::test_the_report_says_what_a_backend_has_and_what_it_broke": "of the suite",
    "test_contract.py::test_a_required_capability_cannot_be_declared_away": "of the suite itself",
    "test_kill_matrix.py::test_a_story_in_files_killed_anywhere_ends_as_if_it_had_not_been": (
        "of the store of files"
    ),
    "test_settling_runs.py::"
    "test_settling_runs_in_files_killed_anywhere_end_as_if_they_had_not_been": (
        "of the store of files"
    ),
    "test_recovery.py::"
    "test_a_submitter_killed_at_each_call_of_the_system_has_changed_all_or_nothing": (
        "of the store of files; a client of PostgreSQL writes no file"
    ),
    "test_takeover.py::"
    "test_without_anything_but_plain_sql_they_are_taken_over_after_a_short_lease": (
        "of a pooler; SQLite has no server"
    ),
    "test_linear.py": "measures SQLite's file, byte by byte",
    "test_parked.py::"
    "test_a_start_among_a_hundred_thousand_parked_sessions_is_as_one_among_a_hundred": (
        "counts the steps of SQLite's machine; test_query_plans.py looks at PostgreSQL's plans"
    ),
    "test_pages.py": (
        "counts the steps of SQLite's machine; test_query_plans.py looks at PostgreSQL's plans"
    ),
    "test_mirror_kills.py": "of the files beside a SQLite file",
    "test_simulated_kills.py": "compares a process with a simulated one; any store does",
    "test_background.py": "those without a store are of callers and locks; the others run on both",
    "test_task_kills.py": "runs on SQLite, PostgreSQL and files, which its programs choose",
    "test_budgets.py": "of the commits that count a budget, which are the same on every store",
    "test_executions.py": "of processes and output; tests/tasks/test_executions.py runs on both",
    "test_lost_clients.py": "of the connections of a server; any store does",
    "test_mcp_kills.py": "of the MCP server; the kill matrices of tasks run on both",
    "test_exits.py": "of tools and signals that end a process; any store does",
    "test_parked_runs.py": "counts the threads, tasks and files of this process, with any store",
    "test_provider_kill_matrix.py": "of the libraries of model providers; any store does",
    "test_power_loss.py": "loses what SQLite has not synced; with PostgreSQL that is the server's",
    "test_lock_power_loss.py": "loses what SQLite has not synced, as test_power_loss.py does",
}


def collected() -> list[str]:
    """Every test of the suites."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", *SUITES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [one for one in done.stdout.splitlines() if "::" in one and "sqlite-newest" not in one]


def on(store: str, tests: list[str]) -> set[str]:
    """Those that have this store as a parameter, without it."""
    named = re.compile(rf"(?<=[\[-]){store}(?=[\]-])")
    return {named.sub("*", test) for test in tests if named.search(test)}


def test_what_runs_on_sqlite_runs_on_postgresql_and_the_rest_is_listed() -> None:
    tests = collected()
    assert len(tests) > 100
    sqlite, postgres = on("sqlite", tests), on("postgres", tests)
    assert sqlite == postgres
    a_backend = re.compile(rf"[\[-]({'|'.join(BACKENDS)})[\]-]")
    others = {
        test.partition("[")[0].rpartition("/")[2] for test in tests if not a_backend.search(test)
    }
    unlisted = {test for test in others if not (test in ALONE or test.partition("::")[0] in ALONE)}
    assert not unlisted, "let them run on both, or say here why not"
    assert all(any(test.startswith(name) for test in others) for name in ALONE)
