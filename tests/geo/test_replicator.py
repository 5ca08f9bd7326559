"""Topics of real clusters, replicated over TCP, while connections are cut and either end is restarted."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import numpy as np
import pytest

from pyreplog._native.system.checksum import crc32c
from pyreplog._native.topic.message_encoder import encode_messages
from pyreplog.cursors.subscription_metadata import SubscriptionMetadata, create_subscription
from pyreplog.errors import BacklogFullError, InvalidArgumentError, NotConnectedError
from pyreplog.geo.geo_cursor import GeoState, cursor_name
from pyreplog.geo.policy import GeoBacklogPolicy, ReplicationPolicy
from pyreplog.geo.protocol.effects import TargetPosition
from pyreplog.geo.replicator import Replicator
from pyreplog.geo.target_link import OnLost, OnOpened, OnStored, Opening, TargetSession
from pyreplog.geo.topic_positions import TopicPositions
from pyreplog.origins.origin import Gap, GapCause, LastEntry, Origin, OriginEntry, OriginState
from pyreplog.topic.model.positions import TopicPosition
from pyreplog.topic.model.routing import partition_name
from pyreplog.topic.model.system_cursor_record import SystemCursorRecord
from pyreplog.topic.owner.topic import Topic
from pyreplog.topic.server import topic_server
from tests.geo.sites import SYNCED, Site, entries, has_all, rows, values
from tests.topic.remoting import Wire
from tests.waiting import until

ALL = ReplicationPolicy(targets=("b",), forward="all")


class HeldTarget:
    """A target that opens no session by itself."""

    def __init__(self) -> None:
        self.opened: list[tuple[Opening, OnOpened, OnLost]] = []

    def open(self, opening: Opening, on_opened: OnOpened, on_lost: OnLost) -> None:
        self.opened.append((opening, on_opened, on_lost))

    def replicate(self, *_: object) -> None:
        raise AssertionError("no session is open")

    def drop(self, topic: str) -> None:
        self.opened.clear()


@pytest.fixture
def a(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path / "a") as site:
        yield site


@pytest.fixture
def b(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path / "b") as site:
        yield site


def publish(site: Site, start: int, end: int, per_entry: int = 10) -> list[bytes]:
    sent = [b"%s %d" % (site.path.name.encode(), number) for number in range(start, end)]
    for at in range(0, len(sent), per_entry):
        site.topic().publish_batch(sent[at : at + per_entry])
    return sent


def reconnects(replicator: Replicator, before: int) -> None:
    until(lambda: replicator.status().reconnects > before)


def fails(replicator: Replicator) -> None:
    until(lambda: replicator.status().state == "failed")


def test_replicated_entries_arrive_in_order_and_byte_for_byte_equal(a: Site, b: Site) -> None:
    sent = publish(a, 0, 100)
    replicator = a.replicate("b", b.server.address)
    sent += publish(a, 100, 200)
    has_all(replicator, 200)
    assert values(b.topic()) == sent
    assert entries(b.topic()) == entries(a.topic())
    assert [first for first, _ in entries(a.topic())] == [*range(0, 200, 10)]
    assert b.topic().config == a.topic().config
    status = replicator.status()
    assert (status.state, status.unsent_messages, status.unsent_bytes, status.sent_messages) == ("running", 0, 0, 200)


def test_rows_of_two_tables_are_in_both_clusters(a: Site, b: Site) -> None:
    """Flights are published in one cluster and the weather in the other, with keys, properties and times, also
    compressed."""
    tables = {a: rows("flights.csv.zip", 6000), b: rows("weather.csv", 6000)}
    replicators = []
    for site, other in ((a, b), (b, a)):
        topic = site.topic("t", **{**SYNCED, "compression": "zstd"})
        replicators.append(site.replicate(other.path.name, other.server.address))
        lines = tables[site]
        for at in range(0, len(lines), 500):
            part = lines[at : at + 500]
            topic.publish_batch(
                part, [line.split(b",", 6)[5] for line in part], properties=[{"table": site.path.name}] * len(part),
                event_times=range(1_700_000_000_000_000 + at, 1_700_000_000_000_000 + at + len(part)),
            )  # fmt: skip
    for replicator in replicators:
        has_all(replicator, 12_000)
    for site in (a, b):
        stored: dict[bytes, list[tuple[bytes, bytes | None, int]]] = {b"a": [], b"b": []}
        for batch in site.topic().read():
            columns = zip(batch.values(), batch.keys(), batch.event_time.tolist(), strict=True)
            for at, row in enumerate(columns):
                stored[batch.properties(at)["table"]].append(row)
        for origin, lines in tables.items():
            assert stored[origin.path.name.encode()] == [
                (line, line.split(b",", 6)[5], 1_700_000_000_000_000 + number) for number, line in enumerate(lines)
            ]


def test_messages_replicated_in_both_directions_do_not_return(a: Site, b: Site) -> None:
    """Each cluster has the messages of both, those of each in order."""
    sites = (a, b)
    publish(a, 0, 20), publish(b, 0, 20)
    replicators = [a.replicate("b", b.server.address), b.replicate("a", a.server.address)]
    for start in range(20, 100, 20):
        for site in sites:
            publish(site, start, start + 20)
    until(lambda: all(len(values(site.topic())) == 200 for site in sites))
    for replicator in replicators:
        has_all(replicator, 200)
    for site in sites:
        stored = values(site.topic())
        for origin in (b"a ", b"b "):
            assert [value for value in stored if value.startswith(origin)] == [
                b"%s%d" % (origin, at) for at in range(100)
            ]
    assert [replicator.status().unsent_messages for replicator in replicators] == [0, 0]


def test_a_connection_that_is_cut_again_and_again_loses_nothing_and_repeats_nothing(
    a: Site, b: Site, seed: int
) -> None:
    random = Random(seed)
    with Wire(b.server.address) as wire:
        replicator = a.replicate("b", wire.address, policy=ReplicationPolicy(targets=("b",), window_bytes=64 << 10))
        has_all(replicator, 0)
        sent: list[bytes] = []
        for cut in range(8):
            before = replicator.status().reconnects
            if cut % 3 == 1:
                wire.swallow()  # answers of the target are lost
            sent += publish(a, len(sent), len(sent) + random.randrange(1, 200), random.choice((1, 7)))
            if cut % 3 == 1:
                assert wire.swallowed.wait(30.0)
            wire.cut()
            if cut % 3 == 1:
                reconnects(replicator, before)
        has_all(replicator, len(sent))
        assert values(b.topic()) == sent
        assert replicator.status().reconnects > 2


def test_lag_is_right_while_the_target_is_away(a: Site, b: Site) -> None:
    with Wire(b.server.address) as wire:
        replicator = a.replicate("b", wire.address)
        publish(a, 0, 10)
        has_all(replicator, 10)
        with wire.apart():
            publish(a, 10, 30)
            until(lambda: replicator.status().state == "connecting")
            status = replicator.status()
            assert (status.unsent_messages, status.stored, status.end) == (20, 10, 30)
            assert status.unsent_bytes > 20 and status.oldest_unsent_us is not None and status.error
        has_all(replicator, 30)
        assert replicator.status().unsent_messages == 0


def test_an_idle_replicator_reports_a_lost_connection(a: Site, b: Site) -> None:
    """It connects again before there is a message to send."""
    with Wire(b.server.address) as wire:
        replicator = a.replicate("b", wire.address)
        publish(a, 0, 10)
        has_all(replicator, 10)
        for opens in range(2):
            with wire.apart():
                until(lambda: replicator.status().state == "connecting")
                status = replicator.status()
                assert status.error and (status.unsent_messages, status.stored) == (0, 10)
            until(lambda: replicator.status().state == "running")
            assert replicator.status().reconnects == opens + 1 and not replicator.status().error


def test_replication_goes_on_after_a_restart_of_either_end(a: Site, b: Site) -> None:
    with Wire(b.server.address) as wire:
        sent = publish(a, 0, 50)
        has_all(a.replicate("b", wire.address), 50)
        sent += publish(a, 50, 60)
        a.end()
        a.begin()
        replicator = a.replicate("b", wire.address)
        has_all(replicator, 60)
        b.end()
        sent += publish(a, 60, 70)
        b.begin()
        wire.lead_to(b.server.address)
        has_all(replicator, 70)
        assert values(b.topic()) == sent and entries(b.topic()) == entries(a.topic())


def test_trimming_waits_for_the_target(a: Site, b: Site) -> None:
    """Messages are kept while no replication runs, after a restart of this process, and until the target has them
    durably."""
    settings = {**SYNCED, "retention_bytes": 0, "roll_entries": 2}
    with Wire(b.server.address) as wire:
        topic = a.topic(**settings)
        # this cursor keeps all messages; one that the replicator creates would allow trimming the first ones
        b.topic(**SYNCED)
        replicator = a.replicate("b", wire.address)
        publish(a, 0, 40)
        has_all(replicator, 40)
        until(lambda: topic.trim() >= 20)
        kept = topic.trim()
        with wire.apart():
            publish(a, 40, 100)
            assert topic.trim() == kept or topic.start <= 40
            replicator.close()
            a.replicators.clear()
            assert topic.trim() <= 40
            a.end()
            a.begin()
            assert a.topic().trim() <= 40
        replicator = a.replicate("b", wire.address)
        has_all(replicator, 100)
        assert replicator.status().skipped == ()
        until(lambda: a.topic().trim() > 80)
        assert values(b.topic()) == [b"a %d" % number for number in range(100)]


def test_the_source_is_trimmed_as_the_target_progresses(a: Site, b: Site) -> None:
    """The durable cursor is stored whenever the target has made progress, not only at the end."""
    topic = a.topic(**{**SYNCED, "retention_bytes": 0, "roll_entries": 2})
    b.topic(**SYNCED)
    replicator = a.replicate("b", b.server.address)
    for end in (40, 80, 120):
        publish(a, end - 40, end)
        has_all(replicator, end)
        until(lambda end=end: topic.trim() >= end - 20)  # type: ignore[misc]


def test_a_target_that_was_restored_stops_the_replication(a: Site, b: Site, tmp_path: Path) -> None:
    """The target has files of an earlier time, or is a new cluster. In neither case are messages sent without an order."""
    with Wire(b.server.address) as wire:
        publish(a, 0, 20)
        replicator = a.replicate("b", wire.address)
        has_all(replicator, 20)
        with Site(tmp_path / "other") as other:
            wire.lead_to(other.server.address)
            wire.cut()
            publish(a, 20, 30)
            until(lambda: replicator.status().state == "diverged")
            assert "rolled back" in replicator.status().alarm
            assert replicator.status().unsent_messages == 10 and "t" not in other.cluster.topics.names()[1:]
            replicator.resync()
            has_all(replicator, 30)
            assert len(values(other.topic())) == 30


def restored(site: Site, backup: Path) -> None:
    """Put the files of a backup in place of those of a site."""
    site.end()
    shutil.rmtree(site.path)
    shutil.copytree(backup, site.path)
    site.begin()


def backed_up(site: Site, backup: Path) -> Path:
    site.end()
    shutil.copytree(site.path, backup)
    site.begin()
    return backup


def test_a_second_replicator_of_an_open_topic_keeps_the_identity(a: Site, b: Site) -> None:
    """The cursor was behind the end of the topic when the topic was opened, as messages were published after that
    position."""
    origin = a.topic().origin
    sent = publish(a, 0, 20)
    first = a.replicate("b", b.server.address)
    has_all(first, 20)
    until(lambda: [cursor.mark.offset for cursor in a.topic().system_cursors.all()] == [20])
    first.close()
    sent += publish(a, 20, 40)
    has_all(a.replicate("b", b.server.address), 40)
    assert a.topic().origin == origin
    assert values(b.topic()) == sent


@pytest.mark.parametrize("new", [5, 40], ids=["behind", "beyond"])
def test_a_source_that_was_restored_goes_on_with_a_new_identity(a: Site, b: Site, tmp_path: Path, new: int) -> None:
    """It has fewer messages than the target or more: in both cases no new message is taken for an old one."""
    with Wire(b.server.address) as wire, Site(tmp_path / "c") as c:
        sent = publish(a, 0, 20)
        for name, address in (("b", wire.address), ("c", c.server.address)):
            has_all(a.replicate(name, address), 20)
        backup = backed_up(a, tmp_path / "backup")
        lost = publish(a, 20, 50)
        has_all(a.replicate("b", wire.address), 50)
        restored(a, backup)
        former = a.topic().origin
        fresh = [b"new %d" % number for number in range(new)]
        for value in fresh:
            a.topic().publish(value)
        third = a.replicate("c", c.server.address)  # c has no more than the restored source
        has_all(third, 20 + new)
        replicator = a.replicate("b", wire.address)
        until(lambda: replicator.status().state == "diverged")
        assert "resync" in replicator.status().alarm and values(b.topic()) == sent + lost
        replicator.resync()
        until(lambda: a.topic().origin != former)
        fresh.append(b"last")
        a.topic().publish(b"last")
        for one in (replicator, third):
            has_all(one, 21 + new)
        assert values(b.topic()) == sent + lost + fresh
        assert values(c.topic()) == sent + fresh
        origins = b.topic().origins.all()
        assert [origins[origin].stored for origin in (former, a.topic().origin)] == [50, 21 + new]
        renewed = a.topic().origin
        a.end()
        a.begin()
        assert a.topic().origin == renewed
        a.topic().publish(b"more")
        has_all(a.replicate("b", wire.address), 22 + new)
        assert values(b.topic()) == [*sent, *lost, *fresh, b"more"]


def test_a_source_that_lost_its_end_goes_on_with_a_new_identity(a: Site, b: Site, tmp_path: Path) -> None:
    """Bookies lost the end of the topic: it ends below the stored position of the target."""
    sent = publish(a, 0, 20)
    backup = backed_up(a, tmp_path / "backup")
    lost = publish(a, 20, 30)
    has_all(a.replicate("b", b.server.address), 30)
    note = b.topic().origins.all()[a.topic().origin]
    restored(a, backup)
    context, name = a.topic().context, cursor_name("b")
    mark = TopicPosition(*(part + part // 2 for part in a.topic().managed.end))
    state = GeoState(0, GapCause.EXPIRED, TargetPosition(30, note.last))
    record = SystemCursorRecord(0, mark, state.to_bytes()).to_bytes()
    create_subscription(
        context.metadata, "t", name, SubscriptionMetadata(token="0" * 32, created_us=1, snapshot=record)
    )
    former, fresh = a.topic().origin, publish(a, 100, 140)
    replicator = a.replicate("b", b.server.address)
    has_all(replicator, 60)
    assert values(b.topic()) == sent + lost + fresh and not replicator.status().alarm
    assert a.topic().origins.former == ((former, 20),)
    for _ in range(2):
        a.end()
        a.begin()
        fresh.append(b"%d more" % len(fresh))
        a.topic().publish(fresh[-1])
        has_all(a.replicate("b", b.server.address), 20 + len(fresh))
    assert values(b.topic()) == sent + lost + fresh and a.topic().origins.former == ((former, 20),)


def test_outcomes_of_a_former_identity_do_not_reach_its_successor(a: Site) -> None:
    """While the topic gets another identity, a session of the former one is refused, opened or lost."""
    target, jobs = HeldTarget(), list[Callable[[], object]]()
    topic = a.topic()
    publish(a, 0, 20)
    replicator = Replicator(topic, "b", target, ReplicationPolicy(targets=("b",)), work=jobs.append)
    a.replicators.append(replicator)
    replicator.start()
    jobs.pop()()
    opening, on_opened, on_lost = target.opened.pop()
    assert opening.origin == topic.origin
    renewed = topic.renew_origin(10)
    error = NotConnectedError("b is away")
    on_opened(error)
    on_lost(error)
    jobs.pop()()
    ((opening, _, _),) = target.opened
    on_lost(error)
    on_opened(error)
    status = replicator.status()
    assert opening.origin == renewed and (status.state, status.reconnects, status.error) == ("connecting", 0, "")


def test_messages_keep_the_identity_that_they_had(a: Site) -> None:
    """Messages from an offset on have another identity. Acknowledgements below it are those of the former identity."""
    topic, called = a.topic(), []
    topic.on_origin_renewed.append(lambda: called.append(topic.origin))
    publish(a, 0, 40)
    first = topic.origin
    second, third = topic.renew_origin(20), topic.renew_origin(30)
    assert called == [second, third] and topic.origin == third
    assert topic.origins.former == ((first, 20), (second, 30))
    assert [topic.origins.former_of(offset) for offset in (0, 19, 20, 29, 30)] == [first, first, second, second, None]
    for origin in (first, second, third):
        with pytest.raises(InvalidArgumentError, match="itself"):
            topic.origins.open(origin, 1)
    positions = TopicPositions(topic.origin, 0, topic.origins.names, topic.origins.former)
    for batch in topic.read():
        positions.add(batch)
    for origin, start, end in ((first, 0, 20), (second, 20, 30), (third, 30, 40)):
        ranges = np.array([start]), np.array([end])
        assert [*positions.translation.to_origins(ranges)] == [origin]
        starts, ends = positions.translation.to_local(origin, (np.array([0]), np.array([40])))
        assert (starts.tolist(), ends.tolist()) == ([start], [end])


def test_status_reports_a_server_without_origins(
    a: Site, b: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(topic_server, "FEATURES", frozenset())
    with Site(tmp_path / "old") as old:
        publish(a, 0, 10)
        replicator = a.replicate("b", old.server.address)
        fails(replicator)
        status = replicator.status()
        assert "upgrade" in status.error and status.unsent_messages == 10 and status.stored is None


def test_both_ends_have_to_be_synced(a: Site, b: Site) -> None:
    appended = {**SYNCED, "durability": "appended"}
    a.topic("loose", **appended)
    b.topic("loose", **SYNCED)
    b.topic("t", **appended)
    publish(a, 0, 1)
    for name, end in (("loose", "replicated to other clusters"), ("t", "that other clusters replicate into")):
        refused = a.replicate("b", b.server.address, name)
        fails(refused)
        assert "durability" in refused.status().error and "configure" in refused.status().error
        assert end in refused.status().error
        assert refused.status().alarm == refused.status().error


class LyingTarget:
    """A target that claims to have an entry of the topic. It records in `replicated` the entries that it gets, and
    never confirms them."""

    def __init__(self, last: LastEntry) -> None:
        self._last = last
        self.replicated: list[OriginEntry] = []

    def open(self, opening: Opening, on_opened: OnOpened, on_lost: OnLost) -> None:
        on_opened(TargetSession(opening.topic, ("", 0), 1, b"B" * 16, OriginState(self._last.end, self._last)))

    def replicate(
        self,
        session: TargetSession,
        entries: Sequence[OriginEntry],
        gaps: Sequence[Gap],
        size: int,
        on_stored: OnStored,
    ) -> None:
        self.replicated += entries

    def drop(self, topic: str) -> None: ...


MALFORMED = b"\x06\x02\x00\x09b"
"""A replicate-to attribute that holds one name, of 9 bytes."""


def store_malformed(site: Site) -> None:
    """Store a malformed entry, as if it had come from another cluster."""
    origins, other = site.topic().origins, Origin(b"C" * 16, "other")
    origins.open(other, 1).result(30.0)
    value = encode_messages([b"lie"])
    origins.replicate(other, 1, [OriginEntry(value, 1, 0, 1, (), MALFORMED)]).result(30.0)


def test_a_malformed_entry_stops_replication_with_an_alarm_behind_those_before_it(a: Site, b: Site) -> None:
    sent = publish(a, 0, 10)
    replicator = a.replicate("b", b.server.address)
    has_all(replicator, 10)
    replicator.pause()
    sent += publish(a, 10, 20)
    store_malformed(a)
    publish(a, 20, 30)
    replicator.resume()
    fails(replicator)
    status = replicator.status()
    assert "entry at offset 20: replicate-to attribute" in status.alarm and status.error == status.alarm
    until(lambda: values(b.topic()) == sent)


def test_a_malformed_entry_that_is_compared_stops_replication_with_an_alarm(a: Site) -> None:
    store_malformed(a)
    a.end()
    a.begin()
    value = next(iter(entries(a.topic())))[1]
    target = LyingTarget(LastEntry(0, 1, crc32c(value), 1))
    replicator = Replicator(a.topic(), "b", target, ReplicationPolicy(targets=("b",)))
    a.replicators.append(replicator)
    replicator.start()
    fails(replicator)
    assert "entry at offset 0: replicate-to attribute" in replicator.status().alarm and not target.replicated


def test_only_messages_of_chosen_clusters_are_forwarded(a: Site, b: Site, tmp_path: Path) -> None:
    """b forwards the messages of a, and its own, and not those of d. Its cursor does not wait for the latter."""
    with Site(tmp_path / "c") as c, Site(tmp_path / "d") as d:
        for source in (a, d):
            publish(source, 0, 20)
            source.replicate("b", b.server.address)
        publish(b, 0, 20)
        until(lambda: len(b.topic()) == 60)
        clusters = {"a": a.topic().origin.cluster}
        policy = ReplicationPolicy(targets=("c",), forward="all", replicated_from=("a",))
        replicator = b.replicate(
            "c", c.server.address, policy=policy,
            cluster_ids=lambda names: frozenset(clusters[name] for name in names),
        )  # fmt: skip
        has_all(replicator, 60)
        until(lambda: len(values(c.topic())) == 40)
        assert {value.split()[0] for value in values(c.topic())} == {b"a", b"b"}
        assert {*c.topic().origins.all()} == {a.topic().origin, b.topic().origin}
        assert replicator.status().unsent_messages == 0


def test_a_message_has_the_time_of_its_origin_in_all_clusters(a: Site, b: Site, tmp_path: Path) -> None:
    """A cluster in between that forwards the message keeps its time, so that all clusters agree which of two messages
    is later."""
    with Site(tmp_path / "c") as c:
        publish(a, 0, 30)
        publish(b, 0, 30)
        a.replicate("b", b.server.address)
        b.replicate("c", c.server.address, policy=ReplicationPolicy(targets=("c",), forward="all"))
        for source in (a, b):
            publish(source, 30, 40)
        until(lambda: len(b.topic()) == len(c.topic()) == 80)
        times = origin_times(c)
        assert len(times) == 80 and times == origin_times(b)
        assert {value: time for value, time in times.items() if value.startswith(b"a")} == origin_times(a)


def origin_times(site: Site) -> dict[bytes, int]:
    """Return the time at which each message was published in its own cluster."""
    return {
        message.value: message.publish_time if message.origin_publish_time is None else message.origin_publish_time
        for batch in site.topic().read()
        for message in batch
    }


def test_a_ring_of_three_forwards_everything_once(a: Site, b: Site, tmp_path: Path) -> None:
    with Site(tmp_path / "c") as c:
        sites = (a, b, c)
        for site in sites:
            publish(site, 0, 20)
        ring = [
            (a, "b", b), (b, "c", c), (c, "a", a),
        ]  # fmt: skip
        for source, name, target in ring:
            source.replicate(name, target.server.address, policy=ReplicationPolicy(targets=(name,), forward="all"))
        for site in sites:
            publish(site, 20, 40)
        until(lambda: all(len(values(site.topic())) >= 120 for site in sites))
        for site in sites:
            publish(site, 40, 45)
        until(lambda: all(len(values(site.topic())) >= 135 for site in sites))
        for site in sites:
            stored = Counter(values(site.topic()))
            assert len(stored) == 135 and set(stored.values()) == {1}
            for origin in (b"a ", b"b ", b"c "):
                numbers = [int(value[2:]) for value in values(site.topic()) if value.startswith(origin)]
                assert numbers == [*range(45)]
        for source, _, _ in ring:
            source.replicators[0].close()


def test_a_mesh_sends_only_what_was_published_there(a: Site, b: Site, tmp_path: Path) -> None:
    with Site(tmp_path / "c") as c, ExitStack() as stack:
        sites = (a, b, c)
        for source in sites:
            for target in sites:
                if source is not target:
                    stack.callback(source.replicate(target.path.name, target.server.address).close)
        for start in range(0, 60, 20):
            for site in sites:
                publish(site, start, start + 20)
        until(lambda: all(len(values(site.topic())) >= 180 for site in sites))
        for site in sites:
            assert len(values(site.topic())) == len({*values(site.topic())}) == 180
            for replicator in site.replicators:
                has_all(replicator, 180)


def test_new_target_begins_at_the_start_of_the_policy(a: Site, b: Site) -> None:
    publish(a, 0, 30)
    replicator = a.replicate("b", b.server.address, policy=ReplicationPolicy(targets=("b",), start="latest"))
    until(lambda: replicator.status().state == "running")
    sent = publish(a, 30, 40)
    has_all(replicator, 40)
    assert values(b.topic()) == sent


def test_a_partition_creates_the_target_topic_with_all_partitions(a: Site, b: Site) -> None:
    a.cluster.topic("p", partitions=3, **SYNCED)
    name = partition_name("p", 1)
    a.topic(name).publish(b"x")
    replicator = a.replicate("b", b.server.address, name, partitions=3)
    has_all(replicator, 1)
    assert b.cluster.topics.partitioned.find("p") == 3 and values(b.topic(name)) == [b"x"]


def test_pause_resume_and_another_policy(a: Site, b: Site) -> None:
    replicator = a.replicate("b", b.server.address)
    publish(a, 0, 10)
    has_all(replicator, 10)
    replicator.pause()
    until(lambda: replicator.status().state == "paused")  # an event of another thread may be in progress
    publish(a, 10, 20)
    assert replicator.status().state == "paused"
    assert replicator.status().unsent_messages == 10
    replicator.resume()
    has_all(replicator, 20)
    replicator.configure(ReplicationPolicy(targets=("b",), rate_bytes=10, window_bytes=64 << 10))
    publish(a, 20, 30)
    has_all(replicator, 30)


def test_a_backlog_beyond_its_bound_detaches_until_resync(a: Site, b: Site) -> None:
    policy = ReplicationPolicy(targets=("b",), backlog_bytes=2000, backlog_policy="detach")
    topic = a.topic(**{**SYNCED, "retention_bytes": 0, "roll_entries": 1})
    with Wire(b.server.address) as wire:
        replicator = a.replicate("b", wire.address, policy=policy)
        publish(a, 0, 10)
        has_all(replicator, 10)
        with wire.apart():
            for start in range(10, 100, 10):
                topic.publish_batch([b"%d" % number + bytes(100) for number in range(start, start + 10)])
            until(lambda: replicator.status().state == "detached")
            until(lambda: topic.trim() > 50)
            assert "backlog_bytes" in replicator.status().alarm
        replicator.resync()
        publish(a, 100, 110)
        has_all(replicator, 110)
        assert values(b.topic("t", **SYNCED))[-10:] == [b"a %d" % number for number in range(100, 110)]


@pytest.mark.parametrize("backlog_policy", ["hold", "error"])
def test_a_backlog_beyond_its_bound_holds_publishers(a: Site, b: Site, backlog_policy: GeoBacklogPolicy) -> None:
    policy = ReplicationPolicy(targets=("b",), backlog_bytes=2000, backlog_policy=backlog_policy)
    topic = a.topic()
    with Wire(b.server.address) as wire:
        replicator = a.replicate("b", wire.address, policy=policy)
        publish(a, 0, 10)
        has_all(replicator, 10)
        with wire.apart():
            topic.publish(bytes(3000))
            until(lambda: topic.stats().publishing != "open")
            if backlog_policy == "error":
                with pytest.raises(BacklogFullError, match="backlog_bytes=2000 wait for the cluster b"):
                    topic.publish(b"refused")
            else:
                held = topic.room()
                assert not held.done()
        until(lambda: topic.stats().publishing == "open")
        publish(a, 10, 20)
        has_all(replicator, 21)


class LineCounter:
    """Counts the lines of pyreplog that run in all threads that begin while it is installed, and calls by function."""

    def __init__(self) -> None:
        self.is_counting = False
        self.lines: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def trace(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        if f"{os.sep}pyreplog{os.sep}" not in frame.f_code.co_filename:
            return None
        if self.is_counting:
            counts = self.calls if event == "call" else self.lines
            counts[frame.f_code.co_qualname] += 1
        return self.trace


@pytest.fixture
def counter() -> Iterator[LineCounter]:
    counter = LineCounter()
    before = threading.gettrace()
    threading.settrace(counter.trace)  # for threads that begin later, so this fixture comes before the sites
    yield counter
    threading.settrace(before)  # type: ignore[arg-type]


def test_no_python_runs_for_each_message(counter: LineCounter, a: Site, b: Site) -> None:
    """From the log of the source to the log of the target, entries of 256 messages take as much Python as those of 4.

    A replicator sends them over TCP to a server. The lines of all threads of both sides are counted, so that a loop
    counts as well if it calls nothing.
    """
    count, lines = 100, {}
    for name, messages in (("few", 4), ("many", 256)):
        source = a.topic(name)
        replicator = a.replicate("b", b.server.address, name)
        publish_entries(source, 1, messages)
        has_all(replicator, messages)  # the session is open
        replicator.pause()
        until(lambda replicator=replicator: replicator.status().state == "paused")  # type: ignore[misc]
        publish_entries(source, count, messages)
        counter.lines.clear()
        counter.calls.clear()
        counter.is_counting = True
        replicator.resume()
        has_all(replicator, (count + 1) * messages)
        replicator.close()
        counter.is_counting = False
        lines[name] = counter.lines.copy()
        assert len(b.topic(name)) == (count + 1) * messages
        for function in ("Replicator._decode", "Sender.entries_read", "TargetLink.replicate", "Origins.replicate"):
            assert counter.calls[function], counter.calls
        assert counter.calls["Replicator._decode"] >= count
    more = lines["many"] - lines["few"]
    assert more.total() < count * (256 - 4) / 4, more.most_common(5)


def publish_entries(topic: Topic, count: int, messages: int) -> None:
    for number in range(count):
        topic.publish_batch([b"%d" % number] * messages, properties=[{"n": "1"}] * messages)


def test_replicator_of_a_closed_topic_closes_without_an_error(
    a: Site, b: Site, caplog: pytest.LogCaptureFixture
) -> None:
    publish(a, 0, 30)
    replicator = a.replicate("b", b.server.address)
    has_all(replicator, 30)
    replicator.pause()
    until(lambda: replicator.status().state == "paused")
    publish(a, 30, 60)
    a.topic().close()
    replicator.close()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
