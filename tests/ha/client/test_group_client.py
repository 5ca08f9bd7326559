"""A client of a replica group: it appends and reads, finds the master, and follows changes of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyreplog import ha
from pyreplog.errors import (
    ClosedError,
    ConfigError,
    InvalidArgumentError,
    NotConnectedError,
    NotEnoughReplicasError,
    OutcomeUnknownError,
    OutOfRangeError,
    RecordTooLargeError,
    TrimmedError,
    WindowFullError,
    WrongTypeError,
)
from pyreplog.ha.client_requests import ClientStats
from pyreplog.ha.metrics import node_metrics
from pyreplog.metrics import Metric
from tests.ha.nodes import Lab, has_log, level, until
from tests.ports import free_ports

SECRET = b"a secret of sixteen bytes"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(tmp_path, stack)


@pytest.fixture
def group(lab: Lab) -> Lab:
    """Master a and replica b."""
    master = lab.master(members="ab")
    lab.replica("b", master)
    return lab


@pytest.fixture
def client(group: Lab) -> Iterator[ha.GroupClient]:
    with ha.connect([group.nodes["b"].address]) as opened:  # a replica, which names the master
        yield opened


def test_a_client_appends_and_reads_across_a_handover(client: ha.GroupClient, group: Lab) -> None:
    assert client.append(b"one", b"key", event_time=5, properties={"a": "b"}) == 0
    assert client.append_batch([b"two", b"three"], [None, b"k"], [7, None]) == range(1, 3)
    assert client.append_batch([]) == range(0)
    record = client.get(0)
    assert (record.value, record.key, record.event_time, dict(record.properties)) == (b"one", b"key", 5, {"a": b"b"})
    assert (client[-1], client[1:], client[::2], len(client)) == (b"three", [b"two", b"three"], [b"one", b"three"], 3)
    assert client.get(1).event_time == 7 and client.get(2).key == b"k"
    assert [value for batch in client.read() for value in batch.values()] == [b"one", b"two", b"three"]
    assert (client.start(), client.end()) == (0, 3)
    assert client.status()["role"] == "master" and client.master == group.nodes["a"].address
    level(group.nodes["a"], group.nodes["b"])
    assert group.nodes["b"].log[:] == [b"one", b"two", b"three"]


def test_submitted_entries_keep_their_order(client: ha.GroupClient, group: Lab) -> None:
    futures = [client.submit(b"%d" % number) for number in range(3000)]
    client.flush()
    assert [future.result() for future in futures] == list(range(3000))
    assert client[:] == [b"%d" % number for number in range(3000)]
    stats: ClientStats = group.nodes["a"].clients.stats
    assert stats.entries == 3000 and stats.appends < 1500  # gathered into one batch


def test_entries_that_are_not_there(client: ha.GroupClient, group: Lab) -> None:
    client.append(b"x" * 1000)
    for number in (1, 5):
        with pytest.raises(OutOfRangeError):
            client.get(number)
    with pytest.raises(OutOfRangeError):
        list(client.read(2))
    with pytest.raises(OutOfRangeError):
        client.get(-1)
    assert list(client.read(1)) == []
    for _ in range(200):
        client.append(b"x" * 1000)
    level(group.nodes["a"], group.nodes["b"])
    until(lambda: group.nodes["a"].log.trim(150) > 0)
    with pytest.raises(TrimmedError):
        client.get(0)
    with pytest.raises(TrimmedError):
        next(client.follow(0, timeout=5))
    assert client.start() == group.nodes["a"].log.start


def test_a_read_is_cut_into_answers(group: Lab) -> None:
    values = [bytes([number]) * 700 for number in range(250)]
    group.nodes["a"].append_batch(values)
    with ha.connect([group.nodes["a"].address], read_bytes=5000) as client:
        batches = [batch.values() for batch in client.read(10, 240)]
        assert [value for batch in batches for value in batch] == values[10:240]
        assert 10 < len(batches) < 100
        assert [record.entry for record in client.follow(200, timeout=0)] == list(range(200, 250))


def test_a_follower_of_a_client_is_woken_by_appends(client: ha.GroupClient, group: Lab) -> None:
    got: list[bytes] = []

    def follow() -> None:
        for record in client.follow(0):
            got.append(record.value)
            if len(got) == 3:
                return

    thread = threading.Thread(target=follow)
    thread.start()
    for number in range(3):
        group.nodes["a"].append(b"%d" % number)
        until(lambda number=number: len(got) > number)  # type: ignore[misc]
    thread.join()
    assert got == [b"0", b"1", b"2"]


def test_a_client_appends_and_follows_in_coroutines(client: ha.GroupClient) -> None:
    async def use() -> list[bytes]:
        numbers = [client.submit(b"%d" % number) for number in range(5)]
        assert [await number for number in numbers] == list(range(5))
        await client.flush_async()
        with pytest.raises(InvalidArgumentError):
            client.append(b"waits")
        with pytest.raises(InvalidArgumentError):
            client.get(0)
        return [record.value async for record in client.follow(2, timeout=0.05)]

    assert asyncio.run(use()) == [b"2", b"3", b"4"]


def test_the_window_of_a_client_is_bounded(group: Lab) -> None:
    """No master answers: threads wait, and coroutines get an error."""
    with ha.connect([f"127.0.0.1:{free_ports(1)[0]}"], window_entries=4, timeout_ms=500) as client:

        async def fill() -> None:
            for _ in range(8):
                client.submit(b"x")
            with pytest.raises(WindowFullError):
                client.submit(b"x")
            await client.room()

        asyncio.run(fill())
        before = [client.submit(b"x") for _ in range(4)]
        client.submit(b"x")  # a thread waits here for room
        assert all(future.done() for future in before)


def test_flush_timeout_error_counts_entries_without_an_outcome(group: Lab) -> None:
    """No master answers: the flush ends before the appends, which go on."""
    with ha.connect([f"127.0.0.1:{free_ports(1)[0]}"], timeout_ms=1000) as client:
        futures = [client.submit(b"x") for _ in range(3)]
        with pytest.raises(OutcomeUnknownError, match=r"3 entries have no outcome after 0\.02 s"):
            client.flush(timeout=0.02)
        assert not any(future.done() for future in futures)
        client.flush(timeout=60.0)
        assert all(future.done() for future in futures), "each has its own outcome"
        client.flush(timeout=0)


def test_calls_without_a_master_time_out(group: Lab) -> None:
    with ha.connect([f"127.0.0.1:{free_ports(1)[0]}"], timeout_ms=200) as client:
        with pytest.raises(NotConnectedError, match="nothing was appended"):
            client.append(b"x")
        with pytest.raises(OutcomeUnknownError):
            client.end()
        assert client.master is None


def test_appends_wait_or_fail_while_too_few_replicas_follow(lab: Lab) -> None:
    master = lab.master(members="ab", group={"min_in_sync": 1})
    with ha.connect([master.address]) as client:
        with pytest.raises(NotEnoughReplicasError):
            client.append(b"refused")
        first, second = client.submit(b"refused"), client.submit_batch([b"refused"])
        for future in (first, second):
            with pytest.raises(NotEnoughReplicasError):
                future.result(60)
        lab.replica("b", master)
        until(lambda: any(replica.in_sync for replica in master.replication().replicas))
        assert client.append(b"taken") == 0
        assert client[:] == [b"taken"]


def test_a_record_that_is_too_large(client: ha.GroupClient) -> None:
    with pytest.raises(RecordTooLargeError):
        client.append(b"x" * (64 << 10))  # larger than a segment
    with pytest.raises(RecordTooLargeError):
        client.append(b"x" * (5 << 20))  # larger than a frame
    with pytest.raises(RecordTooLargeError):
        client.append(b"x", b"k" * 70_000)
    assert client.append(b"next") == 0


def test_a_client_refuses_malformed_arguments() -> None:
    with pytest.raises(InvalidArgumentError):
        ha.connect([])
    with pytest.raises(InvalidArgumentError):
        ha.connect(["no address"])
    with pytest.raises(WrongTypeError):
        ha.connect("127.0.0.1:1")
    with pytest.raises(ConfigError):
        ha.connect(["127.0.0.1:1"], window_bytes=0)
    with pytest.raises(ConfigError):
        ha.connect(["127.0.0.1:1"], windows=1)  # type: ignore[call-arg]


def test_a_closed_client_refuses_calls(client: ha.GroupClient) -> None:
    future = client.room()
    client.close()
    for call in (lambda: client.append(b"x"), client.end, lambda: client.get(0), client.flush):
        with pytest.raises(ClosedError):
            call()
    assert future.done() and client.room().done()


def test_closing_ends_waiting_calls(lab: Lab) -> None:
    """The outcome of an append that was sent is unknown; one that was not sent is refused."""
    master = lab.master(members="ab")  # no replica follows
    with ha.connect([master.address]) as client:
        sent = client.submit(b"sent")
        until(lambda: master.log.tail.end_entry == 1)
    with pytest.raises(OutcomeUnknownError):
        sent.result()
    with ha.connect([f"127.0.0.1:{free_ports(1)[0]}"]) as client:
        never = client.submit(b"never")
    with pytest.raises(ClosedError):
        never.result()


def test_a_client_needs_the_secret_of_the_group(lab: Lab) -> None:
    master = lab.master(members="a", sync_replicas=0, secret=SECRET)
    with ha.connect([master.address], secret=SECRET) as client:
        assert client.append(b"x") == 0
    for secret in (None, b"another one of sixteen bytes"):
        with ha.connect([master.address], secret=secret, timeout_ms=300) as client:
            with pytest.raises(NotConnectedError, match=r"secret|authenticat"):
                client.append(b"x")
    assert master.log.end == 1


def test_a_client_of_a_synced_group_gets_synced_entries(lab: Lab) -> None:
    master = lab.master(members="ab", durability="synced")
    lab.replica("b", master, durability="synced")
    with ha.connect([master.address]) as client:
        assert client.append(b"x") == 0
        assert client.append_batch([b"y"] * 10) == range(1, 11)
        assert master.log.synced_end == 11 and client[0] == b"x"


def test_appends_go_on_during_a_planned_change_of_the_master(group: Lab) -> None:
    """Appends go on during the change: each is stored once, and in order."""
    with ha.connect([node.address for node in group.nodes.values()], batch_entries=7) as client:
        futures = []
        for number in range(400):
            futures.append(client.submit(b"%d" % number))
            if number % 100 == 50:
                other = group.nodes["ba"[number // 100 % 2]]
                until(lambda other=other: other.role == "replica" and other.is_streaming and other.members is not None)  # type: ignore[misc]
                until(lambda other=other: has_log(other) and other.log.end > 0)  # type: ignore[misc]  # else it holds nothing yet
                other.promote()
        client.flush()
        assert [future.result() for future in futures] == sorted(future.result() for future in futures)
        assert client[:] == [b"%d" % number for number in range(400)]


def test_a_node_counts_requests_of_clients_for_prometheus(client: ha.GroupClient, group: Lab) -> None:
    client.append_batch([b"x"] * 3)
    assert client[0] == b"x"

    def value(name: str) -> float:
        metrics: list[Metric] = list(node_metrics(group.nodes["a"]))
        (metric,) = (metric for metric in metrics if metric.name == f"pyreplog_ha_client_{name}")
        assert metric.kind == "counter" and isinstance(metric.samples[0][1], float)
        return metric.samples[0][1]

    assert (value("appends"), value("entries"), value("refused"), value("reads")) == (1, 3, 0, 1)
    assert value("bytes") == 3 * 40 and value("read_bytes") > 0
