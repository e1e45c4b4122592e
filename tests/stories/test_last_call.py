"""`@last` at two terminals that share a store: each means its own session."""

import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.support.cli_project import SHOP, Shop


def play(shop: Shop, *words: str, typed: bytes = b"") -> tuple[int, str]:
    """Run commands, each with its own words, in one new terminal; return the last code."""
    ours, theirs = pty.openpty()
    script = " ; ".join(
        f"{sys.executable} -m perdure.cli {command} --app shop:rt" for command in words
    )
    process = subprocess.Popen(
        ["/bin/sh", "-c", script],
        cwd=shop.folder,
        env={
            **os.environ,
            "PYTHONUTF8": "1",
            "NO_COLOR": "1",
            "XDG_STATE_HOME": str(shop.folder / "state"),
        },
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    os.write(ours, typed)
    text = b""
    try:
        while chunk := os.read(ours, 4096):
            text += chunk
    except OSError:  # the other side is closed
        pass
    code = process.wait(timeout=30)
    os.close(ours)
    return code, text.decode("utf-8", "replace")


def test_last_is_a_call_of_the_session_that_this_terminal_ran(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    shop = Shop(tmp_path)
    assert play(shop, "run votes go -s colleague")[0] == 8
    words = ("run support go -s mine", "approve @last", "deny @last --no-run")
    code, text = play(shop, *words, typed=b"1\n")
    assert shop.effects() == ["refund 4200"], text
    which = "Which call? session mine, which this terminal used last, has no such open call:"
    assert which in text
    assert "  1  payout(cents=7)  session colleague" in text
    assert (code, "denied payout(cents=7)" in text) == (0, True), text
