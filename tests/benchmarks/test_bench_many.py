"""The benchmarks of many clients, consumers and topics verify what they exchange, and print a row for each count."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.paced_messages import measured
from pyreplog import Cluster
from tests.trees import ROOT

_OPTIONS = {
    "many_clients": ["--seconds", "0.1", "--publishes", "20"],
    "many_consumers": ["--messages", "100"],
    "many_topics": ["--messages", "100"],
}


@pytest.mark.parametrize("name", _OPTIONS)
def test_each_count_has_a_row(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", f"benchmarks.{name}", "1", "5", *_OPTIONS[name], "--directory", str(tmp_path)]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout.splitlines()
    names, *rows = (line.split("\t") for line in lines)
    assert [row[0] for row in rows] == ["1", "5"] and all(len(row) == len(names) for row in rows)
    assert all(float(row[-1].split()[0]) >= float(row[-2].split()[0]) > 0 for row in rows), "p99, median"
    assert not list(tmp_path.iterdir())


def test_idle_connections_of_a_topic_server_have_a_descriptor_each(tmp_path: Path) -> None:
    options = ["--seconds", "0.1", "--publishes", "20", "--directory", str(tmp_path)]
    command = [sys.executable, "-m", "benchmarks.many_clients", "150", *options]
    names, row = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout.splitlines()
    figures = dict(zip(names.split("\t"), row.split("\t"), strict=True))
    assert 0.9 < float(figures["descriptors, each"]) < 1.2


def test_a_message_that_is_received_twice_is_an_error(tmp_path: Path) -> None:
    with Cluster.embedded(tmp_path, bookies=1) as cluster, cluster.topic("t") as topic:
        with (
            topic.subscribe("one") as one,
            topic.subscribe("two") as two,
            pytest.raises(ValueError, match="of them again"),
        ):
            measured([topic], [one, two], 20)
