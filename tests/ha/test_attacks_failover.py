"""Former bugs of failover: a thread that ended with an error, a lease that no node used and none gave up."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import pyreplog.ha.failover
from pyreplog.errors import ClosedError, MetadataUnavailableError, NotMasterError, PromotionRefusedError
from pyreplog.ha.failover import Failover
from pyreplog.ha.protocol.election import Effect, Election
from pyreplog.metadata import MetadataStore, open_store
from pyreplog.metadata.lease import Lease
from pyreplog.metadata.store import Versioned
from pyreplog.stream.log_position import LogPosition
from pyreplog.stream.mirror_log import MirrorLog
from pyreplog.stream.terms import NO_TERM, Term
from tests.ha.inside import context_of
from tests.ha.nodes import Lab, level, until

MASTER = "/ha/orders/master"


class Stub:
    """The part of a node that a failover uses."""

    def __init__(self, name: str = "a", role: str = "replica") -> None:
        self.name, self.role, self.address = name, role, "127.0.0.1:7001"
        self.is_eligible, self.term = False, NO_TERM
        self.failures: list[Exception] = []
        self.followed: list[str | None] = []
        self.stalled_s, self.is_silent = 0.0, False
        self.challenged: list[str] = []

    def end_candidacy(self) -> None:
        return

    @property
    def is_leading(self) -> bool:
        return self.role == "master"

    def hears_master(self, timeout: float) -> bool:
        return not self.is_silent

    def take_over(self, master: str, timeout: float) -> None:
        self.challenged.append(master)
        self.promote()

    def learn_peers(self, addresses: dict[str, str]) -> None:
        """Do nothing: this node asks no others."""

    def follow(self, master: str | None, *, unless: Callable[[], bool] = lambda: False) -> None:
        if unless():
            return
        if self.failures:
            self.role = "candidate"
            raise self.failures.pop(0)
        self.role = "replica"
        self.followed.append(master)

    def promote(self) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.role = "master"


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def store(stack: ExitStack) -> MetadataStore:
    return stack.enter_context(open_store("memory:"))


def keep(stack: ExitStack, node: Any, store: Any) -> Failover:
    return stack.enter_context(Failover(node, store, "orders", lease_ms=60_000, random=lambda: 0.0))


def io_error() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))


def check_until(failover: Failover, done: Callable[[], object]) -> None:
    """Wait until a condition holds, and run checks meanwhile without waiting for the interval."""

    def look() -> object:
        failover.check_soon()
        return done()

    until(look)


def wait_for_check(failover: Failover) -> None:
    """Wait for the end of a check that begins after this call."""
    before = failover.checks
    check_until(failover, lambda: failover.checks >= before + 2)


class Ahead:
    """The clock of a failover, which is `seconds` ahead of the machine's clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        monkeypatch.setattr(pyreplog.ha.failover, "monotonic", lambda: time.monotonic() + self.seconds)


def test_a_disk_error_does_not_end_failover(stack: ExitStack, store: MetadataStore) -> None:
    node = Stub(role="master")
    node.failures = [io_error(), io_error()]
    store.create(MASTER, b'["b", "127.0.0.1:7002"]')
    failover = keep(stack, node, store)
    check_until(failover, lambda: node.followed)
    assert node.followed[0] == "127.0.0.1:7002"
    wait_for_check(failover)


def test_a_disk_error_in_an_election_gives_the_lease_up(stack: ExitStack, store: MetadataStore) -> None:
    node = Stub()
    node.is_eligible, node.failures = True, [io_error()]
    failover = keep(stack, node, store)
    check_until(failover, lambda: node.role == "master")
    wait_for_check(failover)


def test_a_node_promoted_by_command_stays_master(tmp_path: Path, stack: ExitStack, store: MetadataStore) -> None:
    """It followed the master that it had deposed, because that still held the lease; then another node was elected."""
    lab = Lab(tmp_path, stack)
    a, b = lab.master(members="ab"), lab.replica("b")
    keep(stack, a, store)
    until(lambda: store.get(MASTER) is not None)
    failover = keep(stack, b, store)
    a.append(b"one")
    level(a, b)
    b.promote()
    check_until(failover, lambda: holder(store) == "b")
    stored = store.get(MASTER)
    assert stored is not None and json.loads(stored.value) == ["b", b.address]
    assert (b.role, b.term) == ("master", Term(2, "b"))
    until(lambda: a.role == "replica" and a.stats()["streaming"])


def holder(store: MetadataStore) -> str:
    stored = store.get(MASTER)
    return "" if stored is None else str(json.loads(stored.value)[0])


def test_an_elected_node_takes_the_lease_from_its_holder(stack: ExitStack, store: MetadataStore) -> None:
    """It does not wait until the lease ends, as that may belong to a process that is stopped."""
    node = Stub()
    node.is_eligible = True
    with store.lease(60.0, lambda: None) as lease:
        lease.create(MASTER, b'["b", "127.0.0.1:7002"]')
        failover = keep(stack, node, store)
        wait_for_check(failover)
        node.role = "master"
        check_until(failover, lambda: holder(store) == "a")
    assert holder(store) == "a", "what the other lease has left is not this key"
    assert node.followed == ["127.0.0.1:7002"] and node.role == "master"


class ElectedDuringLooks(Stub):
    """A node that is elected while its failover calls `follow`: before that call, which waits for the election, or
    after it."""

    def __init__(self, *, before: bool, role: str) -> None:
        super().__init__(role=role)
        self.is_eligible, self.is_elected_before = True, before

    def follow(self, master: str | None, *, unless: Callable[[], bool] = lambda: False) -> None:
        if self.is_elected_before:
            self.role = "master"
        super().follow(master, unless=unless)
        self.role = "master"


def test_a_replica_that_is_elected_during_the_first_look_stays_master(stack: ExitStack, store: MetadataStore) -> None:
    """The failover had not seen the node as a replica, and had the new master follow the one that was lost."""
    node = ElectedDuringLooks(before=True, role="replica")
    store.create(MASTER, b'["b", "127.0.0.1:7002"]')
    failover = keep(stack, node, store)
    check_until(failover, lambda: holder(store) == "a")
    assert node.followed == []


def test_a_former_master_that_is_elected_again_during_a_look_stays_master(
    stack: ExitStack, store: MetadataStore
) -> None:
    """It was a replica only between two checks."""
    node = ElectedDuringLooks(before=False, role="master")
    store.create(MASTER, b'["b", "127.0.0.1:7002"]')
    failover = keep(stack, node, store)
    check_until(failover, lambda: holder(store) == "a")
    assert node.followed == ["127.0.0.1:7002"]


def test_a_master_that_loses_its_lease_and_is_elected_again_at_once_stays_master(
    stack: ExitStack, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node takes the lease before the next check, and is deposed by then."""
    node = ElectedDuringLooks(before=False, role="master")
    leases: list[Any] = []
    begin, get = store.lease, store.get

    def is_silent(key: str) -> Versioned | None:
        raise MetadataUnavailableError(f"{key} was not read")

    monkeypatch.setattr(store, "lease", lambda *how: leases.append(begin(*how)) or leases[-1])
    failover = keep(stack, node, store)
    check_until(failover, lambda: holder(store) == "a")
    wait_for_check(failover)
    monkeypatch.setattr(store, "get", is_silent)
    wait_for_check(failover)
    leases[1].expire()
    until(lambda: node.followed == [None])
    store.create(MASTER, b'["b", "127.0.0.1:7002"]')
    monkeypatch.setattr(store, "get", get)
    check_until(failover, lambda: holder(store) == "a")
    assert node.followed == [None] and is_closed(leases[1])


def test_an_address_whose_lease_was_lost_is_registered_again(
    stack: ExitStack, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lost lease is closed; a handle that is not closed causes a warning."""
    leases: list[Any] = []
    begin = store.lease
    monkeypatch.setattr(store, "lease", lambda *how: leases.append(begin(*how)) or leases[-1])
    failover = keep(stack, Stub(), store)
    check_until(failover, lambda: store.get("/ha/orders/nodes/a"))
    wait_for_check(failover)
    lost = leases.pop()
    lost.expire()
    check_until(failover, lambda: leases and store.get("/ha/orders/nodes/a"))
    until(lambda: is_closed(lost))


def test_an_address_whose_lease_is_lost_as_soon_as_it_is_registered_is_registered_again(
    stack: ExitStack, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is lost before the failover has stored it in its field. If that were missed, other nodes could not find
    this one any more."""
    begin, losses = store.lease, [threading.Event()]

    def lease(ttl: float, on_lost: Callable[[], object]) -> Any:
        if not losses:
            return begin(ttl, on_lost)
        noted = losses.pop()
        begun: Any = begin(ttl, lambda: (on_lost(), noted.set()))
        create = begun.create

        def create_and_lose(key: str, value: bytes) -> int:
            version: int = create(key, value)
            begun.expire()
            assert noted.wait(30)
            return version

        monkeypatch.setattr(begun, "create", create_and_lose)
        return begun

    monkeypatch.setattr(store, "lease", lease)
    failover = keep(stack, Stub(), store)
    check_until(failover, lambda: store.get("/ha/orders/nodes/a"))


def is_closed(lease: Lease) -> bool:
    try:
        return not lease.state
    except ClosedError:
        return True


def test_a_master_whose_lease_was_taken_follows(stack: ExitStack, store: MetadataStore) -> None:
    """The node may have been stopped meanwhile. Its readers must not take its log for complete."""
    node = Stub(role="master")
    node.is_eligible = True
    failover = keep(stack, node, store)
    check_until(failover, lambda: holder(store) == "a")
    stored = store.get(MASTER)
    assert stored is not None
    store.delete(MASTER, stored.version)
    for _ in range(3):
        wait_for_check(failover)
    assert holder(store) == "", "it leaves the one that was elected a moment"
    with store.lease(60.0, lambda: None) as lease:
        lease.create(MASTER, b'["b", "127.0.0.1:7002"]')
        check_until(failover, lambda: node.followed)
        assert (node.role, node.followed, holder(store)) == ("replica", ["127.0.0.1:7002"], "b")


def test_a_master_that_is_missed_is_challenged_before_its_lease_ends(stack: ExitStack, store: MetadataStore) -> None:
    node = Stub()
    node.is_eligible = True
    with store.lease(60.0, lambda: None) as lease:
        lease.create(MASTER, b'["b", "127.0.0.1:7002"]')
        failover = keep(stack, node, store)
        check_until(failover, lambda: node.followed)
        assert not node.challenged
        node.failures = [NotMasterError("others hear from b")]
        node.is_silent = True
        until(lambda: node.role == "master")
        assert set(node.challenged) == {"b"} and len(node.challenged) >= 2
        until(lambda: holder(store) == "a")


def test_a_master_that_can_commit_nothing_lets_another_try(
    stack: ExitStack, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master that was cut off from its replicas kept the lease as long as that lasted."""
    node, clock = Stub(role="master"), Ahead(monkeypatch)
    node.is_eligible = True
    failover = keep(stack, node, store)
    check_until(failover, lambda: holder(store) == "a")
    node.stalled_s = 61.0
    clock.seconds += 61.0
    check_until(failover, lambda: holder(store) == "")
    wait_for_check(failover)
    assert holder(store) == "" and node.role == "master", "others may try first"
    node.stalled_s = 0.0
    check_until(failover, lambda: holder(store) == "a")
    node.stalled_s = 61.0
    clock.seconds += 61.0
    check_until(failover, lambda: holder(store) == "")
    clock.seconds += 120.0
    check_until(failover, lambda: holder(store) == "a")


def test_a_node_that_has_just_promised_another_waits_for_that_one(
    stack: ExitStack, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deposed master may have given up the lease before the new one, elected by command, can take it."""
    node, clock = Stub(), Ahead(monkeypatch)
    version = store.create(MASTER, b'["b", "127.0.0.1:7002"]')
    failover = keep(stack, node, store)
    check_until(failover, lambda: node.followed)
    node.is_eligible, node.term = True, Term(2, "c")
    wait_for_check(failover)
    store.delete(MASTER, version)
    wait_for_check(failover)
    assert store.get(MASTER) is None and node.role == "replica"
    clock.seconds += 60.0
    check_until(failover, lambda: node.role == "master")


def test_a_node_that_promises_another_while_it_waits_does_not_stand(stack: ExitStack, store: MetadataStore) -> None:
    """The lease was given up because of the node that it promised."""
    node, waits = Stub(), []
    node.is_eligible = True

    def promises_another() -> float:
        waits.append(node.term)
        node.term = Term(2, "c")
        return 0.0

    failover = stack.enter_context(Failover(node, store, "orders", lease_ms=60_000, random=promises_another))  # type: ignore[arg-type]
    wait_for_check(failover)
    wait_for_check(failover)
    assert waits == [NO_TERM] and store.get(MASTER) is None and node.role == "replica"


def test_elected_master_is_promoted_again_after_a_concurrent_candidacy(
    tmp_path: Path, stack: ExitStack, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """b is elected during the election of c, and writes its first record. The higher term of c deposes b, and c lacks
    that record. All had promised c, so that no node stood for election until the lease had ended: ten minutes in this
    test."""
    lab = Lab(tmp_path, stack)
    a = lab.master(members="abcd", sync_replicas=2)
    b, c, d = (lab.replica(name, a) for name in "bcd")
    a.append(b"one")
    level(a, b, c, d)
    store.create(MASTER, json.dumps(["a", a.address]).encode())
    lab.close(a)
    for node in (b, c):  # with this delay, both elections begin only when the test says so
        stack.enter_context(Failover(node, store, "orders", lease_ms=600_000, random=lambda: 1.0))
    stored = Election.stored
    is_between = threading.Event()

    def elected_meanwhile(self: Election, end: LogPosition, *args: Any) -> list[Effect]:
        """Elect b after c has promised itself its term, before it asks the others."""
        if self.name == "c" and not is_between.is_set():
            is_between.set()
            b.take_over("a", 0.05)
            until(lambda: holder(store) == "b")
            lab.close(d)  # c needs the promise of b, and thereby learns which records b has
        return stored(self, end, *args)

    monkeypatch.setattr(Election, "stored", elected_meanwhile)
    with pytest.raises(PromotionRefusedError, match="promote b"):
        c.take_over("a", 0.05)
    until(lambda: (b.role, b.term, holder(store)) == ("master", Term(3, "b"), "b"))
    until(lambda: c.stats()["streaming"])
    assert is_between.is_set()


def test_failover_leaves_a_node_alone_that_a_command_promotes(
    tmp_path: Path, stack: ExitStack, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At that moment the node was neither replica nor master: the check had it follow the holder of the lease, and it
    resigned at once."""
    lab = Lab(tmp_path, stack)
    a, b = lab.master(members="ab"), lab.replica("b")
    keep(stack, a, store)
    until(lambda: store.get(MASTER) is not None)
    failover = keep(stack, b, store)
    a.append(b"one")
    level(a, b)
    wait_for_check(failover)
    promote, follow, has_looked = MirrorLog.promote, b.follow, threading.Event()

    def changes_over(log: MirrorLog) -> None:
        check_until(failover, has_looked.is_set)
        promote(log)

    def looked(master: str | None, **how: Any) -> None:
        has_looked.set()
        follow(master, **how)

    get, a_holds = store.get, Versioned(json.dumps(["a", a.address]).encode(), 0)
    monkeypatch.setattr(MirrorLog, "promote", changes_over)
    monkeypatch.setattr(b, "follow", looked)
    monkeypatch.setattr(store, "get", lambda key: a_holds if key == MASTER else get(key))
    b.promote()
    has_looked.clear()
    monkeypatch.undo()
    check_until(failover, lambda: holder(store) == "b")
    assert (b.role, b.term) == ("master", Term(2, "b"))


@pytest.mark.parametrize("value", [b"7", b"[]", b"not JSON", b'["b"]', b"[[], []]"])
def test_a_malformed_name_of_a_master_counts_as_none(stack: ExitStack, store: MetadataStore, value: bytes) -> None:
    node = Stub()
    version = store.create(MASTER, value)
    failover = keep(stack, node, store)
    wait_for_check(failover)
    store.put(MASTER, b'["b", "127.0.0.1:7002"]', version)
    check_until(failover, lambda: node.followed and node.followed[-1] == "127.0.0.1:7002")


def test_a_node_that_cannot_be_reached_is_skipped(tmp_path: Path, stack: ExitStack, store: MetadataStore) -> None:
    a = Lab(tmp_path, stack).replica("a")
    store.create("/ha/orders/nodes/b", b"nowhere")
    store.create("/ha/orders/nodes/c", b"127.0.0.1:7003")
    store.create(MASTER, b'["c", "127.0.0.1:7003"]')
    failover = keep(stack, a, store)
    check_until(failover, lambda: a.stats()["master"] == "127.0.0.1:7003")
    assert (a.address_of("b"), a.address_of("c")) == (None, "127.0.0.1:7003")


def test_a_master_whose_disk_failed_gives_the_lease_up(tmp_path: Path, stack: ExitStack, store: MetadataStore) -> None:
    lab = Lab(tmp_path, stack)
    a = lab.master(members="a", sync_replicas=0)
    failover = keep(stack, a, store)
    check_until(failover, lambda: store.get(MASTER) is not None)
    a.log._poison("sync", io_error())
    check_until(failover, lambda: store.get(MASTER) is None)
    wait_for_check(failover)
    assert store.get(MASTER) is None


def test_a_lease_with_an_unknown_outcome_is_closed(stack: ExitStack, store: MetadataStore) -> None:
    """Otherwise the node would keep a key of which it does not know, and no node could become master."""
    node = Stub()
    node.is_eligible = True
    failing = [True]

    class Doubtful:
        """A lease that stores its key and then reports an unknown outcome."""

        def __init__(self, lease: Any) -> None:
            self._lease = lease

        def create(self, key: str, value: bytes) -> int:
            version: int = self._lease.create(key, value)
            if key == MASTER and failing:
                failing.pop()
                raise MetadataUnavailableError("the answer was lost")
            return version

        def close(self) -> None:
            self._lease.close()

    class Store:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def lease(self, ttl: float, on_lost: Callable[[], object]) -> Any:
            return Doubtful(store.lease(ttl, on_lost))

    failover = keep(stack, node, Store())
    check_until(failover, lambda: node.role == "master")


def test_a_candidate_that_is_late_has_its_time_all_the_same(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the candidate would be refused even by force, as its own promise was not stored when the time was over."""
    lab = Lab(tmp_path, stack)
    a = lab.master(members="abc")
    b = lab.replica("b", a, election_timeout_ms=1)
    a.append(b"one")
    level(a, b)
    lab.close(a)
    start = Election.start

    def late(self: Election, end: LogPosition) -> list[Effect]:
        context_of(b).reactor.drive(lambda: False, 0.05)
        return start(self, end)

    monkeypatch.setattr(Election, "start", late)
    assert "promises are needed" in b.promote(force=True)
