"""Runs every benchmark and writes docs/benchmarks.md, or the named ones: `python -m bench import`.

`--quick` is a short version that only prints: `python -m bench cycles --quick`.
"""

import argparse
import contextlib
import io
import sys
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
    """Print each section as it is ready; with no names and not quick, write the page."""
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
    sections = []
    for name in asked.names or ORDER:
        section = _measured(name, quick=asked.quick)
        print("\n" + section.text(), flush=True)
        sections.append(section)
    if not asked.names and not asked.quick:
        print(f"\nwritten: {report.write(sections, facts)}")
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
