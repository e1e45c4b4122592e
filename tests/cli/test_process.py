"""How the processes that are all ours collect garbage, and end while they are loaded."""

import subprocess
import sys

import pytest
from tests.support.cli_project import Shop

LOOK = """
import gc
from perdure.cli.process import WORKING, relax_collector, freeze_loaded_objects
relax_collector()
freeze_loaded_objects()
assert gc.get_threshold() == WORKING
assert gc.get_freeze_count() > 1_000
assert gc.isenabled()
"""


def test_what_was_loaded_at_the_start_is_not_looked_at_again() -> None:
    subprocess.run([sys.executable, "-c", LOOK], check=True, timeout=60)


INTERRUPTED_LOAD = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "perdure.cli.root":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from perdure.cli import main
main()
"""


def test_ctrl_c_while_modules_are_loaded_prints_no_traceback() -> None:
    command = [sys.executable, "-c", INTERRUPTED_LOAD]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


INTERRUPTED_QUESTION = """
import signal, sys
import click.termui
from perdure.cli import main
sys.stdin.isatty = sys.stdout.isatty = sys.stderr.isatty = lambda: True
click.termui.visible_prompt_func = lambda _: signal.raise_signal(signal.SIGINT) or "1"
main()
"""


@pytest.mark.parametrize("words", [("sessions", "delete", "s1"), ("approve", "@last")])
def test_ctrl_c_at_a_question_ends_the_command_at_once(shop: Shop, words: tuple[str, ...]) -> None:
    for session in ("s1", "s2"):
        shop.run("run", "support", "Refund", "-s", session)
    command = [sys.executable, "-c", INTERRUPTED_QUESTION, *words, "--app", "shop:rt"]
    ended = subprocess.run(
        command, check=False, capture_output=True, cwd=shop.folder, text=True, timeout=60
    )
    assert (ended.returncode, "stopping" in ended.stderr) == (130, False)
    assert shop.json("sessions", "show", "s1")["state"] == "waiting"
