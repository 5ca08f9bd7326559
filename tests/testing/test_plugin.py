"""The guide's tests run as they stand there, in a session of pytest of their own; nothing is left of their clusters."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

import pyreplog
from pyreplog.errors import ClosedError
from pyreplog.testing import temporary_cluster, temporary_kafka, temporary_topic_server
from tests.guides import ROOT, blocks, patient
from tests.waiting import PATIENCE_S, until

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


def test_tests_of_the_guide_pass_with_pytest(tmp_path: Path) -> None:
    """pytest finds the fixtures by the entry point of the installed package."""
    names = [re.match(r"# (\S+)\n", program) for program in PROGRAMS]
    for name, program in zip(names, PROGRAMS, strict=True):
        if name is not None:
            (tmp_path / name[1]).write_text(program)
    (tmp_path / "test_shared.py").write_text(
        "import pyreplog\n\n"
        "def test_shared(server):\n    with pyreplog.connect(server) as client:\n        client.topic('a').publish(b'x')\n"
    )
    files = ["conftest.py", "test_orders.py", "test_payments.py", "test_shared_kafka.py"]
    assert sorted(name[1] for name in names if name is not None) == files
    assert "5 passed" in run_pytest(tmp_path)


def test_tests_of_the_guide_pass_with_unittest() -> None:
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


def test_temporary_cluster_leaves_no_threads_and_keeps_its_directory(tmp_path: Path) -> None:
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


def produce(bootstrap_servers: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce("a", value)
    assert producer.flush(PATIENCE_S) == 0


def consume(bootstrap_servers: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["a"])
    values: list[bytes] = []
    while len(values) < count:
        message = consumer.poll(PATIENCE_S)
        assert message is not None and message.error() is None
        values.append(message.value())
    consumer.close()
    return values


def descriptors() -> int:
    """How many this process has open: clients of earlier tests, which connect again, come and go among them."""
    return len(list(Path("/proc/self/fd").iterdir()))


ROUNDS = 4  # so many that one descriptor which each of them leaves open is seen among those of other tests


@pytest.mark.parametrize("brokers", [1, 3])
def test_temporary_kafka_leaves_no_threads_files_or_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brokers: int
) -> None:
    """No threads, files, maps or descriptors; one in a directory of the test has its records when it comes back."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with temporary_kafka(brokers=brokers) as bootstrap_servers:
        produce(bootstrap_servers, b"x")  # librdkafka leaves what it makes once
        assert bootstrap_servers.count(",") == brokers - 1
    assert not list(tmp_path.iterdir())

    before, threads = descriptors(), {*threading.enumerate()}
    for number in range(ROUNDS):
        with temporary_kafka(tmp_path / "kept", brokers=brokers) as bootstrap_servers:
            produce(bootstrap_servers, b"%d" % number)
            assert consume(bootstrap_servers, 1) == [b"%d" % number]
        assert {*threading.enumerate()} <= threads
        gc.collect()  # of clients
        assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    until(lambda: descriptors() < before + ROUNDS)
