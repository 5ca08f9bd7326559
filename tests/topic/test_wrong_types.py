"""Arguments of a wrong type, for each public method of clusters, ledgers, topics, consumers, producers, logs and nodes.

Each is refused before any effect. The error names the argument, the expected type and the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import pyreplog
from pyreplog import ha
from pyreplog.errors import InvalidArgumentError, WrongTypeError
from pyreplog.topic.client.remote.client import connect
from tests.topic.remoting import PLAIN, ServedCluster

STRANGE = object()
NO_INT = ("1", 1.5, b"1", [1], True, STRANGE)
NO_TEXT = (7, b"x", ["x"], STRANGE)
NO_BOOL = ("no", 2, b"", STRANGE)
NO_BYTES = ("text", 7, None, [1], STRANGE)
NO_SECONDS = ("1", b"1", [1], True, STRANGE)
NO_MAPPING = (7, "text", ["a"], STRANGE)
NO_SEQUENCE = (7, None, STRANGE)
NO_START = (1.5, b"earliest", ["earliest"], True, STRANGE)
NO_PATH = (7, b"x", None, STRANGE)


class World(NamedTuple):
    """One object of each class that has methods with arguments."""

    folder: Path
    cluster: pyreplog.Cluster
    ledger: Any
    reader: Any
    log: Any
    node: Any
    topic: Any
    client: Any
    remote: Any
    parts: Any
    remote_parts: Any
    consumers: tuple[Any, ...]

    @property
    def topics(self) -> list[Any]:
        return [self.topic, self.remote]

    @property
    def partitioned(self) -> list[Any]:
        return [self.parts, self.remote_parts]

    @property
    def all_topics(self) -> list[Any]:
        return [*self.topics, *self.partitioned]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    with ExitStack() as stack:
        served = ServedCluster(folder / "cluster", stack)
        cluster, client = served.cluster, served.client()
        ledger = stack.enter_context(cluster.create_ledger(1, durability="appended"))
        ledger.append(b"value")
        reader = stack.enter_context(cluster.open_ledger(ledger.id, recover=False))
        log = stack.enter_context(pyreplog.open(folder / "log"))
        log.append(b"value")
        node = stack.enter_context(ha.open_master(folder / "node", name="a", members=["a"]))
        topic = stack.enter_context(cluster.topic("news", **PLAIN))
        topic.publish_batch([b"a", b"b"])
        remote = client.topic("news")
        parts = stack.enter_context(cluster.topic("parts", partitions=2, **PLAIN))
        remote_parts = client.topic("parts")
        places = [topic, remote, parts, remote_parts]
        for each in (topic, parts):
            each.create_subscription("s", start="earliest", type="shared")
        consumers = tuple(stack.enter_context(place.subscribe("s", type="shared")) for place in places)
        yield World(folder, cluster, ledger, reader, log, node, topic, client, remote, parts, remote_parts, consumers)


class Case(NamedTuple):
    """A method and an argument of it.

    Attributes:
        on: the objects that have the method.
        call: calls it with a wrong value.
        wrong: wrong values.
        name: of the argument.
    """

    what: str
    name: str
    on: Callable[[World], list[Any]]
    call: Callable[[Any, Any], object]
    wrong: tuple[Any, ...]


def drained(value: Any) -> None:
    """Take the first item, as an iterator checks its arguments only then."""
    for _ in value:
        return


def cases() -> Iterator[Case]:
    yield from _of_clusters()
    yield from _of_ledgers()
    yield from _of_topics()
    yield from _of_consumers()
    yield from _of_producers()
    yield from _of_logs()
    yield from _of_nodes()


def _of_clusters() -> Iterator[Case]:
    def case(method: str, name: str, call: Callable[[Any, Any], object], wrong: tuple[Any, ...]) -> Case:
        return Case(f"cluster.{method}", name, lambda world: [world.cluster], call, wrong)

    for method in ("open_ledger", "delete_ledger", "ledger_metadata", "count_copies"):
        yield case(
            method, "ledger", lambda cluster, wrong, method=method: getattr(cluster, method)(wrong), (*NO_INT, None)
        )
    for method in ("open_ledger", "count_copies"):
        yield case(
            method, "password",
            lambda cluster, wrong, method=method: getattr(cluster, method)(0, password=wrong), NO_BYTES,
        )  # fmt: skip
    for name in ("recover", "force"):
        yield case(
            "open_ledger", name, lambda cluster, wrong, name=name: cluster.open_ledger(0, **{name: wrong}), NO_BOOL
        )
    yield case("repair", "ledger", lambda cluster, wrong: cluster.repair(wrong), NO_INT)
    yield case("repair", "password", lambda cluster, wrong: cluster.repair(password=wrong), NO_BYTES)
    yield case("delete_garbled", "name", lambda cluster, wrong: cluster.delete_garbled(wrong), NO_TEXT)
    for name, wrong in {
        "ensemble": (*NO_INT, None), "write_quorum": NO_INT, "ack_quorum": NO_INT, "durability": (*NO_TEXT, None),
        "password": NO_BYTES, "properties": NO_MAPPING, "window_bytes": (*NO_INT, None),
        "delay_ensemble_change": NO_BOOL, "allow_degraded": NO_BOOL,
    }.items():  # fmt: skip
        yield case(
            "create_ledger", name,
            lambda cluster, wrong, name=name: cluster.create_ledger(**{"ensemble": 1, name: wrong}), wrong,
        )  # fmt: skip
    yield case("close", "timeout", lambda cluster, wrong: cluster.close(wrong), NO_SECONDS)
    for name, wrong in {"partitions": NO_INT, "create": NO_BOOL, "wait": (*NO_SECONDS, None)}.items():
        yield case("topic", name, lambda cluster, wrong, name=name: cluster.topic("news", **{name: wrong}), wrong)
    yield case("topic", "name", lambda cluster, wrong: cluster.topic(wrong), (*NO_TEXT, None))
    for method in ("open", "delete", "get", "owner"):
        yield Case(
            f"topics.{method}", "name", lambda world: [world.cluster.topics],
            lambda topics, wrong, method=method: getattr(topics, method)(wrong), (*NO_TEXT, None),
        )  # fmt: skip
    for name, wrong in {"partitions": NO_INT, "create": NO_BOOL}.items():
        yield Case(
            "client.topic", name, lambda world: [world.client],
            lambda client, wrong, name=name: client.topic("news", **{name: wrong}), wrong,
        )  # fmt: skip
    for method in ("topic", "remove_partitioned"):
        yield Case(
            f"client.{method}", "name", lambda world: [world.client],
            lambda client, wrong, method=method: getattr(client, method)(wrong), (*NO_TEXT, None),
        )  # fmt: skip
    for name, wrong in {
        "bookies": (*NO_INT, None), "replace": NO_BOOL, "older_metadata": NO_BOOL,
    }.items():  # fmt: skip
        yield Case(
            "Cluster.embedded", name, lambda world: [world.folder],
            lambda folder, wrong, name=name: pyreplog.Cluster.embedded(folder / "never", **{name: wrong}), wrong,
        )  # fmt: skip
    yield Case("Cluster.embedded", "path", lambda _: [None], lambda _, wrong: pyreplog.Cluster.embedded(wrong), NO_PATH)
    yield Case(
        "Cluster.connect", "url", lambda _: [None], lambda _, wrong: pyreplog.Cluster.connect(wrong), (*NO_TEXT, None)
    )
    yield Case("connect", "url", lambda _: [None], lambda _, wrong: connect(wrong), (*NO_TEXT, None))
    for name, wrong in {
        "secret": ("text", 7, STRANGE), "tls": ("text", 7, STRANGE), "limits": ("text", 7, STRANGE),
        "request_timeout_ms": (*NO_INT, None), "busy_poll_us": (*NO_INT, None),
    }.items():  # fmt: skip
        yield Case(
            "Cluster.connect", name, lambda _: [None],
            lambda _, wrong, name=name: pyreplog.Cluster.connect("memory:", **{name: wrong}), wrong,
        )  # fmt: skip
    for name, wrong in {"secret": ("text", 7, STRANGE), "tls": ("text", 7, STRANGE), "timeout": NO_SECONDS}.items():
        yield Case(
            "connect", name, lambda _: [None],
            lambda _, wrong, name=name: connect("pyreplog://127.0.0.1:1", **{name: wrong}), wrong,
        )  # fmt: skip


def _of_ledgers() -> Iterator[Case]:
    def reader(method: str, name: str, call: Callable[[Any, Any], object], wrong: tuple[Any, ...]) -> Case:
        return Case(f"reader.{method}", name, lambda world: [world.reader], call, wrong)

    def ledger(method: str, name: str, call: Callable[[Any, Any], object], wrong: tuple[Any, ...]) -> Case:
        return Case(f"ledger.{method}", name, lambda world: [world.ledger], call, wrong)

    yield reader("read", "start", lambda reader, wrong: reader.read(wrong), NO_INT)
    yield reader("read", "end", lambda reader, wrong: reader.read(0, wrong), NO_INT)
    yield reader("read_unconfirmed", "start", lambda reader, wrong: reader.read_unconfirmed(wrong, 0), (*NO_INT, None))
    yield reader("read_unconfirmed", "end", lambda reader, wrong: reader.read_unconfirmed(0, wrong), (*NO_INT, None))
    yield reader("get", "entry", lambda reader, wrong: reader.get(wrong), (*NO_INT, None))
    for method in ("follow", "follow_batches"):
        yield reader(method, "start", lambda reader, wrong, method=method: getattr(reader, method)(wrong), NO_INT)
        yield reader(
            method,
            "timeout",
            lambda reader, wrong, method=method: getattr(reader, method)(0, timeout=wrong),
            NO_SECONDS,
        )
    yield reader("wait_beyond", "entry", lambda reader, wrong: reader.wait_beyond(wrong, 0), (*NO_INT, None))
    yield reader("wait_beyond", "timeout", lambda reader, wrong: reader.wait_beyond(0, wrong), NO_SECONDS)
    for each_reader in (reader, ledger):
        yield each_reader("read_range", "start", lambda handle, wrong: handle.read_range(wrong, 0), (*NO_INT, None))
        yield each_reader("read_range", "end", lambda handle, wrong: handle.read_range(0, wrong), (*NO_INT, None))
        yield each_reader(
            "read_range", "bytes_max", lambda handle, wrong: handle.read_range(0, 0, bytes_max=wrong), (*NO_INT, None)
        )
    for method in ("append", "submit"):
        yield ledger(method, "value", lambda handle, wrong, method=method: getattr(handle, method)(wrong), NO_BYTES)
        yield ledger(
            method, "key", lambda handle, wrong, method=method: getattr(handle, method)(b"", wrong), ("text", 7, [1])
        )
        yield ledger(
            method,
            "event_time",
            lambda handle, wrong, method=method: getattr(handle, method)(b"", event_time=wrong),
            NO_INT,
        )
    for method in ("append_batch", "submit_batch"):
        yield ledger(
            method,
            "values",
            lambda handle, wrong, method=method: getattr(handle, method)(wrong),
            (*NO_SEQUENCE, b"x", "x"),
        )
        yield ledger(
            method, "value", lambda handle, wrong, method=method: getattr(handle, method)([b"", wrong]), NO_BYTES
        )
        for name in ("keys", "event_times", "messages"):
            yield ledger(
                method, name,
                lambda handle, wrong, method=method, name=name: getattr(handle, method)([b""], **{name: wrong}), (7, STRANGE),
            )  # fmt: skip
    yield ledger("close", "timeout", lambda handle, wrong: handle.close(wrong), NO_SECONDS)


def _of_topics() -> Iterator[Case]:
    def case(
        method: str, name: str, call: Callable[[Any, Any], object], wrong: tuple[Any, ...], *,
        on: Callable[[World], list[Any]] = lambda world: world.all_topics,
    ) -> Case:  # fmt: skip
        return Case(f"topic.{method}", name, on, call, wrong)

    def plain(world: World) -> list[Any]:
        return world.topics

    def partitioned(world: World) -> list[Any]:
        return world.partitioned

    for name, wrong in {
        "start": (*NO_START, None), "durable": (*NO_BOOL, None), "name": NO_TEXT, "queue": (*NO_INT, None),
        "priority": (*NO_INT, None),
    }.items():  # fmt: skip
        yield case("subscribe", name, lambda topic, wrong, name=name: topic.subscribe("s", **{name: wrong}), wrong)
    for method in ("subscribe", "create_subscription", "delete_subscription", "clear"):
        yield case(
            method, "subscription", lambda topic, wrong, method=method: getattr(topic, method)(wrong), (*NO_TEXT, None)
        )
    yield case(
        "create_subscription", "start", lambda topic, wrong: topic.create_subscription("new", start=wrong), NO_START
    )
    yield case(
        "create_subscription", "properties",
        lambda topic, wrong: topic.create_subscription("new", properties=wrong), NO_MAPPING,
    )  # fmt: skip
    yield case(
        "delete_subscription", "force", lambda topic, wrong: topic.delete_subscription("s", force=wrong), NO_BOOL
    )
    for method, arguments in {"seek": (0,), "skip": (0,), "skip_to": (0,)}.items():
        yield case(
            method, "subscription",
            lambda topic, wrong, method=method, arguments=arguments: getattr(topic, method)(wrong, *arguments),
            (*NO_TEXT, None), on=plain,
        )  # fmt: skip
    yield case(
        "seek", "subscription", lambda topic, wrong: topic.seek(wrong, "earliest"), (*NO_TEXT, None), on=partitioned
    )
    yield case("seek", "start", lambda topic, wrong: topic.seek("s", wrong), (*NO_START, None))
    yield case("skip", "messages", lambda topic, wrong: topic.skip("s", wrong), (*NO_INT, None), on=plain)
    yield case("skip_to", "offset", lambda topic, wrong: topic.skip_to("s", wrong), (*NO_INT, None), on=plain)
    yield case("skip_to", "token", lambda topic, wrong: topic.skip_to("s", 0, token=wrong), NO_TEXT, on=plain)
    yield case("read", "start", lambda topic, wrong: drained(topic.read(wrong)), (*NO_START, None), on=plain)
    yield case("read", "end", lambda topic, wrong: drained(topic.read(0, wrong)), NO_INT, on=plain)
    yield case("read", "partition", lambda topic, wrong: drained(topic.read(wrong)), (*NO_INT, None), on=partitioned)
    yield case("read", "start", lambda topic, wrong: drained(topic.read(0, wrong)), (*NO_START, None), on=partitioned)
    yield case("read", "end", lambda topic, wrong: drained(topic.read(0, 0, wrong)), NO_INT, on=partitioned)
    yield case("partition", "partition", lambda topic, wrong: topic.partition(wrong), (*NO_INT, None), on=partitioned)
    yield case("producer", "name", lambda topic, wrong: topic.producer(wrong), (*NO_TEXT, None))
    yield case("configure", "ttl_ms", lambda topic, wrong: topic.configure(ttl_ms=wrong), NO_INT)


def _of_consumers() -> Iterator[Case]:
    def case(
        method: str, name: str, call: Callable[[Any, Any], object], wrong: tuple[Any, ...],
    ) -> Case:  # fmt: skip
        return Case(f"consumer.{method}", name, lambda world: list(world.consumers), call, wrong)

    no_what = (None, 1.5, "0", b"0", True, ["0"], [None], STRANGE)
    for method in ("acknowledge", "nack", "acknowledge_cumulative"):
        yield case(method, "messages", lambda consumer, wrong, method=method: getattr(consumer, method)(wrong), no_what)
    yield case("nack", "delay", lambda consumer, wrong: consumer.nack([], delay=wrong), NO_SECONDS)
    for method in ("receive", "receive_batch", "flush"):
        yield case(
            method,
            "timeout",
            lambda consumer, wrong, method=method: getattr(consumer, method)(timeout=wrong),
            NO_SECONDS,
        )
    yield case("batches", "timeout", lambda consumer, wrong: drained(consumer.batches(wrong)), NO_SECONDS)
    yield case("receive", "max_messages", lambda consumer, wrong: consumer.receive(0, max_messages=wrong), NO_INT)
    yield case("seek", "start", lambda consumer, wrong: consumer.seek(wrong), (*NO_START, None))
    yield case("seek", "timeout", lambda consumer, wrong: consumer.seek("earliest", timeout=wrong), NO_SECONDS)


def _of_producers() -> Iterator[Case]:
    def case(method: str, name: str, call: Callable[[Any, Any], object], wrong: tuple[Any, ...]) -> Case:
        return Case(f"producer.{method}", name, lambda world: world.all_topics, call, wrong)

    for method in ("publish", "submit"):
        for name, wrong in {
            "key": ("text", 7, [1]), "properties": NO_MAPPING, "event_time": NO_INT, "deliver_at": NO_INT,
        }.items():  # fmt: skip
            yield case(
                method,
                name,
                lambda topic, wrong, method=method, name=name: getattr(topic, method)(b"", **{name: wrong}),
                wrong,
            )
        yield case(method, "value", lambda topic, wrong, method=method: getattr(topic, method)(wrong), NO_BYTES)
    yield case("publish", "timeout", lambda topic, wrong: topic.publish(b"", timeout=wrong), NO_SECONDS)
    for method in ("publish_batch", "submit_batch"):
        for name in ("keys", "properties", "event_times", "deliver_at"):
            yield case(
                method, name,
                lambda topic, wrong, method=method, name=name: getattr(topic, method)([b""], **{name: wrong}), (7, STRANGE),
            )  # fmt: skip
        yield case(
            method,
            "values",
            lambda topic, wrong, method=method: getattr(topic, method)(wrong),
            (*NO_SEQUENCE, b"x", "x"),
        )
    yield case("publish", "sequence", lambda topic, wrong: topic.producer("p").publish(b"", sequence=wrong), NO_INT)
    yield case("close", "timeout", lambda topic, wrong: topic.producer("p").close(wrong), NO_SECONDS)


def _of_logs() -> Iterator[Case]:
    def case(method: str, name: str, call: Callable[[Any, Any], object], wrong: tuple[Any, ...]) -> Case:
        return Case(f"log.{method}", name, lambda world: [world.log], call, wrong)

    yield case("append", "value", lambda log, wrong: log.append(wrong), NO_BYTES)
    for method in ("get", "position_of", "trim", "truncate"):
        yield case(method, "entry", lambda log, wrong, method=method: getattr(log, method)(wrong), (*NO_INT[:4], None))
    for method in ("read", "follow", "follow_batches", "control_records", "read_positions"):
        yield case(method, "start", lambda log, wrong, method=method: drained(getattr(log, method)(wrong)), NO_INT[:4])
    for method in ("read", "read_positions"):
        yield case(method, "end", lambda log, wrong, method=method: drained(getattr(log, method)(0, wrong)), NO_INT[:4])
    for method in ("follow", "follow_batches"):
        yield case(
            method,
            "timeout",
            lambda log, wrong, method=method: drained(getattr(log, method)(timeout=wrong)),
            NO_SECONDS,
        )
    yield case("read", "batch_bytes", lambda log, wrong: drained(log.read(batch_bytes=wrong)), NO_INT)
    yield case("entry_at_time", "time", lambda log, wrong: log.entry_at_time(wrong), (*NO_INT, None))
    yield case("read_event_times", "low", lambda log, wrong: drained(log.read_event_times(wrong, 1)), (*NO_INT, None))
    yield case("read_event_times", "high", lambda log, wrong: drained(log.read_event_times(1, wrong)), (*NO_INT, None))
    yield Case("open", "path", lambda _: [None], lambda _, wrong: pyreplog.open(wrong), NO_PATH)
    yield Case(
        "open", "mode", lambda world: [world.folder], lambda path, wrong: pyreplog.open(path, wrong), (*NO_TEXT, None)
    )
    yield Case(
        "open", "config", lambda world: [world.folder],
        lambda path, wrong: pyreplog.open(path / "never", config=wrong), (7, "text", STRANGE),
    )  # fmt: skip
    yield Case(
        "open", "segment_bytes", lambda world: [world.folder],
        lambda path, wrong: pyreplog.open(path / "never", segment_bytes=wrong), NO_INT,
    )  # fmt: skip


def _of_nodes() -> Iterator[Case]:
    def case(method: str, name: str, call: Callable[[Any, Any], object], wrong: tuple[Any, ...]) -> Case:
        return Case(f"node.{method}", name, lambda world: [world.node], call, wrong)

    no_names = (7, "abc", None, [7], [None], STRANGE)
    yield case("append", "value", lambda node, wrong: node.append(wrong), NO_BYTES)
    yield case("submit", "value", lambda node, wrong: node.submit(wrong), NO_BYTES)
    yield case("append_batch", "values", lambda node, wrong: node.append_batch(wrong), NO_SEQUENCE)
    yield case("submit_batch", "values", lambda node, wrong: node.submit_batch(wrong), NO_SEQUENCE)
    yield case("set_members", "names", lambda node, wrong: node.set_members(wrong, 0), no_names)
    yield case("set_members", "sync_replicas", lambda node, wrong: node.set_members(["a"], wrong), (*NO_INT, None))
    yield case("set_members", "force", lambda node, wrong: node.set_members(["a"], 0, force=wrong), NO_BOOL)
    yield case("add_member", "name", lambda node, wrong: node.add_member(wrong), (*NO_TEXT, None))
    yield case("remove_member", "name", lambda node, wrong: node.remove_member(wrong), (*NO_TEXT, None))
    yield case("set_sync_replicas", "count", lambda node, wrong: node.set_sync_replicas(wrong), (*NO_INT, None))
    yield case(
        "learn_peers",
        "addresses",
        lambda node, wrong: node.learn_peers(wrong),
        (*NO_MAPPING, None, {"b": 7}, {7: "b:1"}),
    )
    yield case("follow", "master", lambda node, wrong: node.follow(wrong), NO_TEXT)
    yield case("promote", "force", lambda node, wrong: node.promote(force=wrong), NO_BOOL)
    yield case("hears_master", "timeout", lambda node, wrong: node.hears_master(wrong), (*NO_SECONDS, None))
    for name, wrong in {
        "members": no_names, "sync_replicas": (*NO_INT, None), "force": NO_BOOL, "peers": NO_MAPPING, "name": NO_TEXT,
        "port": NO_INT, "secret": ("text", 7, STRANGE), "tls_server": ("text", 7, STRANGE),
        "tls_client": ("text", 7, STRANGE), "limits": ("text", 7, STRANGE), "busy_poll_us": (*NO_INT, None),
    }.items():  # fmt: skip
        yield Case(
            "ha.open_master", name, lambda world: [world.folder],
            lambda folder, wrong, name=name: ha.open_master(folder / "never", **{"name": "a", name: wrong}), wrong,
        )  # fmt: skip
    yield Case("ha.open_master", "path", lambda _: [None], lambda _, wrong: ha.open_master(wrong, name="a"), NO_PATH)
    yield Case(
        "ha.open_replica", "master", lambda world: [world.folder],
        lambda folder, wrong: ha.open_replica(folder / "never", name="a", master=wrong), NO_TEXT,
    )  # fmt: skip
    yield Case("ha.open_replica", "path", lambda _: [None], lambda _, wrong: ha.open_replica(wrong, name="a"), NO_PATH)


CASES = list(cases())


@pytest.mark.parametrize("case", CASES, ids=[f"{case.what}-{case.name}" for case in CASES])
def test_each_is_refused_by_its_name(case: Case, world: World) -> None:
    faults = []
    for on in case.on(world):
        for wrong in case.wrong:
            try:
                outcome = case.call(on, wrong)
            except (WrongTypeError, InvalidArgumentError) as error:
                if not (case.name in str(error) and "expected" in str(error)):
                    faults.append(f"{type(on).__name__}, {wrong!r}: {type(error).__name__}: {error}")
            except BaseException as error:
                faults.append(f"{type(on).__name__}, {wrong!r}: {type(error).__name__}: {error}")
            else:
                faults.append(f"{type(on).__name__}, {wrong!r}: taken, {outcome!r}")
                if isinstance(outcome, pyreplog.Cluster | ha.Node):
                    outcome.close()
    assert not faults, "\n".join(faults)
