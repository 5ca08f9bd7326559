"""The guide's tests run as they stand there, in a session of pytest of their own; nothing is left of their clusters."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import unittest
from pathlib import Path

import pytest

import pyreplog
from pyreplog.errors import ClosedError
from pyreplog.testing import temporary_cluster, temporary_topic_server
from tests.guides import ROOT, blocks, patient

PROGRAMS = [patient(block) for block in blocks(ROOT / "docs" / "testing.md")]


def run_pytest(folder: Path, *arguments: str) -> str:
    """Run pytest there, with the temporary files of its clusters in `folder`/temporary."""
    temporary = folder / "temporary"
    temporary.mkdir()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=folder, env={**os.environ, "TMPDIR": str(temporary), "PATH": path}, capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [path.name for path in temporary.iterdir() if path.name.startswith("pyreplog")]
    return done.stdout


def test_the_guide_with_pytest(tmp_path: Path) -> None:
    """pytest finds the fixtures by the entry point of the installed package."""
    names = [re.match(r"# (\S+)\n", program) for program in PROGRAMS]
    for name, program in zip(names, PROGRAMS, strict=True):
        if name is not None:
            (tmp_path / name[1]).write_text(program)
    (tmp_path / "test_shared.py").write_text(
        "import pyreplog\n\n"
        "def test_shared(server):\n    with pyreplog.connect(server) as client:\n        client.topic('a').publish(b'x')\n"
    )
    assert sorted(name[1] for name in names if name is not None) == ["conftest.py", "test_orders.py"]
    assert "3 passed" in run_pytest(tmp_path)


def test_the_guide_with_unittest() -> None:
    (program,) = [program for program in PROGRAMS if "unittest.TestCase" in program]
    namespace: dict[str, type[unittest.TestCase]] = {}
    exec(program, namespace)
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(namespace["OrdersTest"])
    result = unittest.TestResult()
    suite.run(result)
    assert (result.testsRun, result.failures, result.errors) == (1, [], [])


def test_the_plugin_imports_little() -> None:
    """Everybody's sessions load it, whether they use it or not."""
    program = "import sys, pyreplog.testing.plugin; print(sorted(n for n in sys.modules if n.startswith('pyreplog.')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    loaded = eval(done.stdout)
    assert all(re.match(r"pyreplog\.(errors|testing|_version)\b", name) for name in loaded), loaded


def test_nothing_is_left(tmp_path: Path) -> None:
    before = {*threading.enumerate()}
    with temporary_cluster() as cluster:
        cluster.topic("a").publish(b"x")
    with pytest.raises(ClosedError):
        cluster.topic("a")
    with temporary_topic_server(tmp_path / "kept", bookies=2) as url, pyreplog.connect(url) as client:
        client.topic("a", retention_bytes=None).publish(b"x")
    assert {*threading.enumerate()} <= before
    with temporary_cluster(tmp_path / "kept", bookies=2) as cluster:
        assert [value for batch in cluster.topic("a").read() for value in batch.values()] == [b"x"]
