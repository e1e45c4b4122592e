"""Runs every benchmark, or the named ones (`python -m bench import`), into docs/benchmarks.md.

`--quick` is a short version that only prints: `python -m bench cycles --quick`.
"""

import argparse
import contextlib
import io
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from bench import machine, report

ORDER = (
    "cycles",
    "crash",
    "growth",
    "resume",
    "http",
    "hitl",
    "models",
    "store",
    "postgres",
    "repair",
    "import",
)


def main() -> int:
    """Print each section as it is ready and, unless this is quick, write it into the page."""
    there = sorted(path.stem.removeprefix("bench_") for path in _modules())
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(there)}")
    parser.add_argument("--quick", action="store_true", help="shorter, and only printed")
    asked = parser.parse_args()
    unknown = sorted(set(asked.names) - set(there))
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are: {', '.join(there)}")
    facts = machine.facts()
    print("\n".join(facts), flush=True)
    for name in asked.names or ORDER:
        moment = machine.moment()
        section = replace(_measured(name, quick=asked.quick), measured=moment)
        print("\n" + section.text(), flush=True)
        if not asked.quick:
            print(f"\nwritten: {report.write([section], facts)}", flush=True)
    return 0


def _measured(name: str, *, quick: bool) -> report.Section:
    """A benchmark's section; one that only prints is quoted."""
    module = import_module(f"bench.bench_{name}")
    if hasattr(module, "measure"):
        section: report.Section = module.measure(quick=quick)
        return section
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        module.main()
    return report.Section(name.capitalize(), [f"```\n{printed.getvalue().rstrip()}\n```"])


def _modules() -> list[Path]:
    return list(Path(__file__).parent.glob("bench_*.py"))


if __name__ == "__main__":
    sys.exit(main())
