"""Read-only paths: toolchains are seen where they are, and nothing else is let in."""

import os
import socket
from pathlib import Path

import pytest
from tests.support.sandboxes import RUN_AS, require_bwrap, run

from perdure.sandbox.bwrap import BwrapSandbox
from perdure.sandbox.ro_paths import resolve_ro_paths


async def test_a_toolchain_is_seen_read_only_at_its_path_and_through_its_link(
    workspace: Path,
) -> None:
    require_bwrap()
    toolchain = workspace.parent / "toolchain"
    toolchain.mkdir()
    (toolchain / "tool").write_text("#!/bin/sh\necho tool\n")
    (toolchain / "tool").chmod(0o755)
    link = workspace.parent / "current"
    link.symlink_to(toolchain)
    if RUN_AS is not None:
        os.chown(toolchain, RUN_AS.uid, RUN_AS.gid)
    sandbox = BwrapSandbox(RUN_AS, ro_paths=resolve_ro_paths([link]))
    ran = await run(sandbox, workspace, f"{link}/tool; {toolchain}/tool; touch {link}/new")
    assert ran.stdout == "tool\ntool\n"
    assert "Read-only file system" in ran.stderr


@pytest.mark.parametrize(
    "path, text",
    [
        ("relative", "absolute"),
        ("/usr/../etc", "absolute"),
        ("/does/not/exist", "does not exist"),
        ("/", "leads into"),
        ("/proc", "leads into /proc"),
        ("/proc/self/root/etc", "leads into /proc"),
        ("/sys/kernel", "leads into /sys"),
        ("/dev/fd", "leads into /proc"),
        ("/run", "leads into /run"),
        ("/var", "leads into /var/run"),
        ("{store}", "leads into"),
        ("{store}/deeper", "leads into"),
        ("{above}", "leads into"),
        ("{link}", "leads into"),
        ("{socket}", "neither a folder nor a file"),
    ],
)
def test_a_path_that_opens_a_way_out_is_refused_with_its_name(
    tmp_path: Path, path: str, text: str
) -> None:
    store = tmp_path / "above" / "store"
    (store / "deeper").mkdir(parents=True)
    (tmp_path / "link").symlink_to(store)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        places = {"store": store, "above": store.parent}
        filled = path.format(**places, link=tmp_path / "link", socket=tmp_path / "socket")
        with pytest.raises(ValueError, match=text) as caught:
            resolve_ro_paths([filled], closed=[store])
    assert filled in str(caught.value)
