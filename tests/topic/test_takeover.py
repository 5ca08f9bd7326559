"""Changes of the owner: the next owner fences the former one, and completes what that left, wherever it died."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyreplog.bookie.protocol import Request, RequestKind
from pyreplog.errors import (
    DisconnectedError,
    LedgerFencedError,
    NoSuchTopicError,
    OutcomeUnknownError,
    TopicFencedError,
    TopicFullError,
)
from pyreplog.ledger.cluster import LedgerCluster
from pyreplog.ledger.ledger_metadata import State
from pyreplog.topic.model import chain
from pyreplog.topic.owner.managed.chain_store import ChainStore, find_chain
from pyreplog.topic.owner.managed.ledgers import delete_orphans
from pyreplog.topic.owner.managed.managed_ledger import ManagedLedger
from tests.ledger.fault_injection import FailingStore, OnReply, RequestInterceptor
from tests.topic.batches import submit
from tests.topic.counting import Faults
from tests.topic.owners import config, entry, process, publish, read_all, result, until

US = 1_700_000_000_000_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedgerCluster]:
    folder = tmp_path_factory.mktemp("takeover")
    with LedgerCluster.embedded(folder, bookies=2, segment_bytes=1 << 20, collect_interval_ms=3_600_000) as cluster:
        yield cluster


@pytest.fixture
def name(request: pytest.FixtureRequest, cluster: LedgerCluster) -> Iterator[str]:
    """Name a topic for one test, and delete its ledgers afterwards."""
    name: str = request.node.name
    yield name
    try:
        ManagedLedger.open(cluster, name, create=False).delete()
    except NoSuchTopicError:
        assert find_chain(cluster.metadata, name) is None
    delete_orphans(cluster)
    assert cluster.ledgers() == []


# ---- fencing ---------------------------------------------------------------------------------------------------


def test_the_second_owner_fences_the_first(cluster: LedgerCluster, name: str) -> None:
    with ManagedLedger.open(cluster, name, config=config(roll_entries=9), owner="one") as managed_ledger:
        fenced: list[TopicFencedError] = []
        managed_ledger.on_fenced.append(fenced.append)
        assert result(publish(managed_ledger, [b"a", b"b"])) == range(2)
        with ManagedLedger.open(cluster, name, owner="two") as two:
            assert (two.epoch, two.end.offset) == (2, 2)
            with pytest.raises(TopicFencedError):
                result(publish(managed_ledger, [b"c"]))
            for call in (
                lambda: publish(managed_ledger, [b"d"]),
                lambda: managed_ledger.read(0),
                managed_ledger.roll,
                lambda: managed_ledger.locate(0),
            ):
                with pytest.raises(TopicFencedError):
                    call()
            until(lambda: fenced and managed_ledger.fenced)
            assert len(fenced) == 1 and managed_ledger.stats().state == "fenced"
            assert result(publish(two, [b"e"])) == range(2, 3)
            assert read_all(two) == dict(enumerate([b"a", b"b", b"e"]))


def test_an_idle_owner_is_fenced_by_its_next_publish(cluster: LedgerCluster, name: str) -> None:
    """It has no open ledger whose bookies could refuse it: the chain does. The ledger that it created is deleted."""
    with (
        ManagedLedger.open(cluster, name, config=config()) as managed_ledger,
        ManagedLedger.open(cluster, name, owner="b") as two,
    ):
        with pytest.raises(TopicFencedError, match="b took it over, in epoch 2"):
            result(publish(managed_ledger, [b"a"]))
        assert result(publish(two, [b"b"])) == range(1)
        until(lambda: set(cluster.ledgers()) == two.chain.ids)


@pytest.mark.parametrize("call", ["trim", "set_config", "clear", "roll"])
def test_a_former_owner_that_writes_the_chain_is_fenced(cluster: LedgerCluster, name: str, call: str) -> None:
    with ManagedLedger.open(cluster, name, config=config()) as managed_ledger:
        for _ in range(4):
            result(publish(managed_ledger, [b"a"]))
        with ManagedLedger.open(cluster, name) as two:
            before = two.chain
            args: dict[str, Any] = {"trim": (4, US * 2), "set_config": (config(roll_ms=5),)}
            with pytest.raises(TopicFencedError):
                result(getattr(managed_ledger, call)(*args.get(call, ())))
            until(lambda: managed_ledger.fenced)
            assert two.chain == before and read_all(two).keys() == set(range(4))


def test_pending_entries_of_a_fenced_owner(cluster: LedgerCluster, name: str) -> None:
    """Entries that the next owner finds have the same offsets there. The former owner confirms no others."""
    with ManagedLedger.open(cluster, name, config=config(ensemble=2, ack_quorum=2, roll_entries=99)) as managed_ledger:
        result(publish(managed_ledger, [b"a"]))
        lost: list[OnReply] = []

        def lose(bookie: str, request: Request, on_reply: OnReply) -> None:
            interceptor._send(bookie, request, lambda reply: lost.append(on_reply))

        with RequestInterceptor(cluster) as interceptor:
            interceptor.add_rule(lose, kind=RequestKind.ADD)
            pending = [publish(managed_ledger, [b"0"])]
            until(lambda: len(lost) == 2)
            pending += [
                publish(managed_ledger, [b"%d" % number]) for number in (1, 2)
            ]  # these wait until the first is confirmed
        with ManagedLedger.open(cluster, name) as two:
            for on_reply in lost:
                on_reply(DisconnectedError("the reply was lost"))
            assert result(pending[0]) == range(1, 2), "it finds the ledger closed, with this entry"
            for future in pending[1:]:
                with pytest.raises(TopicFencedError):
                    result(future)
            assert read_all(two) == dict(enumerate([b"a", b"0"]))


def test_several_take_over_at_once(cluster: LedgerCluster, name: str) -> None:
    """The last one owns the topic, with all acknowledged messages. The others are fenced, some while they open the
    topic."""

    def take(_: int) -> ManagedLedger | None:
        try:
            return ManagedLedger.open(cluster, name)
        except TopicFencedError:
            return None

    with ManagedLedger.open(cluster, name, config=config(roll_entries=99)) as first:
        acked = [result(publish(first, [b"a"])).start for _ in range(3)]
        with ThreadPoolExecutor(4) as pool:
            opened = [item for item in pool.map(take, range(4)) if item is not None]
    *others, last = sorted(opened, key=lambda item: item.epoch)
    assert last.epoch == 5
    for other in others:
        with pytest.raises(TopicFencedError):
            result(publish(other, [b"x"]))
        other.close()
    with last:
        acked.append(result(publish(last, [b"a"])).start)
        assert acked == list(range(4)) and read_all(last) == dict.fromkeys(range(4), b"a")


# ---- the outcome of a write is unknown -------------------------------------------------------------------------


@pytest.mark.parametrize("done", [False, True], ids=["not-done", "done"])
def test_a_lost_reply_to_taking_over(cluster: LedgerCluster, name: str, done: bool) -> None:
    with process(cluster, Faults()) as new_process:
        store = FailingStore.before(new_process)
        store.fail("create", OutcomeUnknownError("lost"), done=done)
        with ManagedLedger.open(new_process, name, config=config()) as topic:
            assert topic.epoch == 1 and result(publish(topic, [b"a"])) == range(1)
        store.fail("put", OutcomeUnknownError("lost"), done=done)
        with ManagedLedger.open(new_process, name) as topic:
            assert topic.epoch == 2


def test_a_write_that_comes_late(cluster: LedgerCluster, name: str) -> None:
    """The write was taken for lost and is done later: the next write finds it."""
    ChainStore(cluster.metadata, name, "one").take(config(), US, create=True)

    class Late:
        """A store whose first put is done just before the second one."""

        def __init__(self) -> None:
            self.late: tuple[Any, ...] | None = None

        def __getattr__(self, method: str) -> Any:
            return getattr(cluster.metadata, method)

        def put(self, *args: Any) -> int:
            if self.late is None:
                self.late = args
                raise OutcomeUnknownError("lost")
            late, self.late = self.late, ()
            if late:
                cluster.metadata.put(*late)
            return cluster.metadata.put(*args)

    late: Any = Late()
    two = ChainStore(cluster.metadata, name, "two")
    two.take(None, US, create=False)
    two._store = late
    two.update(lambda chain: chain.added(7, US))
    assert two.chain.ids == {7} and two.check().ids == {7}


def test_settings_edited_in_the_store_are_kept(cluster: LedgerCluster, name: str) -> None:
    """A tool may change settings in the store, which takes no topic over."""
    with ManagedLedger.open(cluster, name, config=config()) as topic:
        chain = find_chain(cluster.metadata, name)
        assert chain is not None and chain.chain is not None
        edited = dataclasses.replace(chain.chain, config=config(roll_entries=1))
        cluster.metadata.put(f"/topics/{name}", edited.encode(), chain.version)
        for number in range(3):
            assert result(publish(topic, [b"a"])) == range(number, number + 1)
        assert topic.config.roll_entries == 1 and len(topic.chain.ledgers) == 3


def test_a_topic_that_is_edited_while_it_is_deleted(cluster: LedgerCluster, name: str) -> None:
    """The edit is by a tool, or by the deletion of ledgers: the topic is deleted all the same."""
    ManagedLedger.open(cluster, name, config=config()).close()

    class Edited:
        """A store that writes the key just before the first delete."""

        def __init__(self) -> None:
            self.deletes = 0

        def __getattr__(self, method: str) -> Any:
            return getattr(cluster.metadata, method)

        def delete(self, key: str, version: int) -> None:
            self.deletes += 1
            if self.deletes == 1:
                stored = cluster.metadata.get(key)
                assert stored is not None
                cluster.metadata.put(key, stored.value, stored.version)
            cluster.metadata.delete(key, version)

    edited: Any = Edited()
    two = ChainStore(cluster.metadata, name, "two")
    two.take(None, US, create=False)
    two.update(chain.LedgerChain.marked_deleted)
    two._store = edited
    two.remove()
    assert edited.deletes == 2 and find_chain(cluster.metadata, name) is None


def test_chain_store_of_an_empty_topic_key_raises_topic_fenced_error(cluster: LedgerCluster, name: str) -> None:
    """The key exists only as the parent of other keys, since its topic was deleted."""
    chain_store = ChainStore(cluster.metadata, name, "one")
    chain_store.take(config(), US, create=True)
    stored = cluster.metadata.get(f"/topics/{name}")
    assert stored is not None and chain_store.has(7) is False
    emptied = cluster.metadata.put(f"/topics/{name}", b"", stored.version)
    with pytest.raises(TopicFencedError, match="deleted"):
        chain_store.check()
    with pytest.raises(TopicFencedError, match="deleted"):
        chain_store.update(lambda chain: chain.added(7, US))
    assert chain_store.has(7) is False
    cluster.metadata.put(f"/topics/{name}", stored.value, emptied)


# ---- failing ledgers -------------------------------------------------------------------------------------------


def test_publishers_go_on_after_a_failed_ledger(cluster: LedgerCluster, name: str) -> None:
    """Entries that the ledger kept have their offsets, and the others go to the next ledger; publishers get no error."""
    with ManagedLedger.open(cluster, name, config=config(ensemble=2, roll_entries=99)) as topic:
        acked = [result(publish(topic, [b"a"]))]
        with RequestInterceptor(cluster) as interceptor:
            interceptor.add_rule(interceptor.fail, kind=RequestKind.ADD)
            futures = [submit(topic.writer, *batch(number)) for number in range(4)]
            until(lambda: topic.stats().failures > 1)
            assert not any(future.done() for future in futures)
        acked += [result(future) for future in futures]
        assert [item.start for item in acked] == [0, 1, 4, 7, 10]
        assert read_all(topic) == dict(enumerate([b"a", *[b"%d" % n for n in range(4) for _ in range(3)]]))
        assert topic.stats().failures > 1 and all(item.entries for item in topic.chain.ledgers[:-1])


def batch(number: int) -> tuple[list[bytes], list[int]]:
    """Publish two entries with three messages."""
    value = b"%d" % number
    return [entry(value), entry(value, value)], [1, 2]


def test_a_ledger_that_another_client_closed(cluster: LedgerCluster, name: str) -> None:
    """The ledger was recovered, which is not a takeover of the topic: the owner is fenced, or its ledger deleted."""
    with ManagedLedger.open(cluster, name, config=config(roll_entries=99)) as topic:
        result(publish(topic, [b"a"]))
        assert topic._writer.ledger is not None
        with cluster.open_ledger(topic._writer.ledger.id) as reader:
            assert reader.metadata.state is State.CLOSED
        with pytest.raises(TopicFencedError) as caught:
            result(publish(topic, [b"b"]))
        assert LedgerFencedError.__name__ not in str(caught.type)
    with ManagedLedger.open(cluster, name) as topic:
        assert read_all(topic) == {0: b"a"}


def test_a_ledger_that_is_deleted_while_it_is_written(cluster: LedgerCluster, name: str) -> None:
    """The messages of the ledger are lost, and their offsets are not used again."""
    with ManagedLedger.open(cluster, name, config=config(ensemble=2, roll_entries=99)) as topic:
        assert result(publish(topic, [b"a", b"b"])) == range(2)
        ledger = topic.chain.ledgers[-1].ledger
        with RequestInterceptor(cluster) as interceptor:
            interceptor.add_rule(interceptor.fail, kind=RequestKind.ADD)
            pending = publish(topic, [b"c"])
            interceptor.wait_for(RequestKind.ADD)
            cluster.delete_ledger(ledger)
        assert result(pending).start in (2, 3)
        assert topic.end.offset == result(pending).stop
        assert read_all(topic, result(pending).start) == {result(pending).start: b"c"}


def test_a_ledger_that_was_deleted_before_it_ends_keeps_its_offsets(cluster: LedgerCluster, name: str) -> None:
    with ManagedLedger.open(cluster, name, config=config(roll_entries=99)) as topic:
        assert result(publish(topic, [b"0"])) == range(1)
        result(topic.roll())
        assert result(publish(topic, [b"a", b"b"])) == range(1, 3)
        before, end = topic.chain.ledgers[-1].start, topic.end
        cluster.delete_ledger(topic.chain.ledgers[-1].ledger)
        result(topic.roll())
        deleted = topic.chain.ledgers[-1]
        assert (deleted.start, deleted.end) == (before, end)
        assert result(publish(topic, [b"c"])) == range(3, 4)
        assert read_all(topic, 3) == {3: b"c"}


def test_publishers_wait_while_a_chain_is_full(
    cluster: LedgerCluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The open ledger goes on. Without one, publishers wait until some ledgers are trimmed."""
    with ManagedLedger.open(cluster, name, config=config()) as topic:
        for _ in range(4):
            result(publish(topic, [b"a"]))
        monkeypatch.setattr(chain, "VALUE_MAX", len(topic.chain.encode()) + chain.RESERVE_BYTES + 200)
        for _ in range(4):
            result(publish(topic, [b"b"]))
        assert len(topic.chain.ledgers) == 2 and topic.chain.ledgers[-1].ledger in cluster.ledgers()
        result(topic.roll())
        with pytest.raises(TopicFullError):
            result(publish(topic, [b"c"]))
        assert topic.pending_bytes == 0 and topic.end.offset == 8
        assert result(topic.trim(8, US * 2)) == 2
        until(lambda: not topic.stats().pending_deletion)
        assert result(publish(topic, [b"d"])) == range(8, 9)
