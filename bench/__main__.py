"""Runs every `bench_*.py` beside this file, or the named ones: `python -m bench import`."""

import sys
from importlib import import_module
from pathlib import Path


def main() -> int:
    """Call each module's `main()` in the order of their names; 1 when a named one is not there."""
    there = sorted(path.stem for path in Path(__file__).parent.glob("bench_*.py"))
    wanted = [f"bench_{name}" for name in sys.argv[1:]] or there
    unknown = sorted(set(wanted) - set(there))
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are: {', '.join(there)}")
        return 1
    for name in wanted:
        import_module(f"bench.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
