"""Settings of commands in tasks: each problem with its file and line."""

import os
from pathlib import Path
from typing import Any

import pytest

from perdure import Runtime
from perdure.errors import ConfigError


@pytest.mark.parametrize(
    "lines, place, text",
    [
        (["  sandbox: docker"], "2: tasks.sandbox", "invalid sandbox"),
        (["  sandbox: landlock"], "2", "allow_weak"),
        (["  run_as: no-such-user"], "2", "there is no user"),
        (["  network: {allow: [example.org, 'https://x.org']}"], "2", "without scheme"),
        (["  network: wide"], "2: tasks.network", "invalid network"),
        (["  limits:", "    processes: none"], "3: tasks.limits.processes", "whole number"),
        (["  limits:", "    timeout: 24h"], "3", "less than a day"),
        (["  ro_paths:", "    - /no/such/folder"], "3", "does not exist"),
        (["  ro_paths: [.]"], "2", "which commands must not see"),
        (["  env:", "    LD_PRELOAD: x.so"], "3", "set by perdure"),
        (["  disable_sandbox: true"], "2", "is not a known key"),
    ],
)
def test_a_setting_that_is_not_valid_is_named_with_its_line(
    tmp_path: Path, lines: list[str], place: str, text: str
) -> None:
    file = tmp_path / "perdure.yaml"
    file.write_text("\n".join(["tasks:", *lines]) + "\n")
    with pytest.raises(ConfigError, match=text) as caught:
        Runtime.from_config(file)
    message = caught.value.message
    assert message.startswith(f"{file}:{place}"), message
    assert message.count("tasks.") == 1, message


def test_settings_are_read_and_secrets_of_the_environment_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")
    user: Any = {} if os.geteuid() else {"run_as": "nobody"}
    settings = [
        "tasks:",
        "  sandbox: none",
        *(f"  {key}: {value}" for key, value in user.items()),
        "  network: host",
        "  limits: {file_size: 1MiB, disk: 2GB, cpus: 1.5, timeout: 5m}",
        '  env: {TOKEN: "${TOKEN}"}',
    ]
    (tmp_path / "perdure.yaml").write_text("\n".join(settings))
    from perdure.app import service_of

    options = service_of(Runtime.from_config(tmp_path / "perdure.yaml")).tasks.sandbox.options
    assert (options.sandbox, options.network.mode) == ("none", "host")
    limits = options.limits
    assert (limits.file_bytes, limits.disk_bytes, limits.cpus) == (2**20, 2 * 10**9, 1.5)
    assert options.max_timeout_ms == 300_000
    assert options.env == {"TOKEN": "hunter2"}
    assert "hunter2" not in repr(options)
