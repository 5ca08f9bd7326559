"""The master of a client is killed, stopped or cut off: no acknowledged entry is lost, and none is stored twice."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pyreplog import ha
from pyreplog.errors import OutcomeUnknownError
from pyreplog.future import AppendFuture
from tests.cli.nodes import NodeProcess, Processes
from tests.ha.nodes import Lab, until

ENTRIES = 400


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with ExitStack() as stack:
        yield Processes(tmp_path, stack)


def start(processes: Processes, name: str) -> NodeProcess:
    options = (
        "--metadata", f"sqlite:{processes.folder / 'metadata'}", "--group", "orders", "--lease-ms", 3000,
        "--set", "election_timeout_ms=500",
    )  # fmt: skip
    if name == "a":
        return processes.start("master", name, "--members", "a,b,c", "--sync-replicas", 1, *options)
    return processes.start("replica", name, *options)


class Appender:
    """A thread that appends numbers, each as one entry, in batches and alone."""

    def __init__(self, client: ha.GroupClient) -> None:
        self._client = client
        self.futures: list[tuple[AppendFuture[Any], list[bytes]]] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while number < ENTRIES:
            if number % 3:
                values = [b"%d" % number]
                future: AppendFuture[Any] = self._client.submit(values[0])
            else:
                values = [b"%d" % item for item in range(number, number + 5)]
                future = self._client.submit_batch(values)
            self.futures.append((future, values))
            number += len(values)
            if len(self.futures) % 7 == 0:
                until(lambda future=future: future.done(), pause_s=0.005)  # type: ignore[misc]

    @property
    def acknowledged(self) -> int:
        return sum(future.done() for future, _ in list(self.futures))

    def join(self) -> None:
        self._thread.join()
        self._client.flush()

    def check(self, log: list[bytes]) -> int:
        """Check that acknowledged entries are at their offsets, in order, and none is stored twice; return how many
        outcomes are unknown."""
        places: list[int] = []
        unknown = 0
        for future, values in self.futures:
            error = future.exception()
            if error is not None:
                assert isinstance(error, OutcomeUnknownError), error
                unknown += 1
                continue
            numbers = [future.result()] if isinstance(future.result(), int) else list(future.result())
            assert [log[number] for number in numbers] == values
            places.extend(numbers)
        assert places == sorted(set(places))
        assert len(set(log)) == len(log)
        assert {b"first", *(value for _, values in self.futures for value in values)} >= set(log)
        return unknown


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_master_that_is_gone(processes: Processes, number: signal.Signals) -> None:
    """Failover by lease during appends: the client goes on with the newly elected master."""
    nodes = {name: start(processes, name) for name in "abc"}
    for name in "bc":
        processes.until(nodes[name], lambda status: status.get("streaming") and status["members"])
    with ha.connect([node.address for node in nodes.values()], timeout_ms=120_000) as client:
        client.append(b"first")
        assert client.master == nodes["a"].address
        appender = Appender(client)
        until(lambda: appender.acknowledged > 20)
        nodes["a"].popen.send_signal(number)
        appender.join()
        assert client.master in (nodes["b"].address, nodes["c"].address)
        log = client[:]
        assert log[0] == b"first" and appender.check(log) == 0
        assert [record.value for record in client.follow(0, timeout=0)] == log


def test_a_client_that_is_cut_off_with_its_master(tmp_path: Path) -> None:
    """A partition of the network: the client's master commits nothing any more, and the other members elect a new one."""
    with ExitStack() as stack:
        lab = Lab(tmp_path, stack)
        a = lab.master(ack_timeout_ms=500)
        b, c = lab.replica("b", a), lab.replica("c", a)
        until(lambda: b.members is not None and c.members is not None)
        client = stack.enter_context(ha.connect([a.address, b.address], timeout_ms=60_000))
        assert client.append(b"before") == 0
        for node in (b, c):
            node.follow("127.0.0.1:1")  # no replica follows a any more
        until(lambda: all(replica["state"] == "gone" for replica in a.stats()["replicas"]))
        lost = client.submit(b"during")
        until(lambda: a.log.tail.end_entry == 2)
        for node in (b, c):
            node.learn_peers({"a": "127.0.0.1:1"})
        until(lambda: not b.is_streaming)
        b.promote()
        c.follow(b.address)
        assert lost.result(60) == 1 and client.master == b.address
        assert client[:] == [b"before", b"during"]
        assert client.append(b"after") == 2
