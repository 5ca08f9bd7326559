"""What the system refuses to whoever opens something: a typed error that names it, and nothing is left behind."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pyreplog
from pyreplog.errors import InvalidArgumentError

# With so many descriptors free, from none on, each door is tried until it opens: (errno, what it says) for each.
DOORS = """
import contextlib, json, logging, os, resource, sys, pyreplog

logging.disable()  # what is tried again in the background says so
path, door = sys.argv[1:]
doors = {
    "log": lambda: pyreplog.open(f"{path}/log"),
    "new log": lambda: pyreplog.open(f"{path}/new"),
    "reader": lambda: pyreplog.open(f"{path}/log", "r"),
    "cluster": lambda: pyreplog.Cluster.embedded(f"{path}/cluster", bookies=1),
    "new cluster": lambda: pyreplog.Cluster.embedded(f"{path}/another", bookies=1),
    "remote cluster": lambda: pyreplog.Cluster.connect(f"sqlite:{path}/cluster/metadata.sqlite"),
}
pyreplog.open(f"{path}/log").close()
pyreplog.Cluster.embedded(f"{path}/cluster", bookies=1).close()
pyreplog.Cluster.connect(f"sqlite:{path}/cluster/metadata.sqlite").close()  # all modules are loaded
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
said, is_open = [], False
while not is_open:
    taken = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    free = len(said)
    for fd in taken[:free]:
        os.close(fd)
    try:
        doors[door]().close()
        is_open = True
    except pyreplog.DiskError as error:
        said.append((error.errno, str(error)))
    finally:
        for fd in taken[free:]:
            os.close(fd)
print(json.dumps(said))
"""


@pytest.mark.parametrize("door", ["log", "new log", "reader", "cluster", "new cluster", "remote cluster"])
def test_no_descriptor_is_left(tmp_path: Path, door: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", DOORS, str(tmp_path), door],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    said = [tuple(item) for item in json.loads(done.stdout)]
    assert said and all(str(tmp_path) in line for _, line in said)
    # SQLite does not say why it could not open its file.
    assert {code for code, line in said if "unable to open database file" not in line} == {errno.EMFILE}


LONG = "x" * 256


@pytest.mark.parametrize(
    "call",
    [
        lambda path: pyreplog.open(path / LONG),
        lambda path: pyreplog.open(path / "missing" / LONG),
        lambda path: pyreplog.open(path / LONG, "r"),
        lambda path: pyreplog.Cluster.embedded(path / LONG),
    ],
    ids=["log", "in a new folder", "reader", "cluster"],
)
def test_a_name_that_is_too_long(tmp_path: Path, call: Callable[[Path], object]) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{LONG} cannot be opened: File name too long"):
        call(tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
