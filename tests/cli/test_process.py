"""How the processes that are all ours collect garbage."""

import subprocess
import sys

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
