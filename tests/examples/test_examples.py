"""The programs of the folder `examples` do what their docstrings say. backlog_spark.py: tests/spark/test_quickstart.py."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import pyreplog

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE_S = 240.0
ONE_BOOKIE = {"bookies": 1, "segment_bytes": 16 << 20}


def command(name: str, *arguments: object) -> list[str]:
    return [sys.executable, "-W", "error", str(EXAMPLES / name), *map(str, arguments)]


def run(name: str, *arguments: object) -> list[str]:
    """Run an example; return the lines that it prints."""
    done = subprocess.run(
        command(name, *arguments), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_examples_are_short_and_name_their_command(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) < 60
    assert f"\n    python examples/{path.name} " in text


def test_there_are_six_examples() -> None:
    assert len(list(EXAMPLES.glob("*.py"))) == 6


def test_the_example_of_a_group_client_runs(tmp_path: Path) -> None:
    assert run("group_client.py", tmp_path) == [
        "order 1 is entry 0; a is the master",
        "entries 1 to 9; b is the master",
        *(f"{number}: order {number + 1}" for number in range(10)),
    ]


def test_the_example_of_a_worker_runs_twice(tmp_path: Path) -> None:
    """Started twice, it does its jobs twice; SIGTERM ends it, and nothing is left to be done."""
    for _ in range(2):
        with subprocess.Popen(
            command("worker.py", tmp_path, "first", "fail", "second"), stdout=subprocess.PIPE, text=True
        ) as service:
            assert service.stdout is not None
            said = sorted(service.stdout.readline().rstrip() for _ in range(3))
            service.send_signal(signal.SIGTERM)
            assert service.wait(PATIENCE_S) == 0
            assert said == ["dead letter: fail", "done: first", "done: second"]
            assert service.stdout.read() == ""
    with pyreplog.Cluster.embedded(tmp_path, **ONE_BOOKIE) as cluster:
        for name in ("jobs", "jobs-workers-DLQ"):
            assert cluster.topic(name).stats().subscriptions[0].backlog_messages == 0


def test_outbox_publishes_each_event_once_over_a_kill(tmp_path: Path) -> None:
    with subprocess.Popen(command("outbox.py", tmp_path, 1_000_000), stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        for _ in range(5):
            assert service.stdout.readline()
        service.kill()
    (tmp_path / "position").unlink()  # the worst moment: what was published last is not in the stored position
    *_, last = run("outbox.py", tmp_path, 10)
    match = re.fullmatch(r"the log has had (\d+) events, the topic has (\d+)", last)
    assert match and match[1] == match[2]
    with pyreplog.Cluster.embedded(tmp_path / "cluster", **ONE_BOOKIE) as cluster:
        values = [value for batch in cluster.topic("events").read() for value in batch.values()]
    assert values == [b"event %d" % number for number in range(int(match[1]))]


def test_the_example_of_a_replica_runs(tmp_path: Path) -> None:
    assert run("replica.py", tmp_path) == [
        "a: master of term 1 of a, [b'order 1']",
        "b does not take appends while it is a replica",
        "b: master of term 2 of b, [b'order 1', b'order 2']",
        "a: b'order 1'",
        "a: b'order 2'",
    ]


def test_the_asyncio_pipeline_handles_more_than_its_window(tmp_path: Path) -> None:
    """So many that they do not fit into what may be on its way: a producer that did not wait would be refused."""
    count = 15_000
    size = sum(len(b"%d " % number) + 4096 for number in range(count))
    assert size > 3 * (16 << 20)
    assert run("pipeline_asyncio.py", tmp_path, count) == [f"handled {count} messages, {size:,} B"]
