"""Handles that a finalizer closes when the interpreter ends: no other thread goes on then, and nobody waits for one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pyreplog
from pyreplog.errors import ForkedError

LOG = """
import sys, pyreplog
class Service:
    def __init__(self):
        self.log = pyreplog.open(sys.argv[1], durability=sys.argv[2], segment_bytes=1 << 20)
        for n in range(int(sys.argv[3])): self.log.append(b"%d" % n + bytes(1000))
        self.reader = pyreplog.open(sys.argv[1], "r")
        self.reader[0]
    def __del__(self):
        self.log.close()
        self.reader.close()
service = Service()
"""

CLUSTER = """
import sys, pyreplog
class Service:
    def __init__(self):
        self.cluster = pyreplog.Cluster.embedded(sys.argv[1], bookies=1, segment_bytes=1 << 20)
        self.topic = self.cluster.topic("t", ensemble=1, write_quorum=1, ack_quorum=1)
        self.producer = self.topic.producer("p")
        self.producer.publish(b"x")
        self.consumer = self.topic.subscribe("s")
    def __del__(self):
        self.consumer.close()
        self.producer.close()
        self.topic.close()
        self.cluster.close()
service = Service()
"""


def run(program: str, *arguments: object) -> None:
    subprocess.run([sys.executable, "-c", program, *map(str, arguments)], check=True, timeout=60)


@pytest.mark.parametrize("durability", ["appended", "interval", "synced"])
@pytest.mark.parametrize("entries", [1, 2000])
def test_a_log_that_a_finalizer_closes(entries: int, durability: str, tmp_path: Path) -> None:
    run(LOG, tmp_path / "log", durability, entries)
    with pyreplog.open(tmp_path / "log") as log:
        assert [value.rstrip(b"\0") for value in log[:]] == [b"%d" % n for n in range(entries)]


def test_a_cluster_that_a_finalizer_closes(tmp_path: Path) -> None:
    run(CLUSTER, tmp_path / "cluster")
    with pyreplog.Cluster.embedded(tmp_path / "cluster") as cluster:
        assert cluster.topic("t").end == 1


def test_forked_child_gets_forked_error_from_properties_of_the_log(tmp_path: Path) -> None:
    """Where a log of the parent's begins and ends is not known there any more."""
    with pyreplog.open(tmp_path / "log") as log, pyreplog.open(tmp_path / "log", "r") as reader:
        log.append(b"x")
        names = ("start", "end", "start_position", "end_position", "unreplicated")
        asked = [(log, "synced_end"), (reader, "live"), *((handle, name) for handle in (log, reader) for name in names)]
        child = os.fork()
        if not child:
            told = 0
            for handle, name in asked:
                try:
                    getattr(handle, name)
                except ForkedError:
                    told += 1
            os._exit(0 if told == len(asked) and "closed" in repr(log) + repr(reader) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (log.end, reader.end) == (1, 1)
