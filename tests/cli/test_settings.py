"""Settings of a command line: the commands that it suggests."""

import pytest

from perdure.cli.settings import Settings, without_password


@pytest.mark.parametrize(
    "url, shown",
    [
        ("postgresql://ana:hunter2@db:5432/p", "postgresql://ana:…@db:5432/p"),
        ("postgresql://ana:hun@ter2@db/p", "postgresql://ana:…@db/p"),
        ("postgresql://db/p?password=hunter2&schema=s", "postgresql://db/p?password=…&schema=s"),
        ("postgresql://ana@db/p", "postgresql://ana@db/p"),
        ("sqlite:////data/a:b@c.db", "sqlite:////data/a:b@c.db"),
        ("sqlite:///perdure.db", "sqlite:///perdure.db"),
    ],
)
def test_a_suggested_command_does_not_show_a_password(url: str, shown: str) -> None:
    assert without_password(url) == shown
    assert shown in Settings(store=url).command("worker")
    assert "hunter2" not in Settings(server=url).command("worker")
