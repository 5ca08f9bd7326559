"""Brokers as processes, which are killed and stand still under load: what was acknowledged is there once, in order."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from tests.partition.broker_processes import Load, Processes
from tests.waiting import PATIENCE_S, stand_still, until


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with ExitStack() as stack:
        yield Processes(tmp_path, stack)


def test_leaders_are_killed_under_load(processes: Processes) -> None:
    topic = processes.client.create_topic("flights", min_isr=2)
    with Load(topic) as load:
        for _ in range(2):
            load.await_more()
            leader = processes.leader(topic)
            processes.kill(leader)
            load.await_more()
            processes.start(leader)
            until(lambda: len(topic[0].isr) == 3)
    load.check()


def test_all_are_killed_at_once_under_load(processes: Processes) -> None:
    topic = processes.client.create_topic("flights", min_isr=2)
    with Load(topic) as load:
        load.await_more()
        processes.kill(*"abc")
        processes.start(*"abc")
        load.await_more()
    load.check()


def test_a_leader_stands_still_under_load(processes: Processes, seed: int) -> None:
    """Another one is elected; when it goes on, it is fenced, and its clients learn of that."""
    topic = processes.client.create_topic("flights", min_isr=2)
    with Load(topic) as load:
        load.await_more(Random(seed).randrange(1, 40))
        leader = processes.leader(topic)
        stand_still(processes.running[leader])
        try:
            load.await_more()
        finally:
            processes.running[leader].send_signal(signal.SIGCONT)
        until(lambda: len(topic[0].isr) == 3)
        load.await_more()
    load.check()


def test_sigterm_hands_over_the_partitions_of_a_broker(processes: Processes) -> None:
    topic = processes.client.create_topic("flights", min_isr=2)
    with Load(topic) as load:
        load.await_more()
        leader = processes.leader(topic)
        processes.running[leader].terminate()
        assert processes.running[leader].wait(PATIENCE_S) == 0
        load.await_more()
    load.check()
