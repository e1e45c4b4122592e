"""What `import holdfast` costs, as a ratio to `import pydantic` taken in the same run."""

import subprocess
import sys

ROUNDS = 20
PROGRAM = "import time; t = time.process_time(); import {}; print(time.process_time() - t)"


def cpu_s(module: str) -> float:
    """CPU seconds one import takes in a fresh interpreter, without the interpreter's own start."""
    command = [sys.executable, "-c", PROGRAM.format(module)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Print the best of each, taken in turns so that a busy moment meets both."""
    rounds = [(cpu_s("holdfast"), cpu_s("pydantic")) for _ in range(ROUNDS)]
    ours, theirs = (min(column) for column in zip(*rounds, strict=True))
    print(
        f"import holdfast: {ours * 1000:.1f} ms CPU, {ours / theirs:.2f} x import pydantic"
        f" ({theirs * 1000:.1f} ms); best of {ROUNDS}; the budget is 1.5 x"
    )


if __name__ == "__main__":
    main()
