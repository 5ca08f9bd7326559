"""`pyreplog ha append` and `ha read`, against nodes of this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.support import Run
from tests.ha.nodes import Lab
from tests.ports import free_ports

SECRET = b"a secret of sixteen bytes"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(tmp_path, stack)


def test_lines_are_appended_and_printed(lab: Lab, tmp_path: Path, run: Run) -> None:
    master = lab.master(members="ab")
    replica = lab.replica("b", master)
    nodes = f"{replica.address},{master.address}"
    lines = [b"line %d " % number + b"." * 400 for number in range(5000)]
    file = tmp_path / "lines"
    file.write_bytes(b"".join(line + b"\n" for line in lines))
    done = run("ha", "append", nodes, "--file", file, "--key", "k", "--json")
    assert done.code == 0, done
    said = json.loads(done.out)
    assert (said["entries"], said["first"], said["last"]) == (5000, 0, 4999)
    assert run("ha", "append", nodes, "one", "two").out.startswith("2 entries, 5,000 to 5,001;")
    assert run("ha", "read", nodes, "--from", 4999).out.splitlines() == [lines[-1].decode(), "one", "two"]
    assert run("ha", "read", nodes, "--to", 1, "--keys").out == "k\t" + lines[0].decode() + "\n"
    assert master.log.end == 5002


def test_ha_append_and_read_refuse_invalid_arguments(lab: Lab, tmp_path: Path, run: Run) -> None:
    master = lab.master(members="a", sync_replicas=0, secret=SECRET)
    file = tmp_path / "secret"
    file.write_bytes(SECRET)
    assert run("ha", "append", master.address, "x", "--secret-file", file).code == 0
    assert run("ha", "append", master.address, "x", "--timeout-ms", 300).code == 7
    assert run("ha", "read", f"127.0.0.1:{free_ports(1)[0]}", "--timeout-ms", 300).code == 7
    assert run("ha", "append", master.address, "x", "--batch", 0).code == 2
    assert run("ha", "read", master.address, "--to", 1, "--follow").code == 2
    assert run("ha", "read", "nowhere").code == 2
    assert master.log.end == 1
