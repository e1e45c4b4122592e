"""The configured sandbox: a task gets the guarantees that its settings give, or is refused."""

from typing import Any

import pytest

from perdure.errors import SandboxUnavailable
from perdure.sandbox.base import Guarantee, Probe
from perdure.tasks.executions.options import execution_options
from perdure.tasks.executions.sandboxes import ConfiguredSandbox

ALL: frozenset[Guarantee] = frozenset({"fs", "net", "mem_total", "cpu_total"})


class _Capable:
    """A sandbox of a host that could guarantee everything."""

    name = "bwrap"

    async def probe(self) -> Probe:
        return Probe(self.name, ok=True, guarantees=ALL)


def configured(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> ConfiguredSandbox:
    sandbox = ConfiguredSandbox(execution_options(settings), None)
    monkeypatch.setattr(sandbox, "_created", _Capable())
    return sandbox


@pytest.mark.parametrize(
    "settings, guarantee",
    [
        ({"network": "host"}, "net"),
        ({"limits": {"cpus": 1}}, "mem_total"),
        ({"limits": {"memory": 10**9}}, "cpu_total"),
    ],
)
async def test_a_guarantee_that_the_settings_do_not_use_is_not_given(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], guarantee: str
) -> None:
    sandbox = configured(monkeypatch, settings)
    await sandbox.ready(["exec", "fs"])
    with pytest.raises(SandboxUnavailable) as raised:
        await sandbox.ready([guarantee])
    assert raised.value.details["missing"] == [guarantee]
    assert guarantee not in (await sandbox.availability())["guarantees"]


async def test_settings_that_use_them_give_all_guarantees(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"memory": 10**9, "cpus": 1}
    network = {"allow": ["packages.example.org"]}
    sandbox = configured(monkeypatch, {"limits": limits, "network": network})
    await sandbox.ready(sorted(ALL))
