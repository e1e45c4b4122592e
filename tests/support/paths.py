"""Folders of the repository that tests read from."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DATA: Final = ROOT / "tests" / "data"
DOCS: Final = ROOT / "docs"
EXAMPLES: Final = ROOT / "examples"
