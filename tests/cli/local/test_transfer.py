"""`perdure sessions export` and `import`."""

import json
import sqlite3
from pathlib import Path

import pytest
from tests.support.cli_project import Shop

HERE = ("--store", "sqlite:///other.db")


@pytest.fixture
def file(shop: Shop) -> Path:
    """An export of `done`, which is completed, and `waits`, which is not."""
    shop.run("run", "plain", "first", "-s", "done")
    shop.run("run", "support", "second", "-s", "waits", "--tenant", "acme")
    told = shop.run("sessions", "export", "--all")
    assert told.exit_code == 0
    Path("sessions.jsonl").write_bytes(told.stdout_bytes)
    return Path("sessions.jsonl")


def test_an_approval_goes_on_where_it_was_imported(shop: Shop, file: Path) -> None:
    told = shop.run("sessions", "import", str(file), *HERE, app=None)
    assert told.exit_code == 0, told.output
    assert "waits: " in told.stdout
    assert "1 call waits" in told.stdout
    again = shop.run("sessions", "export", "--all", *HERE, app=None)
    assert again.stdout_bytes == file.read_bytes()
    Path("other.db").rename("shop.db")
    for log in Path().glob("other.db-*"):
        log.unlink()
    assert shop.run("approve", "@last").exit_code == 0
    assert shop.effects() == ["refund 4200"]
    assert shop.json("sessions", "show", "waits")["state"] == "completed"


def test_ids_choose_and_are_told_in_json(shop: Shop, file: Path) -> None:
    told = shop.run("sessions", "export", "done", "do")
    lines = [json.loads(one) for one in told.stdout.splitlines()]
    assert [one["sessionID"] for one in lines if "perdure" in one] == ["done"]
    found = shop.run("sessions", "import", "-", *HERE, "--json", app=None, stdin=told.stdout)
    assert json.loads(found.stdout) == {
        "imported": [
            {
                "sessionID": "done",
                "tenant": "",
                "events": lines[-1]["events"],
                "pending": 0,
                "lost": 0,
                "calls": [],
                "incomplete": False,
            }
        ],
        "orphans": [],
    }


def test_what_exists_is_refused_and_nothing_is_written(shop: Shop, file: Path) -> None:
    told = shop.run("sessions", "import", str(file), "--json")
    assert told.exit_code == 5
    assert json.loads(told.stderr)["code"] == "SESSION_EXISTS"


def test_an_orphan_is_said(shop: Shop, file: Path) -> None:
    """S0.67"""
    lines = file.read_text().splitlines()
    file.write_text("\n".join(one for one in lines if one.startswith('{"pending"')))
    told = shop.run("sessions", "import", str(file), *HERE, app=None)
    assert told.exit_code == 0
    orphan = told.stdout.splitlines()[0]
    assert orphan.startswith("✗ cancelled ")
    assert orphan.endswith("its session waits is not in the file")
    assert "There are no sessions in the file." in told.stdout


@pytest.mark.parametrize("words", [[], ["done", "--all"]])
def test_one_says_which_sessions_are_meant(shop: Shop, words: list[str]) -> None:
    assert shop.run("sessions", "export", *words).exit_code == 2


def test_a_file_that_is_not_there_and_one_that_is_no_export(shop: Shop) -> None:
    told = shop.run("sessions", "import", "none.jsonl", *HERE, app=None)
    assert (told.exit_code, Path("other.db").exists()) == (2, False)
    Path("bad.jsonl").write_text("hello")
    told = shop.run("sessions", "import", "bad.jsonl", *HERE, app=None)
    assert told.exit_code == 2
    assert told.stderr.startswith("error: bad.jsonl: not a session in a known format")
    assert "hint: perdure reads its own exports, " in told.stderr
    Path("cut.jsonl").write_text('{"perdure": 1}')
    told = shop.run("sessions", "import", "cut.jsonl", *HERE, app=None)
    assert told.stderr.startswith("error: cut.jsonl: line 1: ")
    assert "hint: nothing was imported" in told.stderr


@pytest.mark.parametrize("damage", [b"{", b"[]", 5])
def test_an_export_leaves_out_a_damaged_event_and_names_it_in_the_end_line(
    shop: Shop, damage: object
) -> None:
    """G3"""
    shop.run("run", "plain", "x", "-s", "a")
    shop.run("run", "plain", "x", "-s", "b")
    with sqlite3.connect("shop.db") as raw:
        raw.execute("UPDATE record SET data = ? WHERE seq = 3 AND sid = 1", (damage,))
    raw.close()
    told = shop.run("sessions", "export", "--all", "--json")
    assert told.exit_code == 7
    assert json.loads(told.stderr)["details"]["damaged"][0]["seq"] == 3
    lines = [json.loads(one) for one in told.stdout.splitlines()]
    assert [one["sessionID"] for one in lines if "perdure" in one] == ["b", "a"]
    assert [one["seq"] for one in lines if "seq" in one][-4:] == [4, 1, 2, 4]
    assert [one["lost"] for one in lines if "lost" in one] == [[[3, 3]]]


def test_an_export_of_a_session_that_lost_its_last_events_says_so_by_its_entry(
    shop: Shop, file: Path
) -> None:
    """G3, G9: the head of the stream has the end of the run, which the log lacks."""
    shop.run("run", "support", "x", "-s", "a")
    assert shop.run("sessions", "cancel", "a").exit_code == 0
    last = json.loads(shop.run("sessions", "export", "a").stdout.splitlines()[-1])["events"]
    with sqlite3.connect("shop.db") as raw:
        sid = "(SELECT max(sid) FROM stream WHERE kind LIKE 'session:%')"
        raw.execute(f"DELETE FROM record WHERE sid = {sid} AND seq >= {last - 1}")  # noqa: S608
    raw.close()
    told = shop.run("sessions", "export", "a")
    assert told.exit_code == 7
    assert json.loads(told.stdout.splitlines()[-1])["lost"] == [[last - 1, last]]
    shop.run("sessions", "import", "-", *HERE, app=None, stdin=told.stdout)
    for path in Path().glob("shop.db*"):
        path.unlink()
    Path("other.db").rename("shop.db")
    shop.run("sessions", "resume", "a")
    session = shop.json("sessions", "show", "a")
    assert (session["state"], session["error"]["code"]) == ("failed", "EVENTS_LOST")
    assert shop.json("pending", "list")["pending"] == []


def test_an_export_with_a_byte_order_mark_is_read(shop: Shop, file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    told = shop.run("sessions", "import", str(file), *HERE, app=None)
    assert told.exit_code == 0, told.output
    assert "waits: " in told.stdout


@pytest.mark.parametrize("first", [b"", b"{\n"])
def test_an_export_without_its_first_line_is_refused(shop: Shop, file: Path, first: bytes) -> None:
    """It is not a log of another program."""
    file.write_bytes(first + file.read_bytes().split(b"\n", 1)[1])
    told = shop.run("sessions", "import", str(file), *HERE, app=None)
    assert told.exit_code == 2, told.output
    assert told.stderr.startswith("error: sessions.jsonl: line 1: ")
    assert shop.json("sessions", "list", *HERE, app=None)["sessions"] == []


def test_an_export_with_a_changed_value_is_refused_and_says_what_to_do(
    shop: Shop, file: Path
) -> None:
    file.write_bytes(file.read_bytes().replace(b'"second"', b'"other"'))
    told = shop.run("sessions", "import", str(file), *HERE, app=None)
    assert told.exit_code == 2, told.output
    assert "was changed after its export" in told.stderr
    assert "hint: nothing was imported; export the session again" in told.stderr
