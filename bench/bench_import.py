"""What `import perdure` costs, as a ratio to `import pydantic` taken in the same run."""

import subprocess
import sys

from bench.report import Section

ROUNDS = 20
PROGRAM = "import time; t = time.process_time(); import {}; print(time.process_time() - t)"


def cpu_s(module: str) -> float:
    """CPU seconds one import takes in a fresh interpreter, without the interpreter's own start."""
    command = [sys.executable, "-c", PROGRAM.format(module)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(*, quick: bool = False) -> Section:
    """The best of each, taken in turns so that a busy moment meets both."""
    count = 5 if quick else ROUNDS
    rounds = [(cpu_s("perdure"), cpu_s("pydantic")) for _ in range(count)]
    ours, theirs = (min(column) for column in zip(*rounds, strict=True))
    text = (
        f"`import perdure` takes {ours * 1000:.1f} ms CPU, {ours / theirs:.2f} x "
        f"`import pydantic` ({theirs * 1000:.1f} ms); best of {count}; the budget is 1.5 x."
    )
    return Section("Import", [text])
