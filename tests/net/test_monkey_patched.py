"""In a process whose threads are greenlets, whatever uses the network says so when it is opened, and does not hang."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

USE = """
import sys
import pyreplog
from pyreplog.net.reactor import Reactor
folder = sys.argv[1]
for call in (
    Reactor,
    lambda: pyreplog.Cluster.embedded(folder + "/cluster", bookies=1),
    lambda: pyreplog.Cluster.connect("sqlite:" + folder + "/metadata"),
    lambda: pyreplog.connect("pyreplog://127.0.0.1:1"),
):
    try:
        call()
    except pyreplog.MonkeyPatchedError as error:
        print(error)
"""
PATCHES = {
    "gevent": "from gevent import monkey; monkey.patch_all()",
    "gevent, late": "import pyreplog.net.reactor; from gevent import monkey; monkey.patch_all()",
    "epoll": "import select; del select.epoll",
}


@pytest.mark.parametrize("how", PATCHES)
def test_network_handles_refuse_monkey_patched_threads(how: str, tmp_path: Path) -> None:
    if how.startswith("gevent") and importlib.util.find_spec("gevent") is None:
        pytest.skip("gevent is not installed")
    done = subprocess.run(
        [sys.executable, "-c", PATCHES[how] + USE, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 4, done.stdout + done.stderr
    assert all("without monkey patching" in line for line in lines)
    assert ("gevent has replaced" if how.startswith("gevent") else "select.epoll") in lines[0]


def test_a_patch_of_what_is_not_needed_is_none(tmp_path: Path) -> None:
    if importlib.util.find_spec("gevent") is None:
        pytest.skip("gevent is not installed")
    patch = "from gevent import monkey; monkey.patch_subprocess(); monkey.patch_signal()"
    use = USE.replace('lambda: pyreplog.connect("pyreplog://127.0.0.1:1"),', "")
    done = subprocess.run(
        [sys.executable, "-c", patch + use, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and done.stdout == "", done.stdout + done.stderr
