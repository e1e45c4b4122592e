"""Generate the pages of docs/ that are made from code and tables; `--check` only compares.

python -m scripts.docs            write docs/reference/*.md and docs/promises.md
python -m scripts.docs --check    exit 1 and name every page that is stale
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from scripts.docs import cli, errors, events, http, promises, python, yaml

ROOT = Path(__file__).parents[2]


def pages() -> Iterator[tuple[Path, str]]:
    """Every generated page with its text."""
    reference = ROOT / "docs" / "reference"
    yield from ((reference / name, text) for name, text in python.pages())
    yield reference / "cli.md", cli.page()
    yield reference / "http.md", http.page()
    yield reference / "yaml.md", yaml.page()
    yield reference / "events.md", events.page()
    yield reference / "errors.md", errors.page(ROOT / "src" / "perdure")
    yield ROOT / "docs" / "promises.md", promises.page(ROOT)


def main(*, check: bool) -> int:
    """Write the pages, or compare them with what is there."""
    stale = [(path, text) for path, text in pages() if _text(path) != text]
    for path, text in stale:
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        print(f"{'stale' if check else 'written'}: {path.relative_to(ROOT)}")
    if check and stale:
        print("run: make docs", file=sys.stderr)
    return 1 if check and stale else 0


def _text(path: Path) -> str | None:
    return path.read_text("utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
