"""Generated pages are up to date, and every id that a test names is in the table of promises."""

import subprocess
import sys
import tomllib

import pytest
from scripts.docs.promises import ID, find_tests
from tests.support.paths import ROOT

SECTIONS = tomllib.loads((ROOT / "docs" / "promises.toml").read_text())


def test_the_reference_and_the_promises_are_not_stale() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.docs", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_id_that_a_test_names_can_be_looked_up() -> None:
    known = {ident for section in SECTIONS.values() for ident in section["promises"]}
    assert set(find_tests(ROOT / "tests")) - known == set()


@pytest.mark.parametrize("section", SECTIONS)
def test_every_promise_is_one_sentence_with_a_valid_id(section: str) -> None:
    for ident, text in SECTIONS[section]["promises"].items():
        assert ID.fullmatch(ident)
        assert text[:1] == text[:1].upper()
        assert text.endswith((".", '."', ".)"))
