"""The page on moving stores tells the truth: its first command does what it says."""

import re
from pathlib import Path

from tests.docs.test_operating import shell
from tests.support.cli_project import SHOP
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "moving-stores.md").read_text()


def test_a_copy_says_what_it_compared(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP.replace("shop.db", "perdure.db"))
    for session in ("s1", "s2"):
        shell(tmp_path, f"perdure run support Refund -s {session} --app shop:rt", code=8)
    command = PAGE.split("```sh\n")[1].splitlines()[0]
    said = shell(tmp_path, command)
    shown = re.search(r"```\n(✓ .*?)\n```", PAGE)
    assert shown is not None
    assert _without_numbers(said) == _without_numbers(shown[1])


def _without_numbers(text: str) -> str:
    return re.sub(r"\d[\d,]*", "N", text.partition("sha256:")[0])
