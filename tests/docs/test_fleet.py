"""The page about fleets tells the truth: its simulation runs, and notices a rule that is wrong."""

import re
import shlex
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "fleet.md").read_text()


@pytest.fixture
def shards(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = spec_from_file_location("shards", ROOT / "examples" / "shards.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "shards", module)
    spec.loader.exec_module(module)
    return module


def test_the_simulation_of_the_page_runs() -> None:
    (command,) = re.findall(r"^python (examples/shards.py.*)$", PAGE, re.MULTILINE)
    words = shlex.split(command.replace("200", "16"))
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "16 decisions found their session by their id alone" in done.stdout


async def test_a_child_that_goes_by_its_own_name_is_found_out(
    shards: ModuleType, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match="is in store"):
        await shards.simulate(tmp_path, 4, 8, lambda name, _: shards.id_for(name))


def test_an_id_that_says_no_shard_is_refused(shards: ModuleType) -> None:
    for wrong in ("order-991", "a3f~", "a3~order", "xyz~order"):
        with pytest.raises(ValueError, match=r"shard|base 16"):
            shards.shard_of(wrong)


def test_shards_are_filled_evenly(shards: ModuleType) -> None:
    stores = [0] * 8
    for number in range(20_000):
        stores[shards.shard_of(shards.id_for(f"order-{number}")) * 8 // shards.SHARDS] += 1
    assert max(stores) < 1.1 * min(stores)
