"""CPU time of `import perdure`, as a ratio to `import pydantic` in the same run."""

import subprocess
import sys

from bench.report import Section

ROUNDS = 20
PROGRAM = "import time; t = time.process_time(); import {}; print(time.process_time() - t)"


def cpu_s(module: str) -> float:
    """Return the CPU seconds of one import in a new interpreter, without its startup."""
    command = [sys.executable, "-c", PROGRAM.format(module)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(*, quick: bool = False) -> Section:
    """Measure the minimum of each import, alternating so that other load affects both."""
    count = 5 if quick else ROUNDS
    rounds = [(cpu_s("perdure"), cpu_s("pydantic")) for _ in range(count)]
    ours, theirs = (min(column) for column in zip(*rounds, strict=True))
    text = (
        f"`import perdure` takes {ours * 1000:.1f} ms of CPU time, {ours / theirs:.2f} x "
        f"`import pydantic` ({theirs * 1000:.1f} ms); best of {count}; target ≤ 1.5 x."
    )
    return Section("Import", [text])
