"""Run all benchmarks, or the named ones (`python -m bench import`), and write docs/benchmarks.md.

`--quick` runs a short version that only prints its results: `python -m bench cycles --quick`.
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
    "simulation",
    "growth",
    "resume",
    "http",
    "requests",
    "hitl",
    "models",
    "store",
    "files",
    "postgres",
    "repair",
    "tasks",
    "sandbox",
    "mcp",
    "background",
    "ui",
    "import",
)


def main() -> int:
    """Print each section when it is complete and, without `--quick`, write it to the page."""
    available = sorted(path.stem.removeprefix("bench_") for path in _modules())
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(available)}")
    parser.add_argument(
        "--quick", action="store_true", help="run a short version and only print the results"
    )
    args = parser.parse_args()
    unknown = sorted(set(args.names) - set(available))
    if unknown:
        parser.error(
            f"unknown benchmark: {', '.join(unknown)}; choose from: {', '.join(available)}"
        )
    facts = machine.facts()
    print("\n".join(facts), flush=True)
    for name in args.names or ORDER:
        label = machine.run_label()
        section = replace(_run_benchmark(name, quick=args.quick), run_label=label)
        print("\n" + section.text(), flush=True)
        if not args.quick:
            print(f"\nwritten: {report.write_page([section], facts)}", flush=True)
    return 0


def _run_benchmark(name: str, *, quick: bool) -> report.Section:
    """Return a benchmark's section; output of one that only prints becomes a code block."""
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
