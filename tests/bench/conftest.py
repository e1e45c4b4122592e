"""Import path of the benchmarks: the root of the repository, as for `python -m bench`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
